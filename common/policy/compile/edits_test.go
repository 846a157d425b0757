// SPDX-License-Identifier: Apache-2.0

package compile_test

import (
	"fmt"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/world"
)

// TestEditsOfOneField edits every field of every policy, one at a time, under a Compiler
// that has compiled the policy before. The edited State must equal one that is compiled from
// scratch, and so must the State after the edit is undone.
func TestEditsOfOneField(t *testing.T) {
	seeds, every := uint64(3), 1
	if testing.Short() {
		seeds, every = 2, 2
	}
	edits, fields := 0, make(map[string]bool)
	for i, shape := range world.Shapes {
		for seed := range seeds {
			t.Run(fmt.Sprintf("shape%d/%d", i, seed), func(t *testing.T) {
				in := compile.Input{Snapshot: world.Random(seed+500, shape), Node: "node1"}
				in.Endpoints = world.Endpoints(in.Snapshot, "node1")
				c := compile.New()
				c.Compile(in)
				for n, p := range in.Snapshot.SortedPolicies() {
					for m, e := range world.Edits(p) {
						if (n+m)%every == 0 {
							changed := in
							changed.Snapshot = withPolicy(in.Snapshot, e.Policy)
							sameAsScratch(t, c, changed, e.Field)
							c.Compile(in)
							edits++
							fields[e.Field] = true
						}
					}
				}
				sameAsScratch(t, c, in, "every edit undone")
			})
		}
	}
	t.Logf("edits=%d fields=%d", edits, len(fields))
}

func withPolicy(s *model.Snapshot, p *model.Policy) *model.Snapshot {
	c := *s
	c.Policies = s.Policies.With(p.Origin.Key(), p)
	return &c
}

// sameAsScratch compiles an input with a Compiler that has a history, and compares every
// cell with a State that was compiled without one.
func sameAsScratch(t *testing.T, c *compile.Compiler, in compile.Input, field string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Log("after the edit of", field)
		}
	}()
	state, _ := c.Compile(in)
	full, _ := compile.Once(in)
	for id, e := range full.Policy.Endpoints {
		if state.Policy.Endpoints[id].Table != e.Table {
			t.Fatalf("%s: endpoint %s is under table %s, from scratch %s", field, id, state.Policy.Endpoints[id].Table, e.Table)
		}
	}
	for id := range full.Policy.Tables {
		if state.Policy.Tables[id] == nil {
			t.Fatalf("%s: table %s is missing", field, id)
		}
	}
	equalToFull(t, state, full)
}

// TestEditsAreDecided edits every field of some policies and compares every cell with the
// reference. It finds errors that the Compiler also makes from scratch.
func TestEditsAreDecided(t *testing.T) {
	seeds := uint64(2)
	if testing.Short() {
		seeds = 1
	}
	cells := 0
	for i, shape := range world.Shapes {
		small := shape
		small.Pods, small.Policies = 4, 2
		for seed := range seeds {
			t.Run(fmt.Sprintf("shape%d/%d", i, seed), func(t *testing.T) {
				in := compile.Input{Snapshot: world.Random(seed+700, small), Node: "node1"}
				in.Endpoints = world.Endpoints(in.Snapshot, "node1")
				c := compile.New()
				c.Compile(in)
				for _, p := range in.Snapshot.SortedPolicies() {
					for _, e := range world.Edits(p) {
						changed := in
						changed.Snapshot = withPolicy(in.Snapshot, e.Policy)
						state, _ := c.Compile(changed)
						cells += equalToReference(t, changed, state)
						c.Compile(in)
					}
				}
			})
		}
	}
	t.Logf("cells=%d", cells)
}
