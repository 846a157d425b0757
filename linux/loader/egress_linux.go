// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// egress is the program that decides behind the stack's translation, in its two
// forms. hook is nil where the kernel does not have the type (Linux 6.4 has).
type egress struct {
	hook, filter *ebpf.Program
}

func (e *egress) close() error {
	var errs []error
	for _, p := range []*ebpf.Program{e.hook, e.filter} {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	return errors.Join(errs...)
}

// egressFilter is the name of the filter's pin.
const egressFilter = "egress_filter"

// loadEgress loads it over the maps of the other programs. While an older layout
// is in force whose programs leave no marks, it takes packets without marks for
// theirs.
func (d *DataPath) loadEgress() error {
	spec, err := bpfobj.LoadEgress()
	if err != nil {
		return fmt.Errorf("read the embedded programs: %w", err)
	}
	if err := setConstants(spec, d.constants); err != nil {
		return err
	}
	if err := spec.Variables["handover"].Set(d.older != nil && !d.older.marks && !d.older.alone); err != nil {
		return fmt.Errorf("set handover: %w", err)
	}
	opts := d.overMaps(spec)
	var filter struct {
		Program *ebpf.Program `ebpf:"egress_filter"`
	}
	if err := spec.LoadAndAssign(&filter, opts); err != nil {
		return explain(d.dir, err)
	}
	d.egress.filter = filter.Program
	if err := features.HaveProgramType(ebpf.Netfilter); errors.Is(err, ebpf.ErrNotSupported) {
		return nil
	} else if err != nil {
		return fmt.Errorf("ask for programs of netfilter: %w", err)
	}
	var hook struct {
		Program *ebpf.Program `ebpf:"egress"`
	}
	if err := spec.LoadAndAssign(&hook, opts); err != nil {
		return explain(d.dir, err)
	}
	d.egress.hook = hook.Program
	return nil
}

// overMaps has a spec's programs loaded over the maps of the others.
func (d *DataPath) overMaps(spec *ebpf.CollectionSpec) *ebpf.CollectionOptions {
	opts := &ebpf.CollectionOptions{MapReplacements: d.maps()}
	for name, m := range opts.MapReplacements {
		spec.Maps[name].Pinning = ebpf.PinNone
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	return opts
}

// maps are those that the programs share, by name.
func (d *DataPath) maps() map[string]*ebpf.Map {
	m := &d.objects.PodMaps
	return map[string]*ebpf.Map{
		"endpoints": m.Endpoints, "interfaces": m.Interfaces, "slots": m.Slots, "stages": m.Stages, "locals4": m.Locals4, "locals6": m.Locals6, "attachments": m.Attachments,
		"ways4": m.Ways4, "ways6": m.Ways6, "peers4": m.Peers4, "peers6": m.Peers6, "prefixes4": m.Prefixes4, "prefixes6": m.Prefixes6, "ports": m.Ports,
		"verdicts": m.Verdicts, "rows": m.Rows, "tables": m.Tables, "conns4": m.Conns4, "conns6": m.Conns6,
		"fragments": m.Fragments, "counters": m.Counters, "pending": m.Pending, "pending_count": m.PendingCount,
		"events": m.Events, "event_budgets": m.EventBudgets, "event_losses": m.EventLosses,
	}
}

// PinEgressFilter pins the program that matches what is to be dropped behind
// the translation, and returns where: rules name it by that.
func (d *DataPath) PinEgressFilter() (string, error) {
	path := filepath.Join(d.dir, egressFilter)
	if d.egress.filter.IsPinned() {
		return path, nil
	}
	// The one of an earlier build; rules that are there keep it.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("remove pin %s: %w", path, err)
	}
	if err := d.egress.filter.Pin(path); err != nil {
		return "", fmt.Errorf("pin %s: %w", path, err)
	}
	return path, nil
}

// UnhookEgress takes off what HookEgress put there.
func (d *DataPath) UnhookEgress() error {
	for _, p := range egressPlaces {
		if err := d.unpin(p.name, ""); err != nil {
			return err
		}
	}
	return nil
}

// The links of netfilter are at the first free of these priorities: before the
// filters of others, and behind the translation, which is on earlier hooks. The
// kernel exchanges no program of such a link and lets no two have one priority,
// so that a new one is put beside the old before that goes.
const (
	egressPriority   = -160
	egressPriorities = 8
)

var egressPlaces = []struct {
	name   string
	family link.NetfilterProtocolFamily
	hook   link.NetfilterInetHook
}{
	{"egress-forward4-", link.NetfilterProtoIPv4, link.NetfilterInetForward},
	{"egress-forward6-", link.NetfilterProtoIPv6, link.NetfilterInetForward},
	{"egress-input4-", link.NetfilterProtoIPv4, link.NetfilterInetLocalIn},
	{"egress-input6-", link.NetfilterProtoIPv6, link.NetfilterInetLocalIn},
}

// HookEgress puts the program for egress behind the translation, in place of
// what is there, and reports whether this kernel can. It has to be there before
// a program leaves it decisions.
func (d *DataPath) HookEgress() (bool, error) {
	if d.egress.hook == nil {
		return false, nil
	}
	for _, p := range egressPlaces {
		l, priority, err := attachEgress(d.egress.hook, p.family, p.hook)
		if errors.Is(err, ebpf.ErrNotSupported) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("attach %s: %w", strings.TrimSuffix(p.name, "-"), err)
		}
		err = d.replacePins(p.name, priority, l)
		l.Close()
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

func attachEgress(p *ebpf.Program, family link.NetfilterProtocolFamily, hook link.NetfilterInetHook) (link.Link, int, error) {
	for n := range egressPriorities {
		priority := egressPriority - n
		l, err := link.AttachNetfilter(link.NetfilterOptions{Program: p, ProtocolFamily: family, Hook: hook, Priority: int32(priority)})
		if !errors.Is(err, unix.EBUSY) {
			return l, priority, err
		}
	}
	return nil, 0, fmt.Errorf("the priorities from %d to %d are taken: %w", egressPriority-egressPriorities+1, egressPriority, unix.EBUSY)
}

// replacePins pins a link and lets go of all others of the same place.
func (d *DataPath) replacePins(name string, priority int, l link.Link) error {
	path := filepath.Join(d.dir, "links", fmt.Sprint(name, -priority))
	// One of this name was of a namespace that is gone, or of another.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove stale pin %s: %w", path, err)
	}
	if err := l.Pin(path); err != nil {
		return fmt.Errorf("pin %s: %w", path, err)
	}
	return d.unpin(name, path)
}

// unpin removes the pins of a place, but one.
func (d *DataPath) unpin(name, except string) error {
	pins, err := filepath.Glob(filepath.Join(d.dir, "links", name+"*"))
	if err != nil {
		return err
	}
	for _, p := range pins {
		if p == except {
			continue
		}
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove pin %s: %w", p, err)
		}
	}
	return nil
}
