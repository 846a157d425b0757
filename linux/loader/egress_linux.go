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

// egress are the programs that decide in the stack, in both forms: one program for all
// hooks (Linux 6.4), and a filter for each. Only the form in use is loaded.
type egress struct {
	hook    *ebpf.Program
	filters [netfilterHooks]*ebpf.Program
	tunnels tunnelMaps
	spec    *ebpf.CollectionSpec
	options *ebpf.CollectionOptions
}

// tunnelMaps say which node sends what in tunnels.
type tunnelMaps struct {
	Nodes    *ebpf.Map `ebpf:"tunnel_nodes"`
	Sources4 *ebpf.Map `ebpf:"tunnel_sources4"`
	Sources6 *ebpf.Map `ebpf:"tunnel_sources6"`
}

// The hooks of netfilter that have a filter.
const (
	forward = iota
	localIn
	localOut
	netfilterHooks
)

// hookNames are the hooks as pins, programs and errors name them.
var hookNames = [netfilterHooks]string{forward: "forward", localIn: "local_in", localOut: "local_out"}

func (e *egress) close() error {
	var errs []error
	errs = append(errs, e.hook.Close()) // may be nil
	for _, p := range e.filters {
		errs = append(errs, p.Close())
	}
	for _, m := range []*ebpf.Map{e.tunnels.Nodes, e.tunnels.Sources4, e.tunnels.Sources6} {
		errs = append(errs, m.Close()) // may be nil
	}
	return errors.Join(errs...)
}

// egressFilter is the name of the filter's pin in layouts up to v2.
const egressFilter = "egress_filter"

// loadEgress prepares the programs that decide in the stack, over the maps of the
// others. While an older layout is in force whose programs leave no marks, they take
// packets without marks for theirs.
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
	if err := d.instrumented(spec); err != nil {
		return err
	}
	opts := d.overMaps(spec)
	if opts.Maps.PinPath = d.dir; d.dir == "" {
		for _, m := range spec.Maps {
			m.Pinning = ebpf.PinNone
		}
	}
	if err := spec.LoadAndAssign(&d.egress.tunnels, opts); err != nil {
		return explain(d.dir, err)
	}
	t := &d.egress.tunnels
	for name, m := range map[string]*ebpf.Map{"tunnel_nodes": t.Nodes, "tunnel_sources4": t.Sources4, "tunnel_sources6": t.Sources6} {
		opts.MapReplacements[name] = m
		spec.Maps[name].Pinning = ebpf.PinNone
	}
	d.egress.spec, d.egress.options = spec, opts
	return nil
}

// loadHook loads the program for the hooks, unless it is, and reports whether the
// kernel has the type.
func (d *DataPath) loadHook() (bool, error) {
	e := &d.egress
	if e.hook != nil {
		return true, nil
	}
	if err := features.HaveProgramType(ebpf.Netfilter); errors.Is(err, ebpf.ErrNotSupported) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("probe netfilter programs: %w", err)
	}
	var programs struct {
		Hook *ebpf.Program `ebpf:"hook"`
	}
	if err := e.spec.LoadAndAssign(&programs, e.options); err != nil {
		return false, explain(d.dir, err)
	}
	e.hook = programs.Hook
	return true, nil
}

// loadFilters loads the filters, unless they are.
func (d *DataPath) loadFilters() error {
	e := &d.egress
	if e.filters[forward] != nil {
		return nil
	}
	var programs struct {
		Forward  *ebpf.Program `ebpf:"forward_filter"`
		LocalIn  *ebpf.Program `ebpf:"local_in_filter"`
		LocalOut *ebpf.Program `ebpf:"local_out_filter"`
	}
	if err := e.spec.LoadAndAssign(&programs, e.options); err != nil {
		return explain(d.dir, err)
	}
	e.filters = [...]*ebpf.Program{programs.Forward, programs.LocalIn, programs.LocalOut}
	return nil
}

// overMaps has a spec's programs loaded over those of the maps of the others that
// they have.
func (d *DataPath) overMaps(spec *ebpf.CollectionSpec) *ebpf.CollectionOptions {
	opts := &ebpf.CollectionOptions{MapReplacements: make(map[string]*ebpf.Map)}
	for name, m := range d.maps() {
		if at, ok := spec.Maps[name]; ok {
			opts.MapReplacements[name] = m
			at.Pinning, at.MaxEntries = ebpf.PinNone, m.MaxEntries()
		}
	}
	return opts
}

// maps are those that the programs share, by name.
func (d *DataPath) maps() map[string]*ebpf.Map {
	m := &d.objects.PodMaps
	return map[string]*ebpf.Map{
		"endpoints": m.Endpoints, "interfaces": m.Interfaces, "slots": m.Slots, "stages": m.Stages, "locals4": m.Locals4, "locals6": m.Locals6, "attachments": m.Attachments,
		"ways4": m.Ways4, "ways6": m.Ways6, "owners4": m.Owners4, "owners6": m.Owners6, "peers4": m.Peers4, "peers6": m.Peers6, "prefixes4": m.Prefixes4, "prefixes6": m.Prefixes6, "ports": m.Ports,
		"verdicts": m.Verdicts, "rows": m.Rows, "tables": m.Tables, "conns4": m.Conns4, "conns6": m.Conns6,
		"ledger4": m.Ledger4, "ledger6": m.Ledger6, "ledger_hands": m.LedgerHands, "flow_shares": m.FlowShares,
		"datagrams": m.Datagrams, "counters": m.Counters, "pending": m.Pending, "pending_count": m.PendingCount,
		"events": m.Events, "event_budgets": m.EventBudgets, "event_losses": m.EventLosses, "error_budgets": m.ErrorBudgets,
	}
}

