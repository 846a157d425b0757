// SPDX-License-Identifier: Apache-2.0

package query

import (
	"fmt"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/world"
)

// TestResponsiblePolicies checks that every change names what is responsible. For each flow of the probes, a policy
// that is not named neither changes the first version alone, nor is needed in the second.
func TestResponsiblePolicies(t *testing.T) {
	changes, several, objects := 0, 0, 0
	for i, shape := range reachShapes {
		for seed := range seeds() {
			a := world.Random(seed+uint64(300*i), shape)
			b := world.Mutate(seed, a, shape, 1+int(seed)%4)
			r := compareVersions(reach.New(a, b), a, b, false)
			for _, c := range r.Changes {
				changes++
				if len(c.Responsible) == 0 && !c.Objects || c.Unsure {
					t.Errorf("%s -> %s: nothing is responsible, or unsure", c.From[0], c.To[0])
				}
				if len(c.Responsible) > 1 {
					several++
				}
				if c.Objects {
					objects++
				}
			}
			t.Run(fmt.Sprintf("shape%d/%d", i, seed), func(t *testing.T) { checkResponsible(t, a, b, r) })
		}
	}
	t.Logf("changes=%d several=%d objects=%d", changes, several, objects)
	// The few seeds of -short have no change with several responsible policies.
	if several == 0 && !testing.Short() || objects == 0 || changes < 100 {
		t.Error("too few kinds of changes")
	}
}

func checkResponsible(t *testing.T, a, b *model.Snapshot, r *diffReport) {
	t.Helper()
	edits := reach.Edits(a.SortedPolicies(), b.SortedPolicies())
	var alone, without []*policy.Evaluator
	for _, e := range edits {
		alone = append(alone, policy.NewEvaluator(swapped(a, e.Was, e.Is)))
		without = append(without, policy.NewEvaluator(swapped(b, e.Is, e.Was)))
	}
	addrs, ports := probesOf(a, b)
	named := make(map[string]truth)
	for _, e := range allEnds(reach.New(a, b), 2, addrs) {
		named[e.name] = e
	}
	for _, c := range r.Changes {
		from, to := named[c.From[0]], named[c.To[len(c.To)-1]]
		if from.name == to.name || from.addrs == nil || to.addrs == nil {
			continue
		}
		for _, p := range ports {
			if !contains(c.Ports, p) {
				continue
			}
			for i, e := range edits {
				ones := verdictOf(alone[i], from.addrs[0], to.addrs[0], p).String() != c.Was
				needs := verdictOf(without[i], from.addrs[1], to.addrs[1], p).String() != c.Is
				has := slices.ContainsFunc(c.Responsible, func(d diffEdit) bool { return d.Policy == e.Origin().String() })
				if (ones || needs) && !has {
					t.Fatalf("%s -> %s %v: %s is responsible, report names %v", from.name, to.name, p, e.Origin(), c.Responsible)
				}
			}
		}
	}
}

// swapped returns a snapshot in which one policy replaces another; either may be nil.
func swapped(s *model.Snapshot, without, with *model.Policy) *model.Snapshot {
	var policies []*model.Policy
	for _, p := range s.SortedPolicies() {
		if p != without {
			policies = append(policies, p)
		}
	}
	if with != nil {
		policies = append(policies, with)
	}
	var namespaces []*model.Namespace
	for _, n := range s.Namespaces.All() {
		namespaces = append(namespaces, n)
	}
	var nodes []*model.Node
	for _, n := range s.Nodes.All() {
		nodes = append(nodes, n)
	}
	var pods []*model.Pod
	for _, p := range s.Pods.All() {
		pods = append(pods, p)
	}
	return model.MakeSnapshot(namespaces, nodes, pods, policies)
}
