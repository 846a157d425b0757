// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/denymap"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// Drops counts the packets that the program has dropped since it was first loaded.
type Drops struct {
	// Denied is by IP version: IPv4, IPv6.
	Denied    [2]uint64
	Malformed uint64
}

// objects holds the loaded programs and maps.
type objects struct {
	Uplink   *ebpf.Program `ebpf:"uplink"`
	Counters *ebpf.Map     `ebpf:"xdp_counters"`
	denyMaps
}

// Filter is the loaded program and its maps. It is not safe for concurrent use, except for
// Drops.
type Filter struct {
	links   string // directory; empty in a sandbox
	objects objects
	pins    loader.Pins
	damaged []string
	// instrument is only used in a sandbox.
	instrument []func(*ebpf.CollectionSpec) error
	// entries is the content of the maps; nil after interrupted writes.
	entries *denymap.Entries
}

// Open loads the program with the maps pinned in the existing directory pins, or with new ones.
// pods are the maps of the pods' programs and constants the constants they were loaded with, by
// name. Links are in a directory next to pins. Attached programs stay until Attach.
func Open(pins string, pods map[string]*ebpf.Map, constants map[string]uint32) (*Filter, error) {
	f := &Filter{links: Links(pins), pins: make(loader.Pins)}
	if _, err := Attached(f.links); err != nil { // removes an object that is not a directory
		return nil, err
	}
	if err := os.MkdirAll(f.links, 0o700); err != nil {
		return nil, fmt.Errorf("create directory of links %s: %w", f.links, err)
	}
	if err := f.load(pins, pods, constants); err != nil {
		return nil, err
	}
	return f, nil
}

// Links returns the directory of the pinned links. Unlike the maps, they do not depend on the
// layout version.
func Links(pins string) string { return filepath.Join(filepath.Dir(pins), "xdp") }

// OpenSandbox loads the program with a private deny list, which Close removes, and the given
// maps and constants of pods. It pins nothing. Functions in instrument change the program
// before it is loaded, as loader.Settings.Instrument does.
func OpenSandbox(pods map[string]*ebpf.Map, constants map[string]uint32, instrument ...func(*ebpf.CollectionSpec) error) (*Filter, error) {
	f := &Filter{pins: make(loader.Pins), instrument: instrument}
	if err := f.load("", pods, constants); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *Filter) load(pins string, pods map[string]*ebpf.Map, constants map[string]uint32) error {
	spec, err := bpfobj.LoadXdp()
	if err != nil {
		return fmt.Errorf("read the embedded program: %w", err)
	}
	for name, variable := range spec.Variables {
		if value, ok := constants[name]; ok {
			if err := variable.Set(value); err != nil {
				return fmt.Errorf("set %s: %w", name, err)
			}
		}
	}
	for _, change := range f.instrument {
		if err := change(spec); err != nil {
			return err
		}
	}
	if pins != "" {
		own := maps.Clone(spec.Maps)
		maps.DeleteFunc(own, func(name string, _ *ebpf.MapSpec) bool { _, shared := pods[name]; return shared })
		if f.damaged, err = loader.RemoveUnusable(pins, own); err != nil {
			return err
		}
	}
	opts := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: pins}, MapReplacements: make(map[string]*ebpf.Map)}
	for name, m := range spec.Maps {
		if shared, ok := pods[name]; ok {
			m.MaxEntries = shared.MaxEntries() // the loader of pods decides the size
			opts.MapReplacements[name] = shared
		}
		if pins == "" {
			m.Pinning = ebpf.PinNone
		}
	}
	if err := loader.PinMaps(spec, pins, opts.MapReplacements); err != nil {
		return err
	}
	if err := spec.LoadAndAssign(&f.objects, opts); err != nil {
		return fmt.Errorf("load the XDP program: %w", err)
	}
	if f.entries, err = f.objects.read(); err != nil {
		f.Close()
		return err
	}
	if pins == "" {
		return nil
	}
	for name, m := range f.objects.named() {
		if err := f.pins.Keep(filepath.Join(pins, name), m); err != nil {
			f.Close()
			return err
		}
	}
	return nil
}

