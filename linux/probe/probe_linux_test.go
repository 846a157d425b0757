// SPDX-License-Identifier: Apache-2.0

package probe_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux/probe"
	"github.com/isthmus-net/isthmus/test/world"
)

// The real programs give the verdict of the State for every cell, also after changes.
func TestProgramEqualsState(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	p, err := probe.Load()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	shapes := []world.Shape{{Pods: 5, Policies: 4}, {Pods: 6, Policies: 6, Tiers: true, IPv6: true}}
	cells := 0
	var previous *model.State
	for i, shape := range shapes {
		for seed := range uint64(12) {
			t.Run(fmt.Sprintf("shape%d/%d", i, seed), func(t *testing.T) {
				s := world.Random(seed, shape)
				state, _ := compile.Once(compile.Input{Snapshot: s, Node: "node1", Endpoints: world.Endpoints(s, "node1"), Previous: previous})
				if err := p.Apply(state); err != nil {
					t.Fatal(err)
				}
				previous = state
				cells += compare(t, p, s, state)
			})
		}
	}
	t.Logf("cells=%d", cells)
}

func compare(t *testing.T, p *probe.Programs, s *model.Snapshot, state *model.State) (cells int) {
	addrs, ports := world.Probes(s)
	for id, e := range state.Policy.Endpoints {
		for _, d := range model.Directions {
			for _, a := range addrs {
				if slices.Contains(e.IPs, a) || !slices.ContainsFunc(e.IPs, func(own netip.Addr) bool { return own.Is6() == a.Is6() }) {
					continue
				}
				for _, at := range ports {
					if at.Protocol == model.ICMP && a.Is6() {
						at.Protocol = model.ICMPv6
					}
					got, err := p.Decide(id, d, a, at.Protocol, at.Port)
					if err != nil {
						t.Fatal(err)
					}
					cells++
					want := state.Policy.Decide(id, d, a, at.Protocol, at.Port)
					if d == model.Egress && ofTheLink(a) {
						want.Verdict = model.Deny
					}
					if got != want.Verdict {
						t.Fatalf("%s %s %s %s/%d: program says %s, state %s", id, d, a, at.Protocol, at.Port, got, want)
					}
				}
			}
		}
	}
	return cells
}

// ofTheLink reports whether a pod may not send to an address although policy allows it: no router forwards such packets (ADR 34).
func ofTheLink(a netip.Addr) bool {
	return a.IsLinkLocalMulticast() || a.Is6() && a.IsLinkLocalUnicast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
