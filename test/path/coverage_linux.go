// SPDX-License-Identifier: Apache-2.0

package path

import (
	"fmt"
	"path"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// maxBlocks bounds the number of basic blocks in the programs of a sandbox.
const maxBlocks = 1 << 16

// Coverage records which basic blocks of the programs run: each block sets a byte of an array. A block is a range
// of instructions of a compiled object. So the blocks of a function count once for each place where the compiler
// inlines it, and once if two programs of an object call it.
type Coverage struct {
	hits   *ebpf.Map
	places map[Block]uint32
	blocks map[string][]Block // by program, with the functions that it calls
	lines  map[Block]uint32   // numbers of source lines, by object, file and content
	next   map[Block][]Block  // the successors of a block
	entry  map[Block]bool     // first blocks of functions
}

// Block is a basic block. Its fields locate it, and stay the same when other functions and lines change.
type Block struct {
	Object   string // pod, egress or xdp
	Function string
	// File and Text are the source line of its first instruction.
	File, Text string
	// N numbers the blocks of one function and line from 1, in the order of instructions.
	N int
}

// String returns the form that the list of unreachable blocks uses.
func (b Block) String() string {
	return fmt.Sprintf("%s %s %s %s #%d", b.Object, b.Function, b.File, b.Text, b.N)
}

// unnoted is the index of a block that cannot be recorded, because every register is in use.
const unnoted = maxBlocks

// NewCoverage makes the array. Needs root.
func NewCoverage() (*Coverage, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "coverage", Type: ebpf.Array, KeySize: 4, ValueSize: maxBlocks, MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("create the array of basic blocks: %w", err)
	}
	return &Coverage{hits: m, places: make(map[Block]uint32), blocks: make(map[string][]Block), lines: make(map[Block]uint32),
		next: make(map[Block][]Block), entry: make(map[Block]bool)}, nil
}

// Close removes the array.
func (c *Coverage) Close() error { return c.hits.Close() }

// notes returns the stores that record the blocks of a program, by the index of the instruction that follows.
func (c *Coverage) notes(g *graph, object, program string) map[int]asm.Instructions {
	live, before := g.liveness(), make(map[int]asm.Instructions)
	known, blocks := make(map[Block]int), make(map[int]Block)
	var at Block
	c.blocks[program] = nil
	for i := range g.insns {
		if s := g.insns[i].Symbol(); s != "" {
			at = Block{Object: object, Function: s}
		}
		if s, ok := g.insns[i].Source().(*btf.Line); ok {
			at.File, at.Text = path.Base(s.FileName()), strings.TrimSpace(s.Line())
			c.lines[Block{Object: object, File: at.File, Text: at.Text}] = s.LineNumber()
		}
		if !g.leader[i] {
			continue
		}
		known[at]++
		b := at
		b.N = known[at]
		blocks[i] = b
		if g.insns[i].Symbol() != "" {
			c.entry[b] = true
		}
		c.blocks[program] = append(c.blocks[program], b)
		k, free, ok := g.free(i, live)
		if !ok || len(c.places) >= maxBlocks {
			c.places[b] = unnoted
			continue
		}
		place, noted := c.places[b]
		if !noted {
			place = uint32(len(c.places))
			c.places[b] = place
		}
		before[k] = asm.Instructions{asm.LoadMapValue(free, c.hits.FD(), place), asm.StoreImm(free, 0, 1, asm.Byte)}
	}
	for i, b := range blocks {
		c.next[b] = c.next[b][:0]
		for _, to := range g.next(i) {
			c.next[b] = append(c.next[b], blocks[to])
		}
	}
	return before
}

// Where returns file and line of a block.
func (c *Coverage) Where(b Block) string {
	return fmt.Sprintf("%s:%d", b.File, c.lines[Block{Object: b.Object, File: b.File, Text: b.Text}])
}

// Blocks returns all blocks by their text.
func (c *Coverage) Blocks() map[string]Block {
	all := make(map[string]Block)
	for b := range c.next {
		all[b.String()] = b
	}
	return all
}

// Dominated returns the given blocks, and the blocks that are reachable only through them.
func (c *Coverage) Dominated(roots map[Block]bool) map[Block]bool {
	open := make(map[Block]bool)
	var visit func(Block)
	visit = func(b Block) {
		if open[b] || roots[b] {
			return
		}
		open[b] = true
		for _, to := range c.next[b] {
			visit(to)
		}
	}
	for b := range c.entry {
		visit(b)
	}
	closed := make(map[Block]bool)
	for b := range c.next {
		if !open[b] {
			closed[b] = true
		}
	}
	return closed
}

// Roots returns the missed blocks that are successors of a block that ran, with the programs that contain them.
func (c *Coverage) Roots(all map[string]Covered) map[Block][]string {
	reached := make(map[Block]bool)
	for _, v := range all {
		for _, b := range v.Reached {
			for _, to := range c.next[b] {
				reached[to] = true
			}
		}
	}
	roots := make(map[Block][]string)
	for name, v := range all {
		for _, b := range v.Missed {
			if reached[b] || c.entry[b] {
				roots[b] = append(roots[b], name)
			}
		}
	}
	return roots
}

// Covered lists the blocks of a program that ran. Unknown blocks cannot be recorded.
type Covered struct {
	Blocks, Run, Unknown int
	// Missed are the blocks that did not run; Reached those that did.
	Missed, Reached []Block
}

// Report returns the coverage of each program.
func (c *Coverage) Report() (map[string]Covered, error) {
	value := make([]byte, maxBlocks)
	if err := c.hits.Lookup(uint32(0), &value); err != nil {
		return nil, fmt.Errorf("read the array of basic blocks: %w", err)
	}
	all := make(map[string]Covered)
	for name, blocks := range c.blocks {
		v := Covered{Blocks: len(blocks)}
		for _, b := range blocks {
			switch place := c.places[b]; {
			case place == unnoted:
				v.Unknown++
			case value[place] != 0:
				v.Run++
				v.Reached = append(v.Reached, b)
			default:
				v.Missed = append(v.Missed, b)
			}
		}
		all[name] = v
	}
	return all, nil
}
