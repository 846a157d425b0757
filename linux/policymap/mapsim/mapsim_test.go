// SPDX-License-Identifier: Apache-2.0

package mapsim_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux/policymap/mapsim"
	"github.com/isthmus-net/isthmus/test/world"
)

// A Node that moves from one State to the next decides as the State does. So do Maps that are
// laid out from nothing.
func TestDecidesAsTheState(t *testing.T) {
	asked := 0
	for i, shape := range world.Shapes {
		node, s := mapsim.New(), world.Random(uint64(i), shape)
		var state *model.State
		for change := range uint64(4) {
			s = world.Mutate(change, s, shape, 3)
			state, _ = compile.Once(compile.Input{Snapshot: s, Node: "node1", Endpoints: world.Endpoints(s, "node1"), Previous: state})
			if err := node.Apply(state); err != nil {
				t.Fatal(err)
			}
			maps, err := mapsim.Encode(state)
			if err != nil {
				t.Fatal(err)
			}
			if problems := maps.Problems(); len(problems) > 0 {
				t.Errorf("shape %d change %d: %v", i, change, problems)
			}
			addrs, ports := world.Probes(s)
			for id, e := range state.Policy.Endpoints {
				slot, ok := maps.Slot(id)
				if !ok {
					t.Fatalf("endpoint %s has no slot", id)
				}
				for _, d := range model.Directions {
					for _, a := range addrs {
						if slices.Contains(e.IPs, a) {
							continue
						}
						for _, at := range ports {
							want := state.Policy.Decide(id, d, a, at.Protocol, at.Port).Verdict
							got, err := node.Decide(id, d, a, at.Protocol, at.Port)
							laidOut := maps.Verdict(maps.Row(slot, d, maps.Class(a)), at.Protocol, at.Port)
							if asked++; err != nil || got != want || laidOut != want {
								t.Fatalf("shape %d change %d: %s %s %s %v: node %s (%v), maps %s, want %s", i, change, id, d, a, at, got, err, laidOut, want)
							}
						}
					}
				}
			}
		}
	}
	t.Logf("flows=%d", asked)
	if asked == 0 {
		t.Error("no flow was asked about")
	}
}

// An endpoint that is in no State is always denied.
func TestUnknownEndpoint(t *testing.T) {
	s := world.Random(1, world.Shapes[0])
	addrs, _ := world.Probes(s)
	if v, err := mapsim.New().Decide("unknown", model.Ingress, addrs[0], model.TCP, 80); v != model.Deny || err != nil {
		t.Error(fmt.Sprint(v, err))
	}
}
