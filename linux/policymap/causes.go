// SPDX-License-Identifier: Apache-2.0

package policymap

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// VerdictRow is the value of the map verdicts: a row, and what causes its verdicts.
type VerdictRow = bpfobj.PodVerdictRow

// Cause is the value of the map causes: what a number stands for.
type Cause = bpfobj.PodCause

// CauseBlock is the value of the map cause_blocks: the causes of eight classes of ports.
type CauseBlock = [bpfobj.BlockCauses]uint16

// causes numbers the causes of verdicts. A word is a value of VerdictRow.Causes: the number of a cause, or the
// place of a block of numbers.
type causes struct {
	numbers map[Cause]uint32 // by identity
	used    map[uint32]int   // of a number, by words in use
	words   map[uint32]int   // uses of a word, by entries of verdicts and by tables
	blocks  map[string]uint32
	content map[uint32]string // of blocks, by word
	// idle are the numbers and the words of blocks that nothing uses, with the time of the last use. They keep
	// their meaning until another one needs them.
	idle, idleBlocks map[uint32]time.Time
	nextNumber       uint32
	nextBlock        uint32
	// refused is true if a cause or a block did not fit since the layout was made.
	refused bool
	// crowded are the widths, in blocks, from which on nothing fitted at crowdedAt.
	crowded   uint32
	crowdedAt time.Time
}

func newCauses() causes {
	return causes{numbers: make(map[Cause]uint32), used: make(map[uint32]int), words: make(map[uint32]int), blocks: make(map[string]uint32),
		content: make(map[uint32]string), idle: make(map[uint32]time.Time), idleBlocks: make(map[uint32]time.Time), nextNumber: bpfobj.CauseFirst}
}

func (c *causes) clone() causes {
	n := *c
	n.numbers, n.used, n.words, n.blocks = maps.Clone(c.numbers), maps.Clone(c.used), maps.Clone(c.words), maps.Clone(c.blocks)
	n.content, n.idle, n.idleBlocks = maps.Clone(c.content), maps.Clone(c.idle), maps.Clone(c.idleBlocks)
	return n
}

// EncodeCause returns the entry of the map causes for a cause with a verdict. Texts that are too long are cut.
func EncodeCause(c *model.Cause, v model.Verdict) Cause {
	e := Cause{Meaning: c.Meaning, Rule: uint32(c.Rule), Reason: uint8(c.Reason), Direction: uint8(c.Direction), Verdict: uint8(v), Tier: uint8(c.Tier)}
	put(e.Kind[:], c.Origin.Kind)
	put(e.Namespace[:], c.Origin.Namespace)
	put(e.Name[:], c.Origin.Name)
	put(e.Uid[:], c.Origin.UID)
	put(e.RuleName[:], c.RuleName)
	return e
}

// DecodeCause is the inverse of EncodeCause.
func DecodeCause(e Cause) model.Decision {
	return model.Decision{Verdict: model.Verdict(e.Verdict & 1), Cause: &model.Cause{
		Reason: model.Reason(e.Reason), Direction: model.Direction(e.Direction & 1), Tier: model.Tier(e.Tier),
		Rule: int(e.Rule), RuleName: text(e.RuleName[:]), Meaning: e.Meaning,
		Origin: model.Origin{Kind: text(e.Kind[:]), Namespace: text(e.Namespace[:]), Name: text(e.Name[:]), UID: text(e.Uid[:])}}}
}

func put(to []int8, s string) {
	for i := range min(len(to), len(s)) {
		to[i] = int8(s[i])
	}
}

func text(from []int8) string {
	b := make([]byte, len(from))
	for i, c := range from {
		b[i] = byte(c)
	}
	if n := bytes.IndexByte(b, 0); n >= 0 {
		b = b[:n]
	}
	return string(b)
}

// identity returns what distinguishes a cause from all others: not the index and the name of a rule, which may
// change while it says the same.
func identity(e Cause) Cause {
	if e.Meaning != 0 {
		e.Rule, e.RuleName = 0, Cause{}.RuleName
	}
	return e
}

