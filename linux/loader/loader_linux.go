// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/migrate"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// LayoutVersion names the shape and meaning of the maps. It changes whenever an older program
// or agent would misread them.
const LayoutVersion = "v4"

// DataPath holds the loaded programs and their maps. It is not safe for concurrent use, except
// for Counters.
type DataPath struct {
	dir     string
	objects bpfobj.PodObjects
	// queries is true if the programs can query connection tracking; tracking is the result of the
	// last probe.
	queries      bool
	tracking     Tracking
	probe        func() Tracking
	egress       egress
	foreign      bool // another CNI plugin made the interfaces of the pods
	observeNode  bool // all pods are observed
	slots        *ebpf.Memory
	ports        *ebpf.Memory
	generationAt *ebpf.Memory // the map of the generation
	shares       *ebpf.Memory
	interfaces   interfaces
	generation   uint32             // generation of the last step that began
	single       []*ebpf.Map        // maps without batch support in this kernel
	running      bpfobj.PodEndpoint // endpoint of the last Run
	// older is nil unless an upgrade is in progress.
	older *migrate.Layout
	// alone is true if our programs are attached everywhere.
	alone    bool
	dispatch *migrate.Switch
	// constants are the constants that the programs were loaded with.
	constants map[string]uint32
	// pins are the pinned objects. It owns the links.
	pins Pins
	// want is the content that this process has written to maps that no State describes.
	want intent
	// numbers caches the kernel IDs of programs.
	numbers map[*ebpf.Program]ebpf.ProgramID
	// verdictOf is the counter of the verdict that a number of a cause belongs to. counting guards it, and keeps
	// the sum of all causes while a number gets another meaning.
	verdictOf map[uint32]int
	counting  sync.Mutex
	// slotsUsed bounds the slots whose counts may not be zero. limiting guards it, and keeps the sum of discarded events
	// while a slot is reset.
	slotsUsed uint32
	limiting  sync.Mutex
	// damaged describes the faults of the pins at the start.
	damaged []string
	// instrument comes from the settings of a sandbox.
	instrument func(*ebpf.CollectionSpec) error
}

// Open loads the programs. It reuses the maps pinned under dir, a directory on a bpffs, and
// creates the missing ones. Attached programs stay until HookEgress and AdoptLinks replace
// them, in this order. Open replaces maps of the wrong size with copies. An older layout stays
// in force, see Older.
func Open(dir string, s Settings, sizes Sizes) (_ *DataPath, err error) {
	d := &DataPath{dir: filepath.Join(dir, LayoutVersion), foreign: s.Foreign, observeNode: s.ObserveNode, probe: s.probe(),
		pins: make(Pins), numbers: make(map[*ebpf.Program]ebpf.ProgramID)}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	spec, err := s.programs()
	if err != nil {
		return nil, fmt.Errorf("read the embedded programs: %w", err)
	}
	if err := d.prepare(dir, spec); err != nil {
		return nil, err
	}
	copies, err := sizes.size(spec, d.dir, d.older)
	if err != nil {
		return nil, err
	}
	if d.constants, err = s.constants(spec); err != nil {
		return nil, err
	}
	variables := map[string]uint32{"forward_direct": 0, "decides_alone": 0}
	if s.Direct {
		variables["forward_direct"] = 1
	}
	if d.older == nil {
		variables["decides_alone"] = 1
	}
	if err := errors.Join(setConstants(spec, d.constants), setConstants(spec, variables)); err != nil {
		return nil, err
	}
	options := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: d.dir}, MapReplacements: make(map[string]*ebpf.Map)}
	for _, c := range copies {
		defer c.Close() // the programs hold their own references
		options.MapReplacements[c.name] = c.Map
	}
	err = PinMaps(spec, d.dir, options.MapReplacements)
	if err == nil {
		err = d.load(spec, options)
	}
	if err != nil {
		return nil, explain(d.dir, err)
	}
	for _, c := range copies {
		if err := c.replace(d.dir); err != nil {
			return nil, err
		}
	}
	if err := d.shareMemory(); err != nil {
		return nil, err
	}
	if err := d.loadEgress(); err != nil {
		return nil, err
	}
	if err := d.keepMaps(); err != nil {
		return nil, err
	}
	return d, d.openSwitch()
}

