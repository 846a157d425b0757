// SPDX-License-Identifier: Apache-2.0

package path

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// maxBlocks is how many basic blocks the programs of a sandbox may have.
const maxBlocks = 1 << 16

// Coverage notes which basic blocks of the programs have run: at the beginning of each
// block a byte of an array is set.
type Coverage struct {
	hits   *ebpf.Map
	blocks map[string][]block // by program
	next   uint32
}

// block is a basic block: where it begins, and its place in the array. A block without a
// register that may be overwritten cannot be noted.
type block struct {
	line  string
	place uint32
	noted bool
}

// NewCoverage makes the array. Needs root.
func NewCoverage() (*Coverage, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "coverage", Type: ebpf.Array, KeySize: 4, ValueSize: maxBlocks, MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("create the array of basic blocks: %w", err)
	}
	return &Coverage{hits: m, blocks: make(map[string][]block)}, nil
}

// Close removes the array.
func (c *Coverage) Close() error { return c.hits.Close() }

// Instrument changes the programs of a spec.
func (c *Coverage) Instrument(spec *ebpf.CollectionSpec) error {
	for _, name := range slices.Sorted(maps.Keys(spec.Programs)) {
		p := spec.Programs[name]
		insns, err := c.rewrite(name, p.Instructions)
		if err != nil {
			return fmt.Errorf("instrument %s: %w", name, err)
		}
		p.Instructions = insns
	}
	return nil
}

// rewrite puts a store before each basic block. Jumps are given labels first, since their
// distances change.
func (c *Coverage) rewrite(name string, insns asm.Instructions) (asm.Instructions, error) {
	g, err := newGraph(insns)
	if err != nil {
		return nil, err
	}
	live := g.liveness()
	var out asm.Instructions
	line := ""
	for i, ins := range insns {
		if s := ins.Source(); s != nil {
			line = position(s)
		}
		if at, ok := g.target[i]; ok {
			ins = ins.WithReference(g.label(at))
			ins.Offset = -1
		}
		if !g.leader[i] {
			out = append(out, ins)
			continue
		}
		label := g.label(i)
		b := block{line: line, place: c.next}
		if free, ok := unused(live[i]); ok && c.next < maxBlocks {
			note := asm.LoadMapValue(free, c.hits.FD(), c.next).WithSymbol(label)
			if s := ins.Source(); s != nil {
				note = note.WithSource(s)
			}
			if fn := btf.FuncMetadata(&ins); fn != nil {
				note = btf.WithFuncMetadata(note, fn)
				ins = btf.WithFuncMetadata(ins, nil)
			}
			out = append(out, note, asm.StoreImm(free, 0, 1, asm.Byte), ins.WithSymbol(""))
			b.noted = true
			c.next++
		} else {
			out = append(out, ins.WithSymbol(label))
		}
		c.blocks[name] = append(c.blocks[name], b)
	}
	return out, nil
}

// position is the file and line of an instruction.
func position(s fmt.Stringer) string {
	if l, ok := s.(*btf.Line); ok {
		return fmt.Sprintf("%s:%d: %s", l.FileName(), l.LineNumber(), l.Line())
	}
	return s.String()
}

// unused is a register that holds nothing which is read later.
func unused(live uint16) (asm.Register, bool) {
	for r := asm.R0; r <= asm.R5; r++ {
		if live&(1<<r) == 0 {
			return r, true
		}
	}
	return 0, false
}

// Report returns, by program, how many of its blocks have run, how many there are, and the
// lines where the others begin.
func (c *Coverage) Report() (map[string]Covered, error) {
	value := make([]byte, maxBlocks)
	if err := c.hits.Lookup(uint32(0), &value); err != nil {
		return nil, fmt.Errorf("read the array of basic blocks: %w", err)
	}
	all := make(map[string]Covered)
	for name, blocks := range c.blocks {
		var v Covered
		for _, b := range blocks {
			switch {
			case !b.noted:
				v.Unknown++
			case value[b.place] != 0:
				v.Run++
			default:
				v.Missed = append(v.Missed, b.line)
			}
		}
		slices.SortFunc(v.Missed, cmp.Compare[string])
		v.Missed = slices.Compact(v.Missed)
		v.Blocks = len(blocks)
		all[name] = v
	}
	return all, nil
}

// Lines returns, over some programs, how many source lines begin a block, and those at
// which no block of any of them ran.
func (c *Coverage) Lines(programs []string) (lines int, missed []string, err error) {
	value := make([]byte, maxBlocks)
	if err := c.hits.Lookup(uint32(0), &value); err != nil {
		return 0, nil, fmt.Errorf("read the array of basic blocks: %w", err)
	}
	ran := make(map[string]bool)
	for _, name := range programs {
		for _, b := range c.blocks[name] {
			if b.noted {
				ran[b.line] = ran[b.line] || value[b.place] != 0
			}
		}
	}
	for line, run := range ran {
		if !run {
			missed = append(missed, line)
		}
	}
	slices.Sort(missed)
	return len(ran), missed, nil
}

// Covered is what ran of a program. Unknown blocks could not be noted.
type Covered struct {
	Blocks, Run, Unknown int
	Missed               []string
}

// Percent is the share of blocks that ran, of those that can be noted.
func (v Covered) Percent() int { return 100 * v.Run / max(1, v.Blocks-v.Unknown) }
