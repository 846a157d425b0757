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

// egress holds the programs that decide in the host stack, in two forms: one program for all
// netfilter hooks (Linux 6.4), and a filter for each hook. Only one form is loaded.
type egress struct {
	hook    *ebpf.Program
	filters [netfilterHooks]*ebpf.Program
	tunnels tunnelMaps
	spec    *ebpf.CollectionSpec
	options *ebpf.CollectionOptions
}

// tunnelMaps hold the nodes that may send tunneled packets, and their inner sources.
type tunnelMaps struct {
	Nodes    *ebpf.Map `ebpf:"tunnel_nodes"`
	Sources4 *ebpf.Map `ebpf:"tunnel_sources4"`
	Sources6 *ebpf.Map `ebpf:"tunnel_sources6"`
}

// The netfilter hooks that have a filter.
const (
	preRouting = iota
	forward
	localIn
	localOut
	netfilterHooks
)

// hookNames are the names of the hooks in pins, programs and errors.
var hookNames = [netfilterHooks]string{preRouting: "pre_routing", forward: "forward", localIn: "local_in", localOut: "local_out"}

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

// loadEgress prepares the programs that decide in the host stack; they share the maps of the
// other programs. While programs of an older layout that set no marks are in force, they accept
// packets without marks.
func (d *DataPath) loadEgress() error {
	load := bpfobj.LoadEgress
	if d.foreign {
		load = bpfobj.LoadEgressForeign
	}
	spec, err := load()
	if err != nil {
		return fmt.Errorf("read the embedded programs: %w", err)
	}
	if err := setConstants(spec, d.constants); err != nil {
		return err
	}
	if err := spec.Variables["observe_node"].Set(d.observeNode); err != nil {
		return fmt.Errorf("set observe_node: %w", err)
	}
	if err := spec.Variables["handover"].Set(d.older != nil && !d.older.Marks && !d.alone); err != nil {
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
	if err := PinMaps(spec, d.dir, opts.MapReplacements); err != nil {
		return explain(d.dir, err)
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

// loadHook loads the netfilter program, unless it is loaded, and reports whether the kernel
// supports the type.
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

// loadForward loads the filter of FORWARD, unless it is loaded.
func (d *DataPath) loadForward() error {
	e := &d.egress
	if e.filters[forward] != nil {
		return nil
	}
	var programs struct {
		Forward *ebpf.Program `ebpf:"forward_filter"`
	}
	if err := e.spec.LoadAndAssign(&programs, e.options); err != nil {
		return explain(d.dir, err)
	}
	e.filters[forward] = programs.Forward
	return nil
}

// loadFilters loads the filters, unless they are loaded.
func (d *DataPath) loadFilters() error {
	e := &d.egress
	if e.filters[localIn] != nil {
		return nil
	}
	if err := d.loadForward(); err != nil {
		return err
	}
	var programs struct {
		PreRouting *ebpf.Program `ebpf:"pre_routing_filter"`
		LocalIn    *ebpf.Program `ebpf:"local_in_filter"`
		LocalOut   *ebpf.Program `ebpf:"local_out_filter"`
	}
	if err := e.spec.LoadAndAssign(&programs, e.options); err != nil {
		return explain(d.dir, err)
	}
	e.filters[preRouting], e.filters[localIn], e.filters[localOut] = programs.PreRouting, programs.LocalIn, programs.LocalOut
	return nil
}

// overMaps returns options that make the programs of spec use the maps of the other programs.
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

// maps returns the maps that the programs share, by name.
func (d *DataPath) maps() map[string]*ebpf.Map {
	m := &d.objects.PodMaps
	return map[string]*ebpf.Map{
		"endpoints": m.Endpoints, "interfaces": m.Interfaces, "slots": m.Slots, "generation": m.Generation, "locals4": m.Locals4,
		"locals6": m.Locals6, "attachments": m.Attachments,
		"tunnel_kinds": m.TunnelKinds, "node_routes4": m.NodeRoutes4, "node_routes6": m.NodeRoutes6, "owners4": m.Owners4, "owners6": m.Owners6,
		"peers4": m.Peers4, "peers6": m.Peers6,
		"prefixes4": m.Prefixes4, "prefixes6": m.Prefixes6, "ports": m.Ports,
		"verdicts": m.Verdicts, "rows": m.Rows, "tables": m.Tables, "conns4": m.Conns4, "conns6": m.Conns6,
		"conn_index4": m.ConnIndex4, "conn_index6": m.ConnIndex6, "conn_hints4": m.ConnHints4, "conn_hints6": m.ConnHints6,
		"ledger_hands": m.LedgerHands, "flow_shares": m.FlowShares,
		"datagrams": m.Datagrams, "counters": m.Counters, "verdict_counts": m.VerdictCounts,
		"cause_counts": m.CauseCounts, "cause_blocks": m.CauseBlocks, "table_causes": m.TableCauses, "causes": m.Causes,
		"post_dnat": m.PostDnat, "post_dnat_count": m.PostDnatCount, "record_hints": m.RecordHints,
		"events": m.Events, "event_budgets": m.EventBudgets, "event_losses": m.EventLosses, "error_budgets": m.ErrorBudgets,
	}
}

// Shared returns the maps, by name, through which other programs of the node read the tables of
// local pods. The DataPath closes them.
func (d *DataPath) Shared() map[string]*ebpf.Map {
	o := &d.objects
	return map[string]*ebpf.Map{
		"locals4": o.Locals4, "locals6": o.Locals6, "slots": o.Slots, "generation": o.Generation, "peers4": o.Peers4, "peers6": o.Peers6,
		"prefixes4": o.Prefixes4, "prefixes6": o.Prefixes6, "ports": o.PodMaps.Ports, "verdicts": o.Verdicts, "rows": o.Rows,
		"counters": o.PodMaps.Counters, "verdict_counts": o.VerdictCounts,
		"cause_counts": o.CauseCounts, "cause_blocks": o.CauseBlocks, "table_causes": o.TableCauses,
		"events": o.Events, "event_budgets": o.EventBudgets, "event_losses": o.EventLosses,
	}
}

// Constants returns the constants that the programs were loaded with, for other programs that
// share code with them.
func (d *DataPath) Constants() map[string]uint32 { return d.constants }

// Filters are the paths of pinned programs, by netfilter hook.
type Filters struct{ PreRouting, Forward, LocalIn, LocalOut string }

// PinFilters pins the programs that match packets to drop in the host stack. It returns their
// paths, because nftables rules refer to the paths.
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
		// A filter of an earlier build may be pinned there; rules that use it keep it alive.
		if err := d.pins.Keep(paths[hook], filter); err != nil {
			return Filters{}, err
		}
		if err := d.pins.Repair(paths[hook]); err != nil {
			return Filters{}, err
		}
	}
	return Filters{PreRouting: paths[preRouting], Forward: paths[forward], LocalIn: paths[localIn], LocalOut: paths[localOut]}, nil
}

// UnhookEgress detaches what HookEgress attached.
func (d *DataPath) UnhookEgress() error {
	for _, p := range netfilterPlaces {
		if err := d.unpin(p.name, ""); err != nil {
			return err
		}
	}
	return nil
}

// A netfilter link takes the first free priority of this many. The kernel cannot replace the
// program of such a link and allows each priority only once. So a new link is attached beside
// the old one before that is detached.
const netfilterPriorities = 8

// The largest priorities. Links with lower numbers run earlier.
const (
	// beforeFragments is before the host stack reassembles fragments, so that each has a source that its device may have.
	beforeFragments = -450
	// afterDNAT is after DNAT, before the filter rules of others, and before SNAT.
	afterDNAT = -160
)

// netfilterPlaces are the hooks by IP version. LOCAL_OUT is for IPVS, which sends packets there
// that it received on LOCAL_IN.
var netfilterPlaces = []netfilterPlace{
	{"pre_routing4", link.NetfilterProtoIPv4, link.NetfilterInetPreRouting, beforeFragments},
	{"pre_routing6", link.NetfilterProtoIPv6, link.NetfilterInetPreRouting, beforeFragments},
	{"forward4", link.NetfilterProtoIPv4, link.NetfilterInetForward, afterDNAT},
	{"forward6", link.NetfilterProtoIPv6, link.NetfilterInetForward, afterDNAT},
	{"local_in4", link.NetfilterProtoIPv4, link.NetfilterInetLocalIn, afterDNAT},
	{"local_in6", link.NetfilterProtoIPv6, link.NetfilterInetLocalIn, afterDNAT},
	{"local_out4", link.NetfilterProtoIPv4, link.NetfilterInetLocalOut, afterDNAT},
	{"local_out6", link.NetfilterProtoIPv6, link.NetfilterInetLocalOut, afterDNAT},
}

type netfilterPlace struct {
	name     string
	family   link.NetfilterProtocolFamily
	hook     link.NetfilterInetHook
	priority int32 // the largest of those that a link may take
}

// HookEgress attaches the program to the netfilter hooks, in place of an earlier one, and
// reports whether the kernel supports that. It must run before any program leaves verdicts to
// these hooks.
func (d *DataPath) HookEgress() (bool, error) {
	if can, err := d.loadHook(); err != nil || !can {
		return false, err
	}
	for _, p := range netfilterPlaces {
		l, n, err := attachNetfilter(d.egress.hook, p)
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

// attachNetfilter returns the link and the number of priorities that were taken.
func attachNetfilter(program *ebpf.Program, p netfilterPlace) (link.Link, int, error) {
	for n := range netfilterPriorities {
		l, err := link.AttachNetfilter(link.NetfilterOptions{Program: program, ProtocolFamily: p.family, Hook: p.hook, Priority: p.priority - int32(n)})
		if !errors.Is(err, unix.EBUSY) {
			return l, n, err
		}
	}
	return nil, 0, fmt.Errorf("the priorities from %d to %d are taken: %w", p.priority-netfilterPriorities+1, p.priority, unix.EBUSY)
}

// replacePins pins the link under number n, and closes and unpins all other links of the same
// hook.
func (d *DataPath) replacePins(name string, n int, l link.Link) error {
	path := filepath.Join(d.dir, "links", fmt.Sprint(name, "-", n))
	// A pin of this name belongs to a network namespace that is gone, or to another one.
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

// unpin removes all pins of a hook except one.
func (d *DataPath) unpin(name, except string) error {
	pins, err := filepath.Glob(filepath.Join(d.dir, "links", name+"-*"))
	if err != nil {
		return err
	}
	for path := range d.pins { // includes links whose pin another process removed
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