// FixedCause returns the decision that a number below bpfobj.CauseFirst stands for. The cause is nil for verdicts
// that are not counted by cause.
func FixedCause(n uint32) model.Decision {
	switch {
	case n >= bpfobj.CauseOther && n < bpfobj.CauseSelf:
		return model.Decision{Verdict: model.Verdict(n - bpfobj.CauseOther&1)}
	case n == bpfobj.CauseNode:
		return model.Decision{Verdict: model.Allow, Cause: &model.Cause{Reason: model.ReasonNode, Direction: model.Ingress}}
	case n >= bpfobj.CauseSelf && n < bpfobj.CauseNode:
		return model.Decision{Verdict: model.Allow, Cause: &model.Cause{Reason: model.ReasonSelf, Direction: model.Direction(n - bpfobj.CauseSelf)}}
	case n >= bpfobj.CausePending && n < bpfobj.CauseFirst:
		return model.Decision{Verdict: model.Deny, Cause: &model.Cause{Reason: model.ReasonPending, Direction: model.Direction(n - bpfobj.CausePending)}}
	}
	return model.Decision{}
}

// fixed returns the number of a cause with a fixed meaning.
func fixed(d model.Decision) (uint32, bool) {
	switch c := d.Cause; {
	case c == nil:
		return bpfobj.CauseNone, true
	case c.Reason == model.ReasonNode:
		return bpfobj.CauseNode, true
	case c.Reason == model.ReasonPending:
		return bpfobj.CausePending + uint32(c.Direction), true
	case c.Reason == model.ReasonSelf:
		return bpfobj.CauseSelf + uint32(c.Direction), true
	}
	return 0, false
}

// other returns the number that causes without a number share.
func other(d model.Decision) uint32 {
	return bpfobj.CauseOther + uint32(d.Cause.Direction)*2 + uint32(d.Verdict)
}

// causeNumber returns the number of the cause of a decision, and assigns one if it has none. A State without causes
// has number bpfobj.CauseNone.
func (e *encoder) causeNumber(d model.Decision) uint32 {
	if n, ok := fixed(d); ok {
		return n
	}
	key := causeKey{d.Cause, d.Verdict}
	if n, ok := e.numbered[key]; ok {
		return n
	}
	entry := EncodeCause(d.Cause, d.Verdict)
	id := identity(entry)
	n, ok := e.numbers[id]
	if !ok {
		if n, ok = e.freeNumber(); !ok {
			e.refused = true
			return other(d)
		}
		e.numbers[id], e.idle[n] = n, e.now
		e.writes.Causes = append(e.writes.Causes, CauseWrite{n, entry, true})
		e.Causes[n] = entry
	} else if renew(e.idle, n, e.now); e.renames && e.Causes[n] != entry {
		e.writes.Causes = append(e.writes.Causes, CauseWrite{n, entry, false})
		e.Causes[n] = entry
	}
	e.numbered[key] = n
	return n
}

// renew keeps what is idle from getting another meaning before this step uses it.
func renew(idle map[uint32]time.Time, n uint32, now time.Time) {
	if _, ok := idle[n]; ok {
		idle[n] = now
	}
}

// freeNumber returns a number that no packet can count for any more: one that was never used, or else the one that
// is idle for the longest time.
func (e *encoder) freeNumber() (uint32, bool) {
	for e.nextNumber < e.capacity.causes() {
		if e.nextNumber++; e.used[e.nextNumber-1] == 0 { // damaged maps may use it without a meaning
			return e.nextNumber - 1, true
		}
	}
	oldest, found := uint32(0), false
	for n, at := range e.idle {
		if e.now.Sub(at) >= Grace && (!found || at.Before(e.idle[oldest]) || at.Equal(e.idle[oldest]) && n < oldest) {
			oldest, found = n, true
		}
	}
	if found {
		// Blocks that nothing uses may still hold the number.
		for word, content := range e.content {
			if e.words[word] == 0 && slices.Contains(numbersOf(content), oldest) {
				e.forgetBlock(word)
			}
		}
		delete(e.idle, oldest)
		delete(e.numbers, identity(e.Causes[oldest]))
	}
	return oldest, found
}

