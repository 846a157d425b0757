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
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// An agent that finds an older layout of maps leaves it in force until a State
// is in its own maps. Then it carries the flows over and exchanges the programs
// of all interfaces in one moment. What was cut short is done again by the next
// agent: every step may be made twice.

// upgrade is how far that has come.
type upgrade struct {
	// waiting are the interfaces that programs of the older layout are on, by
	// index, with what ours are to know of them; nil unless there are such.
	waiting map[int]bpfobj.PodEndpoint
	queued  map[int]bool // those of pods whose bandwidth is limited
	failed  error        // why the last attempt came to no end
}

// underOlder reports whether an interface is left to the older layout for now.
func (b *Backend) underOlder(index int) bool {
	_, ok := b.upgrade.waiting[index]
	return ok
}

// keptSlot tells which slot an interface under the older layout has in ours, if
// an agent gave it one before.
func (b *Backend) keptSlot(f link.Found, e *policymap.Entries) (uint32, bool) {
	if f.ID == "" || !b.underOlder(f.Index) {
		return 0, false
	}
	n := b.upgrade.waiting[f.Index].Slot
	_, written := e.Slots[n]
	return n, written
}

// keepSlots gives the endpoints under the older layout the slots that they have
// there: for a while both layouts read each other's records, which name slots.
func (b *Backend) keepSlots(found []link.Found) error {
	for _, f := range found {
		e, older := b.upgrade.waiting[f.Index]
		if f.ID == "" || !older {
			continue
		}
		if e.HostMac == [6]byte{} {
			host, err := net.InterfaceByIndex(f.Index)
			if err != nil {
				return fmt.Errorf("look for interface %s: %w", f.Name, err)
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
			return fmt.Errorf("take over interface %s: %w", f.Name, err)
		}
	}
	return nil
}

// takeOver ends an upgrade, if one is going on. What is to be in force must be
// in the maps. Until then, and until programs are exchanged, the older ones decide
// by the policy that their agent knew last.
func (b *Backend) takeOver() error {
	if b.path.Older() == "" {
		return nil
	}
	was := b.path.Older()
	b.step("detach older from devices")
	if err := errors.Join(b.path.DropOlderNodeLinks(), link.DropNodeClassifiers(nil)); err != nil {
		return err // it would deliver by a policy that was
	}
	if !b.path.Alone() {
		carried, err := b.switchAll()
		if err != nil {
			return fmt.Errorf("take over from layout %s: %w", was, err)
		}
		b.log.Info("programs were exchanged", "layout", was, "to", loader.LayoutVersion, "flows", carried.Alive, "expired", carried.Expired, "unknown", carried.Unknown)
		if carried.Unknown > 0 {
			b.log.Warn("some flows could not be carried over and are decided anew", "flows", carried.Unknown)
		}
	}
	b.step("decide egress alone")
	if err := b.hookEgress(); err != nil {
		return err
	}
	b.step("remove older layout")
	if err := b.path.RemoveOlder(); err != nil {
		return fmt.Errorf("remove layout %s: %w", was, err)
	}
	b.upgrade.waiting, b.upgrade.queued = nil, nil
	return nil
}

// switchAll carries the flows over and puts the programs of ours on every
// interface. Programs that call the older ones are put there first, so that all
// change at once. Flows are carried before, so that they are known then, and
// after, so that those are known that came in between.
func (b *Backend) switchAll() (carried loader.Carried, err error) {
	all, err := link.List()
	if err != nil {
		return carried, err
	}
	found := slices.DeleteFunc(all, func(f link.Found) bool { return !b.underOlder(f.Index) })
	exchanged, err := b.path.Exchanged()
	if err == nil && !exchanged {
		err = b.exchange(found)
	}
	if err != nil {
		return carried, err
	}
	b.step("carry late flows")
	if carried, err = b.path.CarryFlows(); err != nil {
		return carried, err
	}
	for _, f := range found {
		if err := b.settlePrograms(f); err != nil {
			return carried, err
		}
	}
	b.step("load strict programs")
	return carried, b.path.DecideAlone()
}

// exchange makes the programs of ours decide for these interfaces.
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
	// If somebody took them all off there is nothing to call.
	if known, err := b.path.KnowsOlder(); err != nil {
		return err
	} else if known {
		for _, f := range found {
			if err := b.divert(f); err != nil {
				return err
			}
		}
	}
	b.step("carry flows")
	if _, err := b.path.CarryFlows(); err != nil {
		return err
	}
	for _, f := range found {
		b.step("register endpoint again")
		if err := b.register(f.Index, b.upgrade.waiting[f.Index], b.upgrade.queued[f.Index]); err != nil {
			return err
		}
	}
	b.step("carry flows again")
	if _, err := b.path.CarryFlows(); err != nil {
		return err
	}
	b.step("exchange programs")
	return b.path.Exchange()
}

// divert puts the programs on an interface that call those in force.
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
		FromPod: b.path.Dispatcher(model.Egress).FD(), ToPod: b.path.Dispatcher(model.Ingress).FD()})
}

// settlePrograms puts the programs of ours on an interface, on whatever hooks
// those of the older layout were.
func (b *Backend) settlePrograms(f link.Found) error {
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

// upgradeProblems says that an upgrade has not come to its end.
func (b *Backend) upgradeProblems() []string {
	if b.path.Older() == "" {
		return nil
	}
	why := errors.New("no policy has been applied yet")
	if b.upgrade.failed != nil {
		why = b.upgrade.failed
	}
	return []string{fmt.Sprintf("pods are still under the programs of layout %s, with the policy that its agent knew last, until those of %s take over: %v",
		b.path.Older(), loader.LayoutVersion, why)}
}
