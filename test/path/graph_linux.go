// SPDX-License-Identifier: Apache-2.0

package path

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// graph is the control flow of a program with the functions that it calls.
type graph struct {
	insns  asm.Instructions
	target map[int]int // of jumps, by index
	leader []bool      // of basic blocks
}

func newGraph(insns asm.Instructions) (*graph, error) {
	g := &graph{insns: insns, target: make(map[int]int), leader: make([]bool, len(insns)+1)}
	at := make(map[asm.RawInstructionOffset]int) // indices by offset in the kernel's units
	for it := insns.Iterate(); it.Next(); {
		at[it.Offset] = it.Index
	}
	for it := insns.Iterate(); it.Next(); {
		ins, i := it.Ins, it.Index
		if ins.Symbol() != "" {
			g.leader[i] = true
		}
		if !jumps(ins) {
			continue
		}
		if op := ins.OpCode.JumpOp(); op != asm.Exit {
			to, ok := at[it.Offset+1+asm.RawInstructionOffset(ins.Offset)]
			if !ok {
				return nil, fmt.Errorf("jump at instruction %d leads nowhere", i)
			}
			g.target[i], g.leader[to] = to, true
		}
		g.leader[i+1] = true
	}
	return g, nil
}

// jumps reports whether an instruction ends a basic block.
func jumps(ins *asm.Instruction) bool {
	return ins.OpCode.Class().IsJump() && ins.OpCode.JumpOp() != asm.Call
}

// next returns the first instructions of the successors of the block that begins at i.
func (g *graph) next(i int) (all []int) {
	for ; !jumps(&g.insns[i]) && !g.leader[i+1]; i++ {
	}
	ins := &g.insns[i]
	if to, ok := g.target[i]; ok {
		all = append(all, to)
	}
	if !jumps(ins) || ins.OpCode.JumpOp() != asm.Exit && ins.OpCode.JumpOp() != asm.Ja {
		all = append(all, i+1)
	}
	return all
}

// label returns the label of a basic block; functions have names.
func (g *graph) label(i int) string {
	if s := g.insns[i].Symbol(); s != "" {
		return s
	}
	return fmt.Sprintf("block-%d", i)
}

// free finds a register that is not live at an instruction of the block that begins at i.
func (g *graph) free(i int, live []uint16) (at int, r asm.Register, ok bool) {
	for k := i; k < len(g.insns) && (k == i || !g.leader[k]); k++ {
		if r, ok := dead(live[k]); ok {
			return k, r, true
		}
	}
	return 0, 0, false
}

// dead returns a register that is not live.
func dead(live uint16) (r asm.Register, ok bool) {
	for r := asm.R0; r <= asm.R9; r++ {
		if live&(1<<r) == 0 {
			return r, true
		}
	}
	return 0, false
}

// insert returns the instructions with others inserted before them, by index. Jumps get labels, because their
// offsets change.
func (g *graph) insert(before map[int]asm.Instructions) asm.Instructions {
	var out asm.Instructions
	for i, ins := range g.insns {
		if at, ok := g.target[i]; ok {
			ins = ins.WithReference(g.label(at))
			ins.Offset = -1
		}
		label := ""
		if g.leader[i] {
			label = g.label(i)
		}
		more := before[i]
		if len(more) == 0 {
			out = append(out, ins.WithSymbol(label))
			continue
		}
		first := more[0].WithSymbol(label)
		if s := ins.Source(); s != nil {
			first = first.WithSource(s)
		}
		if fn := btf.FuncMetadata(&ins); fn != nil {
			first = btf.WithFuncMetadata(first, fn)
			ins = btf.WithFuncMetadata(ins, nil)
		}
		out = append(append(append(out, first), more[1:]...), ins.WithSymbol(""))
	}
	return out
}

const (
	argRegisters    = 1<<asm.R1 | 1<<asm.R2 | 1<<asm.R3 | 1<<asm.R4 | 1<<asm.R5
	callerRegisters = argRegisters | 1<<asm.R0
)

// liveness returns the live registers of every instruction: those that it or a later one may read.
func (g *graph) liveness() []uint16 {
	live := make([]uint16, len(g.insns)+1)
	for changed := true; changed; {
		changed = false
		for i := len(g.insns) - 1; i >= 0; i-- {
			ins := &g.insns[i]
			out := live[i+1]
			if jumps(ins) {
				switch ins.OpCode.JumpOp() {
				case asm.Exit:
					out = 0
				case asm.Ja:
					out = live[g.target[i]]
				default:
					out |= live[g.target[i]]
				}
			}
			reads, writes := registers(ins)
			if in := out&^writes | reads; in != live[i] {
				live[i], changed = in, true
			}
		}
	}
	return live
}

// registers returns the registers that an instruction reads, and those that it writes.
func registers(ins *asm.Instruction) (reads, writes uint16) {
	dst, src := uint16(1)<<ins.Dst, uint16(1)<<ins.Src
	op := ins.OpCode
	switch class := op.Class(); {
	case class.IsJump():
		switch op.JumpOp() {
		case asm.Call:
			return argRegisters, callerRegisters
		case asm.Exit:
			return 1 << asm.R0, 0
		case asm.Ja:
			return 0, 0
		}
		if op.Source() == asm.RegSource {
			return dst | src, 0
		}
		return dst, 0
	case class.IsALU():
		if op.ALUOp() == asm.Mov && op.Source() == asm.RegSource {
			return src, dst
		}
		if op.ALUOp() == asm.Mov {
			return 0, dst
		}
		if op.Source() == asm.RegSource && op.ALUOp() != asm.Swap && op.ALUOp() != asm.Neg {
			return dst | src, dst
		}
		return dst, dst
	case class == asm.LdClass:
		return 0, dst // immediates of 64 bits
	case class == asm.LdXClass:
		return src, dst
	case class == asm.StClass:
		return dst, 0
	}
	return dst | src | 1<<asm.R0, 0 // stores, and atomic operations
}
