// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/isthmus-net/isthmus/common/model"
)

// Switch switches all interfaces at once from the programs of an older layout to ours.
// Otherwise one pod could open a flow under our programs, and another pod answer it under the
// older ones, which do not know the flow. During the switch, interfaces have a program that
// calls either version, selected by a word in a map. Both maps are pinned, so that a restarted
// agent can continue.
type Switch struct {
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

// Close releases all descriptors; the switch stays as it is.
func (d *Switch) Close() error {
	if d == nil {
		return nil
	}
	err := errors.Join(d.word.Close(), d.targets.Close())
	for _, p := range d.programs {
		err = errors.Join(err, p.Close())
	}
	return err
}

// OpenSwitch creates the maps and programs for the switch to our programs, or opens those that
// an earlier agent pinned in the directory.
func OpenSwitch(dir string, ours [2]*ebpf.Program) (_ *Switch, err error) {
	x := &Switch{}
	defer func() {
		if err != nil {
			x.Close()
			err = fmt.Errorf("prepare the switch of programs: %w", err)
		}
	}()
	pinned := ebpf.MapOptions{PinPath: dir}
	if x.word, err = ebpf.NewMapWithOptions(&ebpf.MapSpec{Name: dispatchWord, Type: ebpf.Array, KeySize: 4, ValueSize: 4,
		MaxEntries: 1, Pinning: ebpf.PinByName}, pinned); err != nil {
		return nil, err
	}
	if x.targets, err = ebpf.NewMapWithOptions(&ebpf.MapSpec{Name: dispatchTargets, Type: ebpf.ProgramArray, KeySize: 4,
		ValueSize: 4, MaxEntries: 4, Pinning: ebpf.PinByName}, pinned); err != nil {
		return nil, err
	}
	for _, dir := range model.Directions {
		if err := x.targets.Put(2+uint32(dir), ours[dir]); err != nil {
			return nil, err
		}
		if x.programs[dir], err = ebpf.NewProgram(x.program(dir)); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// program calls the program that word selects for a direction, and drops the packet if there is
// none.
func (d *Switch) program(dir model.Direction) *ebpf.ProgramSpec {
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
func (d *Switch) KnowsOlder() (bool, error) {
	for _, dir := range model.Directions {
		var id uint32
		if err := d.targets.Lookup(uint32(dir), &id); errors.Is(err, ebpf.ErrKeyNotExist) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("find the programs of the older layout: %w", err)
		}
	}
	return true, nil
}

// Exchanged reports whether our programs decide on all interfaces that had programs of the
// older layout.
func (d *Switch) Exchanged() (bool, error) {
	var word uint32
	if err := d.word.Lookup(uint32(0), &word); err != nil {
		return false, fmt.Errorf("read which programs decide: %w", err)
	}
	return word == 1, nil
}

// Exchange lets our programs decide on all interfaces, from the next packet on.
func (d *Switch) Exchange() error {
	if err := d.word.Put(uint32(0), uint32(1)); err != nil {
		return fmt.Errorf("switch to the programs of this layout: %w", err)
	}
	return nil
}

// Dispatcher returns the program that calls the selected program for a direction of pod
// traffic. The Switch closes it.
func (d *Switch) Dispatcher(dir model.Direction) *ebpf.Program { return d.programs[dir] }

// NameOlder records the programs of the older layout, given by their kernel IDs and directions.
func (d *Switch) NameOlder(ids [2]uint32) error {
	for dir, id := range ids {
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
		if err == nil {
			err = d.targets.Put(uint32(dir), p)
			p.Close()
		}
		if err != nil {
			return fmt.Errorf("record program %d of the older layout: %w", id, err)
		}
	}
	return nil
}

// DropSwitch removes the pins of a Switch, which only an upgrade needs.
func DropSwitch(dir string) error {
	var errs []error
	for _, name := range []string{dispatchWord, dispatchTargets} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			errs = append(errs, fmt.Errorf("remove pin %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
