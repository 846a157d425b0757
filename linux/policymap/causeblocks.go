// SPDX-License-Identifier: Apache-2.0

package policymap

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// word returns the word for the causes of a row.
func (e *encoder) word(r *model.Row) uint32 {
	if len(r.Cells) == 0 {
		return bpfobj.CauseNone
	}
	numbers := make([]uint32, len(r.Cells))
	same := true
	for i, cell := range r.Cells {
		if i > 0 && cell == r.Cells[i-1] {
			numbers[i] = numbers[i-1]
			continue
		}
		numbers[i] = e.causeNumber(cell)
		same = same && numbers[i] == numbers[0]
	}
	if same {
		return numbers[0]
	}
	return e.block(encodeBlock(numbers))
}

// encodeBlock returns the content of the blocks for the causes of port classes. A class beyond the end has the cause
// of class 0, also in the last block.
func encodeBlock(numbers []uint32) string {
	const width = int(bpfobj.BlockCauses)
	b := make([]byte, 0, (len(numbers)+width)*2)
	for _, n := range numbers {
		b = binary.NativeEndian.AppendUint16(b, uint16(n))
	}
	for len(b)%(width*2) != 0 {
		b = binary.NativeEndian.AppendUint16(b, uint16(numbers[0]))
	}
	// Blocks at the end that say what class 0 says are not needed.
	for len(b) > width*2 && uniformBlock(b[len(b)-width*2:], b[:2]) {
		b = b[:len(b)-width*2]
	}
	return string(b)
}

func uniformBlock(b, n []byte) bool {
	for i := 0; i < len(b); i += 2 {
		if !bytes.Equal(b[i:i+2], n) {
			return false
		}
	}
	return true
}

// numbersOf lists the numbers in blocks, each once, sorted.
func numbersOf(content string) []uint32 {
	var all []uint32
	for i := 0; i < len(content); i += 2 {
		all = append(all, uint32(binary.NativeEndian.Uint16([]byte(content[i:i+2]))))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// noBlock is the word of a row whose causes have no room in cause_blocks. There is no such block, so that programs do
// not count its flows separately.
const noBlock = bpfobj.CausesByPort | 1<<bpfobj.CausesWidth - 1

// block returns the word for a content of blocks, and writes the blocks if they are new. Without room, nothing of
// the row is counted by cause.
func (e *encoder) block(content string) uint32 {
	if w, ok := e.blocks[content]; ok {
		renew(e.idleBlocks, w, e.now)
		return w
	}
	width := uint32(len(content)) / (bpfobj.BlockCauses * 2)
	place, ok := e.freeBlocks(width)
	if !ok {
		e.refused = true
		return noBlock
	}
	w := bpfobj.CausesByPort | width<<bpfobj.CausesWidth | place
	e.blocks[content], e.content[w], e.idleBlocks[w] = w, content, e.now
	for i := range width {
		var b CauseBlock
		for n := range b {
			at := (int(i)*len(b) + n) * 2
			b[n] = binary.NativeEndian.Uint16([]byte(content[at : at+2]))
		}
		e.writes.Blocks = append(e.writes.Blocks, BlockWrite{place + i, b})
	}
	return w
}

// freeBlocks finds room for adjacent blocks: after all others, or in place of some that are idle.
func (e *encoder) freeBlocks(width uint32) (place uint32, ok bool) {
	most := e.capacity.causeBlocks()
	if e.nextBlock+width <= most {
		e.nextBlock += width
		return e.nextBlock - width, true
	}
	if e.crowdedAt.Equal(e.now) && width >= e.crowded {
		return 0, false
	}
	var taken []uint32 // words that stay
	for w := range e.content {
		if at, idle := e.idleBlocks[w]; !idle || e.now.Sub(at) < Grace {
			taken = append(taken, w)
		}
	}
	slices.SortFunc(taken, func(a, b uint32) int { return cmp.Compare(placeOf(a), placeOf(b)) })
	for _, w := range taken {
		if placeOf(w) >= place+width {
			break
		}
		place = max(place, placeOf(w)+widthOf(w))
	}
	if place+width > most {
		e.crowded, e.crowdedAt = width, e.now
		return 0, false
	}
	for w := range e.content {
		if placeOf(w) < place+width && place < placeOf(w)+widthOf(w) {
			e.forgetBlock(w)
		}
	}
	return place, true
}

func placeOf(word uint32) uint32 { return word & (1<<bpfobj.CausesWidth - 1) }
func widthOf(word uint32) uint32 { return word &^ bpfobj.CausesByPort >> bpfobj.CausesWidth }

func (c *causes) forgetBlock(word uint32) {
	delete(c.blocks, c.content[word])
	delete(c.content, word)
	delete(c.idleBlocks, word)
}

// numberCauses records the numbers of causes and blocks in maps that were read. Two numbers of one identity are
// damage: the first counts.
func (d *decoder) numberCauses() (problems []string) {
	d.meaning = make(map[uint32]model.Decision, len(d.Causes))
	for n := range bpfobj.CauseFirst {
		d.meaning[n] = FixedCause(n)
	}
	for _, n := range slices.Sorted(maps.Keys(d.Causes)) {
		id := identity(d.Causes[n])
		if _, twice := d.numbers[id]; twice || n < bpfobj.CauseFirst || n >= bpfobj.Causes {
			problems = append(problems, fmt.Sprintf("causes has an entry for number %d, which no agent writes", n))
			d.strayCauses = append(d.strayCauses, n)
			continue
		}
		d.numbers[id], d.idle[n], d.meaning[n] = n, time.Time{}, DecodeCause(d.Causes[n])
		d.nextNumber = max(d.nextNumber, n+1)
	}
	for n := range d.Blocks {
		d.nextBlock = max(d.nextBlock, n+1)
	}
	for _, entries := range d.Verdicts {
		for _, v := range entries {
			d.readBlock(v.Causes)
		}
	}
	for _, t := range d.Defaults {
		d.readBlock(t.Causes[model.Ingress])
		d.readBlock(t.Causes[model.Egress])
	}
	return problems
}

// readBlock records the content of a word that entries refer to.
func (d *decoder) readBlock(word uint32) {
	if _, known := d.content[word]; known || word&bpfobj.CausesByPort == 0 || word == noBlock {
		return
	}
	if widthOf(word) == 0 || placeOf(word)+widthOf(word) > bpfobj.CauseBlocks {
		return // damage: programs find no block, or one without a meaning
	}
	var b []byte
	for i := range widthOf(word) {
		for _, n := range d.Blocks[placeOf(word)+i] {
			b = binary.NativeEndian.AppendUint16(b, n)
		}
	}
	d.content[word], d.idleBlocks[word] = string(b), time.Time{}
	if _, twice := d.blocks[string(b)]; !twice {
		d.blocks[string(b)] = word
	}
}
