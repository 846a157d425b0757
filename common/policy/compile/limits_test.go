// SPDX-License-Identifier: Apache-2.0

package compile_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/world"
)

// neverLooser checks that the State denies every flow that the reference denies.
func neverLooser(t *testing.T, in compile.Input, state *model.State) (over int) {
	t.Helper()
	s := effective(in)
	reference := policy.NewEvaluator(s)
	addrs, ports := world.Probes(s)
	answers := newAnswers(state, addrs)
	for id, e := range in.Endpoints {
		pod, ok := s.Pods.Get(e.Pod)
		if !ok {
			continue
		}
		own := *pod
		own.IPs, own.Node = e.IPs, in.Node
		for _, d := range model.Directions {
			one := reference.Pod(&own, d)
			for i, a := range addrs {
				remote := remoteOf(reference, one, a)
				for _, at := range ports {
					want := remote.Decide(at.Protocol, at.Port)
					got := answers.decide(id, d, i, at.Protocol, at.Port)
					switch {
					case want.Verdict == model.Deny && got.Verdict == model.Allow:
						t.Fatalf("%s %s %s %s/%d: reference %s, table %s", e.Pod, d, a, at.Protocol, at.Port, want, got)
					case want.Verdict != got.Verdict:
						over++
					}
				}
			}
		}
	}
	return over
}

// withinLimits checks that a State keeps to its limits. Two Tables that no policy makes are
// exempt: those of pods that no policy selects, and of pods that are not known yet.
func withinLimits(t *testing.T, s *model.State, l compile.Limits) {
	t.Helper()
	for _, c := range []struct {
		what       string
		have, most int
	}{
		{"port classes", len(s.Policy.PortClasses), l.PortClasses}, {"peer classes", len(s.Policy.PeerClasses), l.PeerClasses}, {"tables", len(s.Policy.Tables) - 2, l.Tables},
		{"addresses", s.Policy.Addresses.Len(), l.Addresses},
	} {
		if c.most > 0 && c.have > c.most {
			t.Errorf("%d %s, want %d at most", c.have, c.what, c.most)
		}
	}
}

// TestLimitsFailClosed compiles histories under limits that are too small. No cell is
// allowed that policies deny, every additional denial is reported, and the State does not
// depend on the history.
func TestLimitsFailClosed(t *testing.T) {
	seeds := uint64(2)
	if testing.Short() {
		seeds = 1
	}
	limits := map[string]compile.Limits{
		"peers": {PeerClasses: 5}, "overlaps": {Overlaps: 5}, "ports": {PortClasses: 4}, "rows": {Rows: 12}, "tables": {Tables: 2}, "addresses": {Addresses: 6},
		"all": {PeerClasses: 8, Overlaps: 8, PortClasses: 8, Rows: 40, Tables: 3, Addresses: 8},
	}
	for name, l := range limits {
		t.Run(name, func(t *testing.T) {
			over, reports := 0, 0
			for i, shape := range world.Shapes {
				for seed := range seeds {
					h := newHistory(seed, shape)
					c := compile.New()
					for step := range 8 {
						h.input.Limits = l
						if step == 3 {
							h.input.Limits = compile.Limits{} // everything fits for a while
						}
						state, unsupported := c.Compile(h.input)
						full, again := compile.Once(h.input)
						if !slices.Equal(unsupported, again) {
							t.Fatalf("shape%d/%d: reported %v, from scratch %v", i, seed, unsupported, again)
						}
						equalToFull(t, state, full)
						withinLimits(t, state, h.input.Limits)
						n := neverLooser(t, h.input, state)
						if n > 0 && len(unsupported) == 0 {
							t.Fatalf("shape%d/%d: %d cells are denied and nothing is reported", i, seed, n)
						}
						for _, u := range unsupported {
							if u.Policy.Name == "" || u.Reason == "" || u.Construct == "" || u.Effect != model.OverBlocks {
								t.Fatalf("a report says too little: %+v", u)
							}
						}
						over += n
						reports += len(unsupported)
						h.step()
					}
				}
			}
			if over == 0 || reports == 0 {
				t.Errorf("%d cells were denied too much, %d reports: the limits were never reached", over, reports)
			}
		})
	}
}