// Filters are paths of pinned programs, by the hook of netfilter that they are for.
type Filters struct{ Forward, LocalIn, LocalOut string }

// PinFilters pins the programs that match what is to be dropped in the stack, and
// returns where, by hook: rules name them by that.
func (d *DataPath) PinFilters() (Filters, error) {
	var paths [netfilterHooks]string
	if err := d.loadFilters(); err != nil {
		return Filters{}, err
	}
	for hook, filter := range d.egress.filters {
		paths[hook] = filepath.Join(d.dir, hookNames[hook]+"_filter")
		if kept, ok := d.pins[paths[hook]]; ok && kept.of == pinnable(filter) && inode(paths[hook]) == kept.inode {
			continue
		}
		// The one of an earlier build may be there; rules keep it.
		if err := d.pins.Keep(paths[hook], filter); err != nil {
			return Filters{}, err
		}
		if err := d.pins.Repair(paths[hook]); err != nil {
			return Filters{}, err
		}
	}
	return Filters{Forward: paths[forward], LocalIn: paths[localIn], LocalOut: paths[localOut]}, nil
}

// UnhookEgress takes off what HookEgress put there.
func (d *DataPath) UnhookEgress() error {
	for _, p := range netfilterPlaces {
		if err := d.unpin(p.name, ""); err != nil {
			return err
		}
	}
	return nil
}

// The links of netfilter are at the first free one of so many priorities: the kernel
// exchanges no program of such a link and lets no two have one priority, so that a
// new one is put beside the old before that goes.
const netfilterPriorities = 8

// netfilterPriority is the first of them: before the filters of others, behind the
// translation of destinations, and before that of sources.
const netfilterPriority = -160

// netfilterPlaces are the hooks by family. LOCAL_OUT is for IPVS, which sends there what
// it has taken on LOCAL_IN.
var netfilterPlaces = []struct {
	name   string
	family link.NetfilterProtocolFamily
	hook   link.NetfilterInetHook
}{
	{"forward4", link.NetfilterProtoIPv4, link.NetfilterInetForward},
	{"forward6", link.NetfilterProtoIPv6, link.NetfilterInetForward},
	{"local_in4", link.NetfilterProtoIPv4, link.NetfilterInetLocalIn},
	{"local_in6", link.NetfilterProtoIPv6, link.NetfilterInetLocalIn},
	{"local_out4", link.NetfilterProtoIPv4, link.NetfilterInetLocalOut},
	{"local_out6", link.NetfilterProtoIPv6, link.NetfilterInetLocalOut},
}

// HookEgress puts the program on the hooks, in place of what is there, and reports
// whether this kernel can. It has to be there before a program leaves them
// decisions.
func (d *DataPath) HookEgress() (bool, error) {
	if can, err := d.loadHook(); err != nil || !can {
		return false, err
	}
	for _, p := range netfilterPlaces {
		l, n, err := attachNetfilter(d.egress.hook, p.family, p.hook)
		if errors.Is(err, ebpf.ErrNotSupported) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("attach %s: %w", p.name, err)
		}
		if err := d.replacePins(p.name, n, l); err != nil {
			return false, err
		}
	}
	return true, nil
}

// attachNetfilter returns the link and how many priorities were taken.
func attachNetfilter(p *ebpf.Program, family link.NetfilterProtocolFamily, hook link.NetfilterInetHook) (link.Link, int, error) {
	for n := range netfilterPriorities {
		l, err := link.AttachNetfilter(link.NetfilterOptions{Program: p, ProtocolFamily: family, Hook: hook, Priority: int32(netfilterPriority - n)})
		if !errors.Is(err, unix.EBUSY) {
			return l, n, err
		}
	}
	return nil, 0, fmt.Errorf("the priorities from %d to %d are taken: %w", netfilterPriority-netfilterPriorities+1, netfilterPriority, unix.EBUSY)
}

// replacePins pins the link with a number and lets go of all others of the same place.
func (d *DataPath) replacePins(name string, n int, l link.Link) error {
	path := filepath.Join(d.dir, "links", fmt.Sprint(name, "-", n))
	// One of this name was of a namespace that is gone, or of another.
	if err := os.RemoveAll(path); err != nil {
		l.Close()
		return fmt.Errorf("remove stale pin %s: %w", path, err)
	}
	if err := l.Pin(path); err != nil {
		l.Close()
		return fmt.Errorf("pin %s: %w", path, err)
	}
	if err := d.pins.Keep(path, l); err != nil {
		return err
	}
	return d.unpin(name, path)
}

// unpin removes the pins of a place, but one.
func (d *DataPath) unpin(name, except string) error {
	pins, err := filepath.Glob(filepath.Join(d.dir, "links", name+"-*"))
	if err != nil {
		return err
	}
	for path := range d.pins { // one whose file others have removed is held all the same
		if strings.HasPrefix(path, filepath.Join(d.dir, "links", name+"-")) {
			pins = append(pins, path)
		}
	}
	for _, p := range pins {
		if p == except {
			continue
		}
		if err := d.pins.Drop(p); err != nil {
			return err
		}
	}
	return nil
}
