// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/isthmus-net/isthmus/common/model"
)

// dispatch switches all interfaces at once from the programs of an older layout to ours.
// Otherwise one pod could open a flow under our programs, and another pod answer it under the
// older ones, which do not know the flow. During the switch, interfaces have a program that
// calls either version, selected by a word in a map. Both maps are pinned, so that a restarted
// agent can continue.
type dispatch struct {
	// word is 0 while the older programs decide, then 1.
	word *ebpf.Map
	// targets are the programs to call, by word * 2 + direction.
	targets  *ebpf.Map
	programs [2]*ebpf.Program // by direction
}

// The pins of word and targets.
const (
	dispatchWord    = "dispatch_word"
	dispatchTargets = "dispatch_targets"
)

func (d *dispatch) close() error {
	if d == nil {
		return nil
	}
	err := errors.Join(d.word.Close(), d.targets.Close())
	for _, p := range d.programs {
		err = errors.Join(err, p.Close())
	}
	return err
}

// openDispatch creates the maps and programs for the switch, or opens those that an earlier
// agent pinned.
func (d *DataPath) openDispatch() (err error) {
	x := &dispatch{}
	defer func() {
		if err != nil {
			x.close()
			err = fmt.Errorf("prepare the switch of programs: %w", err)
		}
	}()
	pinned := ebpf.MapOptions{PinPath: d.dir}
	if x.word, err = ebpf.NewMapWithOptions(&ebpf.MapSpec{Name: dispatchWord, Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1, Pinning: ebpf.PinByName}, pinned); err != nil {
		return err
	}
	if x.targets, err = ebpf.NewMapWithOptions(&ebpf.MapSpec{Name: dispatchTargets, Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 4, Pinning: ebpf.PinByName}, pinned); err != nil {
		return err
	}
	for _, dir := range model.Directions {
		if err := x.targets.Put(2+uint32(dir), d.Program(dir)); err != nil {
			return err
		}
		if x.programs[dir], err = ebpf.NewProgram(x.program(dir)); err != nil {
			return err
		}
	}
	d.dispatch = x
	return nil
}

// program calls the program that word selects for a direction, and drops the packet if there is
// none.
func (d *dispatch) program(dir model.Direction) *ebpf.ProgramSpec {
	const shot = 2 // TC_ACT_SHOT
	return &ebpf.ProgramSpec{Name: "dispatch", Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.StoreImm(asm.R10, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, d.word.FD()),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "drop"),
		asm.LoadMem(asm.R3, asm.R0, 0, asm.Word),
		asm.LSh.Imm(asm.R3, 1),
		asm.Add.Imm(asm.R3, int32(dir)),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.LoadMapPtr(asm.R2, d.targets.FD()),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, shot).WithSymbol("drop"),
		asm.Return(),
	}}
}

// KnowsOlder reports whether programs of an older layout are recorded.
func (d *DataPath) KnowsOlder() (bool, error) {
	for _, dir := range model.Directions {
		var id uint32
		if err := d.dispatch.targets.Lookup(uint32(dir), &id); errors.Is(err, ebpf.ErrKeyNotExist) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("find the programs of the older layout: %w", err)
		}
	}
	return true, nil
}

// Exchanged reports whether our programs decide on all interfaces that had programs of the
// older layout.
func (d *DataPath) Exchanged() (bool, error) {
	var word uint32
	if err := d.dispatch.word.Lookup(uint32(0), &word); err != nil {
		return false, fmt.Errorf("read which programs decide: %w", err)
	}
	return word == 1, nil
}

// Exchange lets our programs decide on all interfaces, from the next packet on.
func (d *DataPath) Exchange() error {
	if err := d.dispatch.word.Put(uint32(0), uint32(1)); err != nil {
		return fmt.Errorf("switch to the programs of this layout: %w", err)
	}
	return nil
}

// Dispatcher returns the program that calls the selected program for a direction of pod
// traffic. The DataPath closes it.
func (d *DataPath) Dispatcher(dir model.Direction) *ebpf.Program { return d.dispatch.programs[dir] }

// NameOlder records the programs of the older layout on an interface, unless they are recorded
// already. It takes those of the links or, without links, the given ones: kernel IDs by
// direction, 0 for none. Call it before any Divert.
func (d *DataPath) NameOlder(name string, classifiers [2]uint32) error {
	known, err := d.KnowsOlder()
	if err != nil || known {
		return err
	}
	ids := classifiers
	for _, h := range d.hooks() {
		l, err := link.LoadPinnedLink(filepath.Join(d.older.dir, "links", name+h.suffix), nil)
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
	for dir, id := range ids {
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
		if err == nil {
			err = d.dispatch.targets.Put(uint32(dir), p)
			p.Close()
		}
		if err != nil {
			return fmt.Errorf("record program %d of layout %s: %w", id, d.older.name, err)
		}
	}
	return nil
}

// Divert replaces the programs of the older links on an interface with the dispatchers. It
// reports whether there are links for both directions.
func (d *DataPath) Divert(name string) (bool, error) {
	n := 0
	for _, h := range d.hooks() {
		path := filepath.Join(d.older.dir, "links", name+h.suffix)
		if err := d.adoptLink(path, h.attach, d.dispatch.programs[h.dir]); err != nil {
			return false, err
		}
		if _, err := os.Lstat(path); err == nil {
			n++
		}
	}
	return n == len(d.hooks()), nil
}

// dropDispatch removes the pins, which only an upgrade needs.
func (d *DataPath) dropDispatch() error {
	var errs []error
	for _, name := range []string{dispatchWord, dispatchTargets} {
		if err := os.RemoveAll(filepath.Join(d.dir, name)); err != nil {
			errs = append(errs, fmt.Errorf("remove pin %s: %w", name, err))
		}
	}
	err := d.dispatch.close()
	d.dispatch = nil
	return errors.Join(append(errs, err)...)
}
