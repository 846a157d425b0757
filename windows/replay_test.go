// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/world"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestEveryCallShowsOldOrNew makes random changes and checks all flows after every single call to HNS.
func TestEveryCallShowsOldOrNew(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 3
	}
	checks := 0
	for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
		for seed := range seeds {
			t.Run(fmt.Sprintf("hns%s/%d", profile, seed), func(t *testing.T) {
				n := newNode(t, profile, bridgeConfig())
				shape := world.Shape{Pods: 6, Policies: 4, Tiers: true}
				a := snapshot(seed, shape)
				old := stateOf(a, nil)
				n.addAll(old)
				n.apply(old)
				b := world.Mutate(seed, a, shape, 3)
				next := stateOf(onlyAttached(b, old), old)
				addrs, ports := world.Probes(a)
				more, morePorts := world.Probes(b)
				addrs, ports = append(addrs, more...), append(ports, morePorts...)
				look := func() {
					for id, e := range next.Policy.Endpoints {
						rules, err := n.fake.Rules(n.name(id))
						if err != nil {
							t.Error(err)
							continue
						}
						for _, remote := range addrs {
							if slices.Contains(e.IPs, remote) || remote == hostAddress {
								continue
							}
							for _, d := range model.Directions {
								part := rules.Between(acl.PacketDirection(d), e.IPs[0], remote, hns.Reading{})
								before, after := toward(old, id, d, remote), toward(next, id, d, remote)
								for _, at := range ports {
									was, will := before(at).Verdict == model.Allow, after(at).Verdict == model.Allow
									checks++
									if got := part.Decide(uint8(at.Protocol), at.Port, 0).Allow; got != was && got != will {
										t.Errorf("%s %s %s %s/%d is %t, before %t, after %t\n%s", id, d, remote, at.Protocol, at.Port, got, was, will, n.fake.Dump())
									}
								}
							}
						}
					}
				}
				n.fake.After(func(op, _ string) error {
					if strings.HasPrefix(op, "Modify") {
						look()
					}
					return nil
				})
				n.apply(next)
				n.fake.After(nil)
				n.compare(next, addrs, ports)
			})
		}
	}
	t.Logf("checks=%d", checks)
}

// TestReplay applies the same States in other ways: repeated, with steps left out, and with a
// restart of the agent after each. The final state must be the same.
func TestReplay(t *testing.T) {
	for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
		for seed := range uint64(10) {
			shape := world.Shape{Pods: 7, Policies: 4, Tiers: seed%2 == 0}
			a := snapshot(seed+50, shape)
			first := stateOf(a, nil)
			states := []*model.State{first}
			for round := range uint64(4) {
				a = onlyAttached(world.Mutate(seed+round*17, a, shape, 2), first)
				states = append(states, stateOf(a, states[len(states)-1]))
			}
			last := states[len(states)-1]
			addrs, ports := world.Probes(a)
			for name, replay := range map[string]func(*node){
				"in order": func(n *node) {
					for _, s := range states {
						n.apply(s)
					}
				},
				"twice each": func(n *node) {
					for _, s := range states {
						n.apply(s)
						n.apply(s)
					}
				},
				"backwards first": func(n *node) {
					for _, s := range slices.Backward(states) {
						n.apply(s)
					}
					n.apply(last)
				},
				"only the last": func(n *node) { n.apply(last) },
				"restarts": func(n *node) {
					for _, s := range states {
						n.apply(s)
						n.start()
					}
					n.apply(stateOf(a, nil))
				},
			} {
				t.Run(fmt.Sprintf("hns%s/%d/%s", profile, seed, name), func(t *testing.T) {
					n := newNode(t, profile, bridgeConfig())
					n.addAll(first)
					replay(n)
					n.compare(onlyNamed(last, first), addrs, ports)
				})
			}
		}
	}
}

// onlyNamed leaves only endpoints that both States have.
func onlyNamed(s, also *model.State) *model.State {
	c := *s
	c.Policy.Endpoints = maps.Clone(s.Policy.Endpoints)
	maps.DeleteFunc(c.Policy.Endpoints, func(id model.EndpointID, _ model.EndpointState) bool {
		_, ok := also.Policy.Endpoints[id]
		return !ok
	})
	return &c
}