// prepare examines what other versions left, and creates the directory of this version. If it
// returns an error, it has created nothing: the other version must find the directory
// unchanged.
func (d *DataPath) prepare(dir string, spec *ebpf.CollectionSpec) error {
	name, err := migrate.Find(dir, LayoutVersion)
	if err == nil && name != "" {
		d.older, err = migrate.Open(dir, name, LayoutVersion, spec)
	}
	if err != nil {
		return err
	}
	if err := prepareDirectory(d.dir); err != nil {
		return err
	}
	if err := d.repairDirectory(spec); err != nil {
		return err
	}
	if d.older != nil {
		if err := d.older.Share(d.dir, spec); err != nil {
			return err
		}
	}
	return migrate.RemoveRetired(dir)
}

// shareMemory maps the memory of the maps that are written word by word.
func (d *DataPath) shareMemory() error {
	for _, m := range []struct {
		of *ebpf.Map
		to **ebpf.Memory
	}{{d.objects.Slots, &d.slots}, {d.objects.PodMaps.Ports, &d.ports}, {d.objects.Generation, &d.generationAt}, {d.objects.FlowShares, &d.shares}} {
		memory, err := m.of.Memory()
		if err != nil {
			return fmt.Errorf("map the memory of %s: %w", m.of, err)
		}
		*m.to = memory
	}
	var buf [4]byte
	if _, err := d.generationAt.ReadAt(buf[:], 0); err != nil {
		return fmt.Errorf("read the generation of the maps: %w", err)
	}
	d.generation = binary.NativeEndian.Uint32(buf[:])
	return errors.Join(d.knowCauses(), d.findSlots(), d.openInterfaces())
}

// prepareDirectory creates the directory on a bpffs, readable only by root.
func prepareDirectory(dir string) error {
	var fs unix.Statfs_t
	for at := dir; ; at = filepath.Dir(at) {
		err := unix.Statfs(at, &fs)
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrNotExist) || at == filepath.Dir(at) {
			return fmt.Errorf("inspect bpffs directory %s: %w", at, err)
		}
	}
	if fs.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("bpffs directory %s is not on a bpffs: run 'mount -t bpf -o mode=700 bpf /sys/fs/bpf' or give --bpffs another directory", dir)
	}
	for _, at := range []string{filepath.Dir(dir), dir, filepath.Join(dir, "links")} {
		if err := removeFiles(at); err != nil {
			return fmt.Errorf("remove the file at the path of directory %s: %w", at, err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "links"), 0o700); err != nil {
		return fmt.Errorf("create bpffs directory %s: %w: are you root?", dir, err)
	}
	return nil
}

// explain adds the remedy to an error of the kernel.
func explain(dir string, err error) error {
	var verifier *ebpf.VerifierError
	switch {
	case errors.Is(err, ebpf.ErrMapIncompatible):
		return fmt.Errorf("load programs: %w: the maps pinned under %s were made by an incompatible build; "+
			"drain the node and remove that directory", err, dir)
	case errors.As(err, &verifier):
		return fmt.Errorf("load programs: the kernel's verifier rejected them: %w", err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("load programs: %w: needs root, or CAP_BPF and CAP_NET_ADMIN", err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("load programs: %w: this kernel is too old, Linux 6.1 is the oldest that is known to work", err)
	}
	return fmt.Errorf("load programs: %w", err)
}

// Close releases all descriptors. Attached programs stay in force.
func (d *DataPath) Close() error {
	return errors.Join(d.pins.Close(), d.objects.Close(), d.egress.close(), d.older.Close(), d.dispatch.Close())
}

// Capacity returns the number of entries that the maps can hold.
func (d *DataPath) Capacity() policymap.Capacity {
	o := &d.objects
	return policymap.Capacity{
		Slots:  int(min(o.Slots.MaxEntries(), o.Endpoints.MaxEntries())),
		Peers4: int(o.Peers4.MaxEntries()), Peers6: int(o.Peers6.MaxEntries()),
		Prefixes4: int(o.Prefixes4.MaxEntries()), Prefixes6: int(o.Prefixes6.MaxEntries()),
		Verdicts: int(o.Verdicts.MaxEntries()), Rows: int(o.Rows.MaxEntries()), Tables: int(o.Tables.MaxEntries()),
	}
}

// Remove detaches every program and removes every pin under dir, including those of older
// layouts. Missing objects are not an error.
func Remove(dir string) error {
	own, err := migrate.Number(LayoutVersion)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if n, unknown := migrate.Number(strings.TrimSuffix(e.Name(), migrate.RetiredSuffix)); unknown == nil && n <= own {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}