// Close releases all descriptors. Attached programs stay in force.
func (f *Filter) Close() error {
	errs := []error{f.pins.Close(), f.objects.Uplink.Close(), f.objects.Counters.Close()}
	for _, m := range f.objects.all() {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// Capacity returns the number of entries that the maps can hold.
func (f *Filter) Capacity() denymap.Capacity {
	o := &f.objects
	return denymap.Capacity{Singles: int(min(o.Singles4.MaxEntries(), o.Singles6.MaxEntries())),
		Prefixes: int(min(o.Prefixes4.MaxEntries(), o.Prefixes6.MaxEntries()))}
}

// Apply makes the maps hold the entries. Sources that both the old and the new entries deny are
// denied throughout. If the entries do not fit, nothing changes. After another error it may be
// called again.
func (f *Filter) Apply(want *denymap.Entries) error {
	if err := want.Fits(f.Capacity()); err != nil {
		return err
	}
	if f.entries == nil {
		have, err := f.objects.read()
		if err != nil {
			return err
		}
		f.entries = have
	}
	w, have := denymap.Diff(f.entries, want), f.entries
	f.entries = nil
	err := f.objects.writePrefilter(denymap.Union(have, want).Prefilters())
	if err == nil {
		err = f.objects.execute(w)
	}
	if err == nil {
		err = f.objects.writePrefilter(want.Prefilters())
	}
	if err != nil {
		return fmt.Errorf("write deny list: %w", err)
	}
	f.entries = want
	return nil
}

// Damaged describes the pinned maps that were unusable and were recreated.
func (f *Filter) Damaged() []string { return f.damaged }

// Entries returns the entries in force; nil if unknown.
func (f *Filter) Entries() *denymap.Entries { return f.entries }

// Drops reads the counters.
func (f *Filter) Drops() (Drops, error) {
	var totals [3]uint64
	for id := range totals {
		var cpus []bpfobj.XdpCounter
		if err := f.objects.Counters.Lookup(uint32(id), &cpus); err != nil {
			return Drops{}, fmt.Errorf("read counter %d of the XDP program: %w", id, err)
		}
		for _, c := range cpus {
			totals[id] += c.Packets
		}
	}
	return Drops{Denied: [2]uint64{totals[0], totals[1]}, Malformed: totals[2]}, nil
}

// Program returns the loaded program. The Filter closes it.
func (f *Filter) Program() *ebpf.Program { return f.objects.Uplink }

// Run sends an Ethernet frame through the program by BPF_PROG_TEST_RUN and returns whether it
// passes.
func (f *Filter) Run(frame []byte) (bool, error) { return f.RunPieces(frame, len(frame)) }

// RunPieces is Run for a frame in several buffers, the first of which has that many bytes
// (Linux 6.18).
func (f *Filter) RunPieces(frame []byte, first int) (bool, error) {
	run := ebpf.RunOptions{Data: frame}
	if first < len(frame) {
		run.Context = struct{ Data, DataEnd, DataMeta, Ingress, Queue, Egress uint32 }{DataEnd: uint32(first)} // struct xdp_md
	}
	code, err := f.objects.Uplink.Run(&run)
	if err != nil {
		return false, fmt.Errorf("run the XDP program: %w", err)
	}
	const dropped, passed = 1, 2 // XDP_DROP, XDP_PASS
	if code != dropped && code != passed {
		return false, fmt.Errorf("the XDP program returned %d, neither pass nor drop", code)
	}
	return code == passed, nil
}

// ReadPinned returns the deny list in force, from the maps pinned in a directory, or nil if
// there are none.
func ReadPinned(pins string) (*denymap.Entries, error) {
	var m denyMaps
	defer func() {
		for _, open := range m.all() {
			open.Close()
		}
	}()
	for name, at := range map[string]**ebpf.Map{"deny4": &m.Singles4, "deny6": &m.Singles6,
		"deny_prefixes4": &m.Prefixes4, "deny_prefixes6": &m.Prefixes6} {
		var err error
		*at, err = ebpf.LoadPinnedMap(filepath.Join(pins, name), &ebpf.LoadPinOptions{ReadOnly: true})
		if errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("open map %s: %w", name, err)
		}
	}
	return m.read()
}
