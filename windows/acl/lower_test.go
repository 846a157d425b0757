// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/world"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

var shapes = []world.Shape{
	{Pods: 6, Policies: 3},
	{Pods: 10, Policies: 8, IPv6: true},
	{Pods: 8, Policies: 8, Tiers: true},
	{Pods: 8, Policies: 10, Tiers: true, IPv6: true},
	{Pods: 20, Policies: 6, Nodes: 1},
}

func stateOf(s *model.Snapshot, node string, previous *model.State) *model.State {
	state, _ := compile.Once(compile.Input{Snapshot: s, Node: node, Endpoints: world.Endpoints(s, node), Previous: previous})
	return state
}

func options(v hns.Version) acl.Options {
	return acl.Options{Sets: v.Supports(hns.Sets)}.Defaults()
}

// TestLookupEqualsState evaluates, with the lowered lists, every flow that could distinguish them
// from the State, under every reading and for every profile.
func TestLookupEqualsState(t *testing.T) {
	seeds := uint64(6)
	if testing.Short() {
		seeds = 2
	}
	cells := 0
	for _, profile := range hns.Profiles() {
		for i, shape := range shapes {
			for seed := range seeds {
				t.Run(fmt.Sprintf("hns%s/shape%d/%d", profile, i, seed), func(t *testing.T) {
					s := world.Random(seed, shape)
					state := stateOf(s, "node1", nil)
					l := acl.Lower(state, options(profile), profile.String())
					if len(l.Unsupported) > 0 {
						t.Fatal(l.Unsupported)
					}
					addrs, ports := world.Probes(s)
					for id, e := range state.Policy.Endpoints {
						cells += lookup(t, state, l, id, e, addrs, ports)
					}
				})
			}
		}
	}
	t.Logf("cells=%d", cells)
}

func lookup(t *testing.T, state *model.State, l *acl.Lowering, id model.EndpointID, e model.EndpointState, addrs []netip.Addr, ports []world.Port) (cells int) {
	t.Helper()
	rules, err := l.Rules(id)
	if err != nil {
		t.Fatalf("%v\n%s", err, hns.FormatACLs("", l.Lists[id]))
	}
	for _, d := range model.Directions {
		for _, remote := range addrs {
			if slices.Contains(e.IPs, remote) {
				continue
			}
			row := state.Policy.Tables[e.Table].Sides[d].Row(state.Policy.Class(remote))
			want := make([]model.Decision, len(ports))
			for i, at := range ports {
				want[i] = row.Cell(state.Policy.PortClass(at.Protocol, at.Port))
			}
			for _, reading := range hns.Readings() {
				part := rules.Between(acl.PacketDirection(d), e.IPs[0], remote, reading)
				for i, at := range ports {
					got := part.Decide(uint8(at.Protocol), at.Port, 0)
					cells++
					if got.Allow != (want[i].Verdict == model.Allow) {
						t.Fatalf("%s %s %s %s/%d: state %s, list %t by %q under %s\n%s", id, d, remote, at.Protocol, at.Port, want[i], got.Allow, got.ID, reading, hns.FormatACLs("", l.Lists[id]))
					}
				}
			}
		}
	}
	return cells
}

// TestCheckAgrees checks the lists over the whole space and not only at the probes. It also checks
// that Check detects wrong lists.
func TestCheckAgrees(t *testing.T) {
	mutants, caught := 0, 0
	seeds := uint64(25)
	if testing.Short() {
		seeds = 5
	}
	for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
		for i, shape := range shapes {
			for seed := range seeds {
				state := stateOf(world.Random(seed+100, shape), "node1", nil)
				l := acl.Lower(state, options(profile), profile.String())
				for id := range state.Policy.Endpoints {
					if err := acl.Check(state, id, options(profile), &l.Ruleset, hns.Readings()...); err != nil {
						t.Fatalf("shape%d/%d: %v\n%s", i, seed, err, hns.FormatACLs("", l.Lists[id]))
					}
					m, c := mutate(state, l, id, options(profile))
					mutants += m
					caught += c
				}
			}
		}
	}
	t.Logf("mutants=%d caught=%d", mutants, caught)
	if caught < mutants*9/10 {
		t.Errorf("of %d damaged lists only %d were noticed", mutants, caught)
	}
}

// mutate damages one ACL at a time and counts how often Check detects it. Some damage has no
// observable effect.
func mutate(state *model.State, l *acl.Lowering, id model.EndpointID, o acl.Options) (mutants, caught int) {
	original := l.Lists[id]
	for i, a := range original {
		if a.RuleType != hns.Switch {
			continue
		}
		list := slices.Clone(original)
		list[i].Action = map[hns.Action]hns.Action{hns.Allow: hns.Block, hns.Block: hns.Allow}[a.Action]
		p := &acl.Ruleset{Lists: map[model.EndpointID][]hns.ACL{id: list}, Sets: l.Sets}
		mutants++
		if acl.Check(state, id, o, p, hns.Reading{}) != nil {
			caught++
		}
	}
	return mutants, caught
}
