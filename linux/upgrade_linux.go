// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/migrate"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// An agent that finds an older map layout leaves it in force until its own maps hold a State.
// Then it migrates the flows and switches the programs of all interfaces at once. Every step
// can be repeated, so the next agent completes an interrupted upgrade.

// upgrade is the progress of that.
type upgrade struct {
	// waiting are the interfaces with programs of the older layout, by index, with their
	// endpoints in ours; nil if there are none.
	waiting map[int]bpfobj.PodEndpoint
	queued  map[int]bool // of pods with a bandwidth limit
	failed  error        // why the last attempt failed
}

// underOlder reports whether the older layout still serves an interface.
func (b *Backend) underOlder(index int) bool {
	_, ok := b.upgrade.waiting[index]
	return ok
}

// keptSlot returns the slot in our layout of an interface under the older layout, if an earlier
// agent assigned one.
func (b *Backend) keptSlot(f link.Found, e *policymap.Entries) (uint32, bool) {
	if f.ID == "" || !b.underOlder(f.Index) {
		return 0, false
	}
	n := b.upgrade.waiting[f.Index].Slot
	_, written := e.Slots[n]
	return n, written
}

// keepSlots gives the endpoints under the older layout the same slots in ours. For a while both
// layouts read the records of each other, which contain slots.
func (b *Backend) keepSlots(found []link.Found) error {
	for _, f := range found {
		e, older := b.upgrade.waiting[f.Index]
		if f.ID == "" || !older {
			continue
		}
		if e.HostMac == [6]byte{} {
			host, err := net.InterfaceByIndex(f.Index)
			if err != nil {
				return fmt.Errorf("find interface %s: %w", f.Name, err)
			}
			copy(e.HostMac[:], host.HardwareAddr)
			b.upgrade.waiting[f.Index] = e
		}
		if _, has := b.layout.Slot(f.ID); has {
			continue
		}
		w, err := b.layout.KeepSlot(f.ID, e.Slot)
		if err == nil {
			err = b.path.WriteSlot(w)
		}
		if err != nil {
			return fmt.Errorf("migrate interface %s: %w", f.Name, err)
		}
	}
	return nil
}

// completeUpgrade completes an upgrade, if one is in progress. The maps must hold the policy to
// enforce. Until the programs are switched, the older ones enforce the last policy that their
// agent knew.
func (b *Backend) completeUpgrade() error {
	if b.path.Older() == "" {
		return nil
	}
	was := b.path.Older()
	b.step("detach older from devices")
	if err := errors.Join(b.path.DropOlderNodeLinks(), link.DropNodeClassifiers(nil)); err != nil {
		return err // it would deliver by an outdated policy
	}
	if !b.path.Alone() {
		migrated, err := b.switchAll()
		if err != nil {
			return fmt.Errorf("migrate layout %s: %w", was, err)
		}
		b.log.Info("switched to the programs of the new layout", "layout", was, "to", loader.LayoutVersion, "flows", migrated.Alive,
			"expired", migrated.Expired, "unknown", migrated.Unknown)
		if migrated.Unknown > 0 {
			b.log.Warn("some flows could not be migrated and are evaluated again", "flows", migrated.Unknown)
		}
	}
	b.step("decide egress alone")
	if err := b.egress.Attach(); err != nil {
		return err
	}
	b.step("remove older layout")
	if err := b.path.RemoveOlder(); err != nil {
		return fmt.Errorf("remove layout %s: %w", was, err)
	}
	b.upgrade.waiting, b.upgrade.queued = nil, nil
	return nil
}

// switchAll migrates the flows and attaches our programs to every interface. First it attaches
// programs that call the older ones, so that all interfaces switch at once. It migrates flows
// before the switch, so that our programs know them, and again after it, for flows that opened
// in between.
func (b *Backend) switchAll() (migrated migrate.Migrated, err error) {
	all, err := b.list()
	if err != nil {
		return migrated, err
	}
	if b.cfg.PolicyOnly { // New left that to this moment
		b.step("decide egress beside older")
		if err := b.egress.Attach(); err != nil {
			return migrated, err
		}
	}
	found := slices.DeleteFunc(all, func(f link.Found) bool { return !b.underOlder(f.Index) })
	exchanged, err := b.path.Switch().Exchanged()
	if err == nil && !exchanged {
		err = b.exchange(found)
	}
	if err != nil {
		return migrated, err
	}
	b.step("migrate late flows")
	if migrated, err = b.path.MigrateFlows(); err != nil {
		return migrated, err
	}
	for _, f := range found {
		if err := b.replaceOlderPrograms(f); err != nil {
			return migrated, err
		}
	}
	if err := b.takeClosed(); err != nil {
		return migrated, err
	}
	b.step("load strict programs")
	return migrated, b.path.DecideAlone()
}