// inWord lists the numbers that a word leads to.
func (c *causes) inWord(word uint32) []uint32 {
	if word&bpfobj.CausesByPort == 0 {
		return []uint32{word}
	}
	return numbersOf(c.content[word])
}

// use records that an entry refers to a word.
func (c *causes) use(word uint32) {
	if c.words[word]++; c.words[word] > 1 {
		return
	}
	delete(c.idleBlocks, word)
	for _, n := range c.inWord(word) {
		c.used[n]++
		delete(c.idle, n)
	}
}

// drop records that an entry which referred to a word is gone.
func (c *causes) drop(word uint32, now time.Time) {
	if c.words[word]--; c.words[word] > 0 {
		return
	}
	delete(c.words, word)
	if _, block := c.content[word]; block {
		c.idleBlocks[word] = now
	}
	for _, n := range c.inWord(word) {
		if c.used[n]--; c.used[n] > 0 {
			continue
		}
		delete(c.used, n)
		if n >= bpfobj.CauseFirst {
			c.idle[n] = now
		}
	}
}

// rest starts the grace period of what was idle when the maps were read.
func (c *causes) rest(now time.Time) {
	for _, idle := range []map[uint32]time.Time{c.idle, c.idleBlocks} {
		for n, at := range idle {
			if at.IsZero() {
				idle[n] = now
			}
		}
	}
}

// Counted returns the causes in use by number, with the verdict of each.
func (l *Layout) Counted() map[uint32]model.Decision {
	all := make(map[uint32]model.Decision, len(l.used))
	for n := range bpfobj.CauseFirst {
		if d := FixedCause(n); d.Cause != nil {
			all[n] = d
		}
	}
	for n := range l.used {
		if e, ok := l.Causes[n]; ok && n >= bpfobj.CauseFirst {
			all[n] = DecodeCause(e)
		}
	}
	return all
}

// Past returns the causes that decide nothing now and still have a number.
func (l *Layout) Past() map[uint32]Cause {
	past := make(map[uint32]Cause, len(l.idle))
	for n := range l.idle {
		past[n] = l.Causes[n]
	}
	return past
}

// Uncounted lists the causes, sorted by text, some of whose flows are not counted separately because there was no
// room.
func (l *Layout) Uncounted() []model.Decision {
	if !l.refused {
		return nil
	}
	type encoded struct {
		row  *model.Row
		word uint32
	}
	found := make(map[Cause]model.Decision)
	seen := make(map[encoded]bool)
	note := func(r *model.Row, word uint32) {
		if seen[encoded{r, word}] {
			return
		}
		seen[encoded{r, word}] = true
		for class, cell := range r.Cells {
			n := word
			if word&bpfobj.CausesByPort != 0 {
				n = l.CauseOfClass(word, uint32(class))
			}
			if cell.Cause != nil && n < bpfobj.CauseSelf {
				found[EncodeCause(cell.Cause, cell.Verdict)] = cell
			}
		}
	}
	for id, t := range l.state.Policy.Tables {
		number := l.tables[id]
		for _, d := range model.Directions {
			unlisted := l.Unlisted(number, d)
			note(t.Sides[d].Default, unlisted.Causes)
			for class, r := range t.Sides[d].Rows.All() {
				if v, listed := l.Verdicts[number][PeerKey(class, d)]; listed {
					note(r, v.Causes)
				} else {
					note(r, unlisted.Causes)
				}
			}
		}
	}
	all := slices.Collect(maps.Values(found))
	slices.SortFunc(all, func(a, b model.Decision) int { return cmp.Compare(a.String(), b.String()) })
	return all
}
