// SPDX-License-Identifier: Apache-2.0

package policymap_test

import (
	"slices"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/test/world"
)

// reachable returns the numbers that programs can count by.
func (k *kernel) reachable() map[uint32]bool {
	found := make(map[uint32]bool)
	note := func(word uint32) {
		if word&bpfobj.CausesByPort == 0 {
			found[word] = true
			return
		}
		for class := range uint32(model.MaxPortClasses) {
			found[k.CauseOfClass(word, class)] = true
		}
	}
	for _, rows := range k.Verdicts {
		for _, v := range rows {
			note(v.Causes)
		}
	}
	for table := range k.Tables {
		for _, d := range model.Directions {
			note(k.Unlisted(table, d).Causes)
		}
	}
	return found
}

// applyAlone applies a State, and returns how many numbers got another meaning. last holds the last moment at which each
// number was reachable.
func (k *kernel) applyAlone(t *testing.T, state *model.State, last map[uint32]time.Time) (reused int) {
	t.Helper()
	for _, step := range dataplane.Plan(k.layout.State(), state) {
		k.now = k.now.Add(700 * time.Millisecond)
		for n := range k.reachable() {
			last[n] = k.now
		}
		w, err := k.layout.Advance(step, k.now)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range w.Causes {
			if _, had := k.Causes[c.Number]; !c.Fresh || !had {
				continue
			}
			if reused++; k.now.Sub(last[c.Number]) < policymap.Grace {
				t.Fatalf("number %d gets another meaning %s after it was reachable", c.Number, k.now.Sub(last[c.Number]))
			}
		}
		k.Entries.Execute(w)
	}
	return reused
}

// Without room for all causes, each flow is counted for its own cause or for none. A number gets another meaning only
// after the grace period.
func TestCausesWithoutRoom(t *testing.T) {
	shape := world.Shape{Pods: 8, Policies: 8, Tiers: true}
	tight := roomy
	tight.Causes, tight.CauseBlocks = int(bpfobj.CauseFirst)+14, 6
	k := newKernel()
	k.layout = policymap.NewLayout(tight)
	s := world.Random(3, shape)
	var state *model.State
	last := make(map[uint32]time.Time)
	own, shared, reused, reported := 0, 0, 0, 0
	for edit := range uint64(60) {
		s = world.Mutate(edit+1, s, shape, 3)
		state = stateOf(t, s, state)
		for id := range state.Policy.Endpoints {
			w, err := k.layout.AddSlot(id)
			if err != nil {
				t.Fatal(err)
			}
			k.Slots[w.Index] = w.Slot
		}
		reused += k.applyAlone(t, state, last)
		before := shared
		addrs, ports := world.Probes(s)
		for id, e := range state.Policy.Endpoints {
			slot, _ := k.layout.Slot(id)
			for _, d := range model.Directions {
				for _, a := range addrs {
					if slices.Contains(e.IPs, a) {
						continue
					}
					for _, at := range ports {
						want := state.Policy.Decide(id, d, a, at.Protocol, at.Port)
						n := k.Cause(k.VerdictRow(slot, d, k.Class(a)), d, at.Protocol, at.Port)
						if n == bpfobj.CauseOther+uint32(d)*2+uint32(want.Verdict) {
							shared++
							continue
						}
						own++
						k.checkCause(t, n, want)
					}
				}
			}
		}
		if n := len(k.layout.Uncounted()); shared > before && n == 0 {
			t.Fatalf("edit %d: flows share a counter, but no cause is reported", edit)
		} else if n > 0 {
			reported++
		}
		k.checkNotes(t)
	}
	t.Logf("own=%d shared=%d reused=%d reported=%d", own, shared, reused, reported)
	if own == 0 || shared == 0 || reused == 0 || reported == 0 {
		t.Errorf("%d flows had a cause of their own, %d none, %d numbers were used again, after %d edits causes were reported without room",
			own, shared, reused, reported)
	}
}