// exchange switches these interfaces to our programs.
func (b *Backend) exchange(found []link.Found) error {
	for _, f := range found {
		fromPod, toPod, err := link.FindClassifiers(f.Index)
		if err == nil {
			err = b.path.NameOlder(f.Name, [2]uint32{model.Egress: fromPod, model.Ingress: toPod})
		}
		if err != nil {
			return err
		}
	}
	// Without recorded older programs, because another process removed them all, there is
	// nothing to call.
	if known, err := b.path.Switch().KnowsOlder(); err != nil {
		return err
	} else if known {
		for _, f := range found {
			if err := b.divert(f); err != nil {
				return err
			}
		}
	}
	b.step("migrate flows")
	if _, err := b.path.MigrateFlows(); err != nil {
		return err
	}
	for _, f := range found {
		b.step("register endpoint again")
		// Interfaces of another CNI plugin have no fast path.
		if err := b.register(f.Index, b.upgrade.waiting[f.Index], b.upgrade.queued[f.Index] || b.cfg.PolicyOnly); err != nil {
			return err
		}
	}
	b.step("migrate flows again")
	if _, err := b.path.MigrateFlows(); err != nil {
		return err
	}
	b.step("exchange programs")
	return b.path.Switch().Exchange()
}

// divert attaches the programs to an interface that call the selected ones.
func (b *Backend) divert(f link.Found) error {
	b.step("divert")
	linked, err := b.path.Divert(f.Name)
	if err != nil {
		return err
	}
	b.step("divert classifiers")
	if linked {
		return link.DropClassifiers(f.Index)
	}
	return link.SetClassifiers(f.Index, link.Classifiers{
		FromPod: b.path.Switch().Dispatcher(model.Egress).FD(), ToPod: b.path.Switch().Dispatcher(model.Ingress).FD()})
}

// replaceOlderPrograms attaches our programs to an interface, whichever hooks the older ones used.
func (b *Backend) replaceOlderPrograms(f link.Found) error {
	b.step("take links")
	if err := b.path.TakeLinks(f.Name); err != nil {
		return err
	}
	linked, err := b.path.Linked(f.Name, f.Index)
	if err != nil || linked {
		return err
	}
	b.step("set classifiers")
	return link.SetClassifiers(f.Index, b.classifiers())
}

// takeClosed attaches our programs to the interfaces without an endpoint: closed ones of another CNI plugin. They would
// be open without the older programs.
func (b *Backend) takeClosed() error {
	names, err := b.path.OlderAttached()
	if err != nil {
		return err
	}
	for name := range names {
		b.step("replace programs of a closed interface")
		if err := b.path.TakeLinks(name); err != nil {
			return err
		}
	}
	if b.tcx || len(b.ends.closed) == 0 {
		return nil
	}
	// A closed interface may have vanished since the start, and another may have its index.
	classified, err := link.Classified()
	if err != nil {
		return err
	}
	for name, index := range classified {
		if b.ends.closed[name] != index {
			continue
		}
		b.step("replace programs of a closed interface")
		if err := b.programForeign(name, index); err != nil {
			return err
		}
	}
	return nil
}

// upgradeProblems reports an upgrade that is not complete.
func (b *Backend) upgradeProblems() []string {
	if b.path.Older() == "" {
		return nil
	}
	why := errors.New("no policy has been applied yet")
	if b.upgrade.failed != nil {
		why = b.upgrade.failed
	}
	return []string{fmt.Sprintf("the programs of layout %s still enforce the last policy that their agent knew, until those of %s replace them: %v",
		b.path.Older(), loader.LayoutVersion, why)}
}
