// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// LayoutVersion names the shape and meaning of the maps. It changes whenever
// an older program or agent would read them wrongly.
const LayoutVersion = "v3"

// DataPath is the loaded programs and their maps. It is not safe for
// concurrent use, except for Counters.
type DataPath struct {
	dir     string
	objects bpfobj.PodObjects
	// asks: programs ask connection tracking, tracking what there was of it when that
	// was tried last.
	asks       bool
	tracking   Tracking
	look       func() Tracking
	egress     egress
	slots      *ebpf.Memory
	ports      *ebpf.Memory
	stages     *ebpf.Memory
	shares     *ebpf.Memory
	interfaces interfaces
	stage      uint32             // the last one that began
	single     []*ebpf.Map        // that the kernel does not write in batches
	running    bpfobj.PodEndpoint // the endpoint of the last Run
	// older is nil unless an upgrade is going on.
	older    *older
	dispatch *dispatch
	// constants are what programs are loaded with.
	constants map[string]uint32
	// pins are what is pinned, and the links, which it holds.
	pins Pins
	// want is what this process has written to maps that no State describes.
	want intent
	// numbers are those of programs in the kernel, as far as they were asked for.
	numbers map[*ebpf.Program]ebpf.ProgramID
	// damaged says what was found wrong with the pins at the start.
	damaged []string
	// instrument is that of the settings of a sandbox.
	instrument func(*ebpf.CollectionSpec) error
}

// Open loads the programs, reusing the maps that are pinned under dir (a
// directory on a bpffs) and creating those that are not. What is attached stays
// until HookEgress and AdoptLinks replace it, in this order. Maps that should have
// another size than they have are exchanged for copies. An older layout that is
// there stays in force, see Older.
func Open(dir string, s Settings, sizes Sizes) (_ *DataPath, err error) {
	d := &DataPath{dir: filepath.Join(dir, LayoutVersion), look: s.look(), pins: make(Pins), numbers: make(map[*ebpf.Program]ebpf.ProgramID)}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	spec, err := bpfobj.LoadPod()
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
		defer c.Close() // the programs have references of their own
		options.MapReplacements[c.name] = c.Map
	}
	if err := d.load(spec, options); err != nil {
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
	if d.older == nil {
		return d, d.dropDispatch()
	}
	return d, d.openDispatch()
}

// prepare looks at what other versions left and makes the directory of this
// one. Where that is refused nothing is made: the other version must find the
// directory as it was.
func (d *DataPath) prepare(dir string, spec *ebpf.CollectionSpec) error {
	name, err := FindLayouts(dir)
	if err == nil && name != "" {
		d.older, err = openOlder(dir, name, spec)
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
		if err := d.older.share(d.dir, spec); err != nil {
			return err
		}
	}
	return removeRetired(dir)
}

// shareMemory maps what is written by single words.
func (d *DataPath) shareMemory() error {
	for _, m := range []struct {
		of *ebpf.Map
		to **ebpf.Memory
	}{{d.objects.Slots, &d.slots}, {d.objects.PodMaps.Ports, &d.ports}, {d.objects.Stages, &d.stages}, {d.objects.FlowShares, &d.shares}} {
		memory, err := m.of.Memory()
		if err != nil {
			return fmt.Errorf("map the memory of %s: %w", m.of, err)
		}
		*m.to = memory
	}
	var buf [4]byte
	if _, err := d.stages.ReadAt(buf[:], 0); err != nil {
		return fmt.Errorf("read the stage of writing: %w", err)
	}
	d.stage = binary.NativeEndian.Uint32(buf[:])
	return d.openInterfaces()
}

// prepareDirectory makes the directory, readable by root only, where that is on
// a bpffs.
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
		return fmt.Errorf("bpffs directory %s is not on a bpffs: run 'mount -t bpf bpf /sys/fs/bpf' or give --bpffs another directory", dir)
	}
	for _, at := range []string{filepath.Dir(dir), dir, filepath.Join(dir, "links")} {
		if err := removeFiles(at); err != nil {
			return fmt.Errorf("remove what is in the way of directory %s: %w", at, err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "links"), 0o700); err != nil {
		return fmt.Errorf("create bpffs directory %s: %w: are you root?", dir, err)
	}
	return nil
}

// explain turns what the kernel says into what to do.
func explain(dir string, err error) error {
	var verifier *ebpf.VerifierError
	switch {
	case errors.Is(err, ebpf.ErrMapIncompatible):
		return fmt.Errorf("load programs: %w: the maps pinned under %s were made by an incompatible build; "+
			"drain the node and remove that directory", err, dir)
	case errors.As(err, &verifier):
		return fmt.Errorf("load programs: the kernel's verifier refused them: %w", err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("load programs: %w: needs root, or CAP_BPF and CAP_NET_ADMIN", err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("load programs: %w: this kernel is too old, Linux 6.1 is the oldest that is known to work", err)
	}
	return fmt.Errorf("load programs: %w", err)
}

// Close lets go of everything and leaves it working.
func (d *DataPath) Close() error {
	return errors.Join(d.pins.Close(), d.objects.Close(), d.egress.close(), d.older.close(), d.dispatch.close())
}

// Capacity tells how many entries the maps hold.
func (d *DataPath) Capacity() policymap.Capacity {
	o := &d.objects
	return policymap.Capacity{
		Slots:  int(min(o.Slots.MaxEntries(), o.Endpoints.MaxEntries())),
		Peers4: int(o.Peers4.MaxEntries()), Peers6: int(o.Peers6.MaxEntries()),
		Prefixes4: int(o.Prefixes4.MaxEntries()), Prefixes6: int(o.Prefixes6.MaxEntries()),
		Verdicts: int(o.Verdicts.MaxEntries()), Rows: int(o.Rows.MaxEntries()), Tables: int(o.Tables.MaxEntries()),
	}
}

// Remove detaches every program and removes every pin under dir, those of older
// layouts too. What is not there is no error.
func Remove(dir string) error {
	own, err := layoutNumber(LayoutVersion)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if n, unknown := layoutNumber(strings.TrimSuffix(e.Name(), retiredSuffix)); unknown == nil && n <= own {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}
