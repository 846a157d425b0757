// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"fmt"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/world"
)

var shapes = []world.Shape{
	{Pods: 12, Policies: 8, Tiers: true, IPv6: true},
	{Pods: 20, Policies: 12, Nodes: 2},
}

// rendered is a matrix and a diff as text. Groups have their numbers as names.
func rendered(t *testing.T, a, b *model.Snapshot, block int) string {
	t.Helper()
	p := New(a, b)
	p.block = block
	text := ""
	for _, v6 := range []bool{false, true} {
		all := p.Groups(v6)
		err := p.Reach(all, all, func(i int, allowed []PortsID) error {
			for j, id := range allowed {
				text += fmt.Sprintln(v6, i, j, p.Members(id))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	ids := func(groups []*Group) (list []string) {
		for _, g := range groups {
			list = append(list, fmt.Sprint(g.V6, g.id, len(g.Pods)))
		}
		return list
	}
	for _, c := range p.Changes() {
		text += fmt.Sprintln(ids(c.From), ids(c.To), p.Members(c.Ports), c.Was, c.Is, c.By)
	}
	return text
}

// Sources are processed in blocks. The bounds of blocks make no difference.
func TestBlocks(t *testing.T) {
	for i, shape := range shapes {
		for seed := range uint64(5) {
			a := world.Random(seed, shape)
			b := world.Mutate(seed, a, shape, 4)
			want := rendered(t, a, b, 1024)
			for _, block := range []int{1, 3, 7} {
				if got := rendered(t, a, b, block); got != want {
					t.Fatalf("shape %d seed %d: in blocks of %d\n%s\nwant\n%s", i, seed, block, got, want)
				}
			}
		}
	}
}

// Equal versions of a cluster have no changes. Exchanging the versions exchanges the
// verdicts of the changes.
func TestMirror(t *testing.T) {
	changes := 0
	for i, shape := range shapes {
		for seed := range uint64(5) {
			a := world.Random(seed, shape)
			b := world.Mutate(seed, a, shape, 4)
			if c := New(a, a).Changes(); len(c) > 0 {
				t.Errorf("shape %d seed %d: %d changes of nothing", i, seed, len(c))
			}
			there, back := flows(New(a, b)), flows(New(b, a))
			for f, was := range there {
				if is, ok := back[f]; !ok || is != 1-was {
					t.Errorf("shape %d seed %d: %s was %s, and back it was %s", i, seed, f, was, is)
				}
			}
			if len(there) != len(back) {
				t.Errorf("shape %d seed %d: %d flows there and %d back", i, seed, len(there), len(back))
			}
			changes += len(there)
		}
	}
	if changes == 0 {
		t.Error("nothing ever changed")
	}
}

// flows lists every pair of pods and every port that change, with the verdict before.
func flows(p *Partition) map[string]model.Verdict {
	all := make(map[string]model.Verdict)
	members := func(groups []*Group) (list []string) {
		for _, g := range groups {
			for _, m := range g.Pods {
				list = append(list, fmt.Sprint(g.V6, m.ID))
			}
		}
		return list
	}
	for _, c := range p.Changes() {
		for _, from := range members(c.From) {
			for _, to := range members(c.To) {
				for _, n := range p.Members(c.Ports) {
					all[fmt.Sprint(from, to, p.Cells()[n])] = c.Was
				}
			}
		}
	}
	return all
}

// Members of one class are in the same sets, in every order of the sets.
func TestClasses(t *testing.T) {
	const n = 300
	c := newClasses(make([]int32, n), 1, n)
	divisors := []int{2, 3, 5, 7, 2, 300, 1}
	for _, d := range divisors {
		s := newSet(n)
		for i := 0; i < n; i += d {
			s.add(i)
		}
		c.split(s.all())
	}
	c.splitBy(fullSet(n).all(), func(i int) int32 { return int32(i % 4) })
	for i := range n {
		for j := range i {
			same := i%4 == j%4 && !slices.ContainsFunc(divisors, func(d int) bool { return (i%d == 0) != (j%d == 0) })
			if (c.class[i] == c.class[j]) != same {
				t.Fatalf("%d and %d: one class %t, want %t", i, j, !same, same)
			}
		}
	}
}
