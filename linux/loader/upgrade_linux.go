// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/migrate"
)

// Older returns the name of the layout that is still in force next to ours, "" if there is none.
func (d *DataPath) Older() string {
	if d.older == nil {
		return ""
	}
	return d.older.Name
}

// OlderEndpoints returns the interfaces that programs of the older layout are or were attached
// to, by index, with their endpoints.
func (d *DataPath) OlderEndpoints() map[int]bpfobj.PodEndpoint {
	if d.older == nil {
		return nil
	}
	return d.older.Endpoints
}

// OlderFilters returns the paths of the pinned filters of the older layout. nftables rules must
// match them while the older programs leave verdicts to them. Empty paths mean that there are
// none.
func (d *DataPath) OlderFilters() (f Filters) {
	if d.older == nil || d.alone {
		return f
	}
	pinned := func(names ...string) string {
		for _, name := range names {
			path := filepath.Join(d.older.Dir, name)
			if _, err := os.Lstat(path); err == nil {
				return path
			}
		}
		return ""
	}
	// Up to v2, one filter served both hooks.
	return Filters{
		PreRouting: pinned(hookNames[preRouting] + "_filter"),
		Forward:    pinned(hookNames[forward]+"_filter", egressFilter),
		LocalIn:    pinned(hookNames[localIn]+"_filter", egressFilter),
		LocalOut:   pinned(hookNames[localOut] + "_filter"),
	}
}

// OlderLinked reports whether links of the older layout are attached to an interface.
func (d *DataPath) OlderLinked(name string) (bool, error) {
	if d.older == nil {
		return false, nil
	}
	pins, err := filepath.Glob(filepath.Join(d.older.Dir, "links", name+"-*"))
	return slices.ContainsFunc(pins, func(p string) bool {
		return slices.ContainsFunc(d.hooks(), func(h hook) bool { return filepath.Base(p) == name+h.suffix })
	}), err
}

// OlderAttached lists the interfaces that have a pinned link of the older layout, and whether both programs are attached.
func (d *DataPath) OlderAttached() (map[string]bool, error) {
	if d.older == nil {
		return nil, nil
	}
	return d.attachedIn(d.older.Dir)
}

// openSwitch prepares the switch from the programs of an older layout to ours, or removes what
// an earlier upgrade left.
func (d *DataPath) openSwitch() (err error) {
	if d.older == nil {
		return migrate.DropSwitch(d.dir)
	}
	d.dispatch, err = migrate.OpenSwitch(d.dir, [2]*ebpf.Program{model.Egress: d.Program(model.Egress), model.Ingress: d.Program(model.Ingress)})
	return err
}

// Switch returns the switch of an upgrade, which is in progress. The DataPath closes it.
func (d *DataPath) Switch() *migrate.Switch { return d.dispatch }

// NameOlder records the programs of the older layout on an interface, unless they are recorded
// already. It takes those of the links or, without links, the given ones: kernel IDs by
// direction, 0 for none. Call it before any Divert.
func (d *DataPath) NameOlder(name string, classifiers [2]uint32) error {
	known, err := d.dispatch.KnowsOlder()
	if err != nil || known {
		return err
	}
	ids := classifiers
	for _, h := range d.hooks() {
		l, err := link.LoadPinnedLink(filepath.Join(d.older.Dir, "links", name+h.suffix), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open pinned link of %s: %w", name, err)
		}
		info, err := l.Info()
		l.Close()
		if err != nil {
			return fmt.Errorf("inspect pinned link of %s: %w", name, err)
		}
		ids[h.dir] = uint32(info.Program)
	}
	if ids[0] == 0 || ids[1] == 0 {
		return nil // another interface may have both
	}
	if err := d.dispatch.NameOlder(ids); err != nil {
		return fmt.Errorf("layout %s: %w", d.older.Name, err)
	}
	return nil
}

// Divert replaces the programs of the older links on an interface with those of the Switch. It
// reports whether there are links for both directions.
func (d *DataPath) Divert(name string) (bool, error) {
	n := 0
	for _, h := range d.hooks() {
		path := filepath.Join(d.older.Dir, "links", name+h.suffix)
		if err := d.adoptLink(path, h.attach, d.dispatch.Dispatcher(h.dir)); err != nil {
			return false, err
		}
		if _, err := os.Lstat(path); err == nil {
			n++
		}
	}
	return n == len(d.hooks()), nil
}

// MigrateFlows copies the flows of the older layout, if there is one. It may be repeated. It
// returns the counts of all calls.
func (d *DataPath) MigrateFlows() (migrate.Migrated, error) {
	if d.older == nil {
		return migrate.Migrated{}, nil
	}
	limits, err := d.readLimits()
	if err != nil {
		return migrate.Migrated{}, err
	}
	return d.older.MigrateFlows(migrate.Target{Adopt: d.objects.AdoptFlow, Limits: limits, Slots: d.older.Slots()})
}

// TakeLinks gives the links of the older layout on an interface our programs, by one atomic
// replacement each, and moves their pins to our layout. It detaches those beside links of ours.
// Without such links it does nothing.
func (d *DataPath) TakeLinks(name string) error {
	if d.older == nil {
		return nil
	}
	for _, h := range d.hooks() {
		was := filepath.Join(d.older.Dir, "links", name+h.suffix)
		if _, err := os.Lstat(was); errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return fmt.Errorf("find the pinned link %s: %w", was, err)
		}
		if _, err := os.Lstat(d.pin(name, h)); err == nil {
			if err := d.pins.Drop(was); err != nil {
				return err
			}
			continue
		}
		if err := d.adoptLink(was, h.attach, h.prog); err != nil {
			return err
		}
		if err := d.pins.forget(was); err != nil { // the pin keeps the link attached
			return err
		}
		// The pin disappears with the interface.
		if err := os.Rename(was, d.pin(name, h)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("move the pinned link %s: %w", was, err)
		}
	}
	return nil
}

// DecideAlone must be called when our programs are on every interface. From then on every
// packet of a pod must have a mark of ours, as soon as HookEgress has run again.
func (d *DataPath) DecideAlone() error {
	if d.older == nil || d.alone {
		return nil
	}
	d.alone = true
	was := d.egress
	d.egress = egress{}
	if err := d.loadEgress(); err != nil {
		d.alone, d.egress = false, was
		return err
	}
	return errors.Join(d.keepMaps(), was.close())
}

// Alone reports whether no program of an older layout is needed any more.
func (d *DataPath) Alone() bool { return d.older == nil || d.alone }

// RemoveOlder removes the older layout.
func (d *DataPath) RemoveOlder() error {
	if d.older == nil {
		return nil
	}
	was := d.older
	if err := was.Retire(); err != nil {
		return err
	}
	err := was.Close()
	for path := range d.pins {
		if strings.HasPrefix(path, was.Dir+"/") {
			err = errors.Join(err, d.pins.forget(path))
		}
	}
	d.older = nil
	err = errors.Join(err, migrate.DropSwitch(d.dir), d.dispatch.Close(), migrate.RemoveRetired(filepath.Dir(d.dir)))
	d.dispatch = nil
	// No other program reads records any more.
	if alone := d.objects.DecidesAlone.Set(uint32(1)); alone != nil {
		err = errors.Join(err, fmt.Errorf("set decides_alone: %w", alone))
	}
	return err
}