// blocks returns n blocks of 24 bits. If they overlap, each is an exception of one CIDR.
func blocks(n int, overlap bool) (all []model.Peer) {
	for i := range n {
		b := model.IPBlock{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 0}), 24)}
		if overlap {
			b.CIDR, b.Except = netip.MustParsePrefix("16.0.0.0/4"), []netip.Prefix{b.CIDR}
		}
		all = append(all, model.Peer{Kind: model.PeerBlock, Block: b})
	}
	return all
}

// TestOneLargePolicyLeavesOthersExact checks that one large policy does not make others
// inexact when limits are reached.
func TestOneLargePolicyLeavesOthersExact(t *testing.T) {
	pods := []*model.Pod{}
	for i, name := range []string{"small", "large", "peer"} {
		pods = append(pods, &model.Pod{PodID: model.PodID{Namespace: "x", Name: name}, Node: "node1",
			Labels: model.MakeLabels(map[string]string{"app": name}), IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(2 + i)})}})
	}
	isolate := func(name string, rules ...model.Rule) *model.Policy {
		p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: name}, Tier: model.TierNetworkPolicy,
			Subject:  model.PodSelector{Namespace: "x", Pods: model.MakeSelector(model.Requirement{Key: "app", Values: []string{name}})},
			Isolates: [2]bool{true, false}}
		for i := range rules {
			rules[i].Index, rules[i].Action = i, model.ActionAccept
		}
		p.Rules[model.Ingress] = rules
		return p
	}
	ports := func(first, last int) (all []model.PortMatch) {
		for p := first; p <= last; p++ {
			all = append(all, model.PortMatch{Protocol: model.TCP, First: uint16(2 * p), Last: uint16(2 * p)})
		}
		return all
	}
	for name, c := range map[string]struct {
		large  []model.Rule
		limits compile.Limits
	}{
		"peers that overlap": {[]model.Rule{{Peers: blocks(3, false), AnyPort: true}, {Peers: blocks(100, true), Ports: ports(1, 1)}}, compile.Limits{Overlaps: 40}},
		"ports":              {[]model.Rule{{AnyPeer: true, Ports: ports(1, 3)}, {AnyPeer: true, Ports: ports(4, 5000)}}, compile.Limits{}},
		"peers":              {[]model.Rule{{Peers: blocks(3, false), AnyPort: true}, {Peers: blocks(800, false), Ports: ports(1, 1)}}, compile.Limits{PeerClasses: 40}},
	} {
		t.Run(name, func(t *testing.T) {
			small := isolate("small", model.Rule{Peers: []model.Peer{{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: netip.MustParsePrefix("30.0.0.0/8")}}},
				Ports: []model.PortMatch{{Protocol: model.TCP, First: 60000, Last: 60000}}})
			s := model.MakeSnapshot(nil, []*model.Node{{Name: "node1"}}, pods, []*model.Policy{small, isolate("large", c.large...)})
			state, unsupported := compile.Once(compile.Input{Snapshot: s, Node: "node1", Endpoints: world.Endpoints(s, "node1"), Limits: c.limits})
			for _, u := range unsupported {
				if u.Policy.Name != "large" || u.Direction != model.Ingress || u.Construct != strings.Fields(name)[0] {
					t.Errorf("%s is reported", u)
				}
			}
			if len(unsupported) == 0 {
				t.Error("nothing is reported")
			}
			if n := len(state.Policy.Prefixes); n > 4 {
				t.Errorf("%d prefixes are listed, want those of rules in force", n)
			}
			reference := policy.NewEvaluator(s)
			for _, p := range []uint16{0, 4, 60000, 60001} {
				for _, a := range []string{"20.0.1.1", "30.1.1.1", "40.1.1.1", "10.0.1.4"} {
					for _, pod := range []*model.Pod{pods[0], pods[2]} {
						want := reference.Endpoint(pod, model.Ingress, netip.MustParseAddr(a), model.TCP, p).Verdict
						if got := state.Policy.Decide(world.EndpointID(pod), model.Ingress, netip.MustParseAddr(a), model.TCP, p).Verdict; got != want {
							t.Errorf("%s from %s to TCP/%d: %s, want %s", pod.PodID, a, p, got, want)
						}
					}
				}
			}
			if state.Policy.Decide(world.EndpointID(pods[1]), model.Ingress, netip.MustParseAddr("20.0.1.1"), model.TCP, 2).Verdict != model.Allow {
				t.Error("the rule of the large policy that has a place is not in force")
			}
		})
	}
}
