// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/world"
)

var surveyShapes = []world.Shape{
	{Pods: 6, Policies: 4},
	{Pods: 9, Policies: 8, IPv6: true},
	{Pods: 8, Policies: 8, Tiers: true},
	{Pods: 10, Policies: 10, Tiers: true, IPv6: true, Nodes: 2},
}

// seeds is how many clusters of each shape are tried.
func seeds() uint64 {
	if testing.Short() {
		return 4
	}
	return 12
}

// truth is one end of a flow as a test sees it: a name that both versions of a
// cluster share, and the address in each.
type truth struct {
	name  string // as reports call it
	pod   bool
	addrs []netip.Addr
}

// ends lists pods and nodes that all worlds have, and addresses that nobody has
// in any of them, under the name of the range that they are in.
func ends(s *survey, probes []netip.Addr) []truth {
	var all []truth
	for _, g := range s.groups {
		for i, m := range g.pods {
			all = append(all, truth{g.names()[i], true, m.addrs})
		}
	}
	owned := s.owned()
	at := func(a netip.Addr) []netip.Addr {
		var same []netip.Addr
		for range s.variants {
			same = append(same, a)
		}
		return same
	}
	var ranges []*addressRange
	for _, g := range s.groups {
		ranges = append(ranges, g.ranges...)
	}
	for _, a := range probes {
		if owned[a] {
			continue
		}
		var in *addressRange
		for _, r := range ranges {
			if r.prefix.Contains(a) && (in == nil || r.prefix.Bits() > in.prefix.Bits()) {
				in = r
			}
		}
		all = append(all, truth{in.String(), false, at(a)})
	}
	for _, n := range s.nodes {
		all = append(all, truth{n.names()[0], false, at(n.addr)})
	}
	return all
}

// probesOf joins the probes of several worlds.
func probesOf(snapshots ...*model.Snapshot) (addrs []netip.Addr, ports []world.Port) {
	seen, at := make(map[netip.Addr]bool), make(map[world.Port]bool)
	for _, s := range snapshots {
		more, morePorts := world.Probes(s)
		for _, a := range more {
			if !seen[a] {
				addrs = append(addrs, a)
			}
			seen[a] = true
		}
		for _, p := range morePorts {
			if !at[p] {
				ports = append(ports, p)
			}
			at[p] = true
		}
	}
	return addrs, ports
}

func verdictOf(e *policy.Evaluator, src, dst netip.Addr, p world.Port) model.Verdict {
	egress, ingress := e.Flow(model.Flow{Src: src, Dst: dst, Protocol: p.Protocol, Port: p.Port})
	return min(egress.Verdict, ingress.Verdict)
}

// contains reports whether a report names the port.
func contains(sets []portSet, p world.Port) bool {
	for _, s := range sets {
		if s.Protocol == p.Protocol.String() && s.First <= p.Port && p.Port <= s.Last || s.Protocol == otherProtocols && !p.Protocol.HasPorts() {
			return true
		}
	}
	return false
}

// Every flow of the probes whose verdict differs is in the report once, and
// none that does not differ.
func TestDiffIsComplete(t *testing.T) {
	flows, differ := 0, 0
	for i, shape := range surveyShapes {
		for seed := range seeds() {
			a := world.Random(seed+uint64(100*i), shape)
			b := world.Mutate(seed, a, shape, 1+int(seed)%5)
			t.Run(fmt.Sprintf("shape%d/%d", i, seed), func(t *testing.T) {
				f, d := checkDiff(t, a, b)
				flows, differ = flows+f, differ+d
			})
		}
	}
	t.Logf("flows=%d differ=%d", flows, differ)
	if differ == 0 {
		t.Error("no verdict ever differed")
	}
}

func checkDiff(t *testing.T, a, b *model.Snapshot) (flows, differ int) {
	t.Helper()
	type pair struct{ from, to string }
	reported := make(map[pair][]diffChange)
	for _, c := range compareSnapshots(a, b).Changes {
		for _, from := range c.From {
			for _, to := range c.To {
				reported[pair{from, to}] = append(reported[pair{from, to}], c)
			}
		}
	}
	was, is := policy.NewEvaluator(a), policy.NewEvaluator(b)
	addrs, ports := probesOf(a, b)
	all := ends(newSurvey(a, b), addrs)
	for _, from := range all {
		for _, to := range all {
			if from.name == to.name || !from.pod && !to.pod || from.addrs[0].Is4() != to.addrs[0].Is4() {
				continue
			}
			for _, p := range ports {
				flows++
				v, w := verdictOf(was, from.addrs[0], to.addrs[0], p), verdictOf(is, from.addrs[1], to.addrs[1], p)
				n := 0
				for _, c := range reported[pair{from.name, to.name}] {
					if contains(c.Ports, p) {
						n++
						if c.Was != v.String() || c.Is != w.String() {
							t.Fatalf("%s -> %s %v: report %s -> %s, reference %s -> %s", from.name, to.name, p, c.Was, c.Is, v, w)
						}
						if want := changedSides(was, is, from, to, p); !slices.Equal(c.By, want) {
							t.Fatalf("%s -> %s %v: report by %v, reference by %v", from.name, to.name, p, c.By, want)
						}
					}
				}
				if v != w {
					differ++
				}
				if n > 1 || (n == 1) != (v != w) {
					t.Fatalf("%s %v -> %s %v %v: reported %d times, reference %s -> %s", from.name, from.addrs, to.name, to.addrs, p, n, v, w)
				}
			}
		}
	}
	return flows, differ
}

// changedSides are the ends whose decision differs. All nodes run Linux.
func changedSides(was, is *policy.Evaluator, from, to truth, p world.Port) []diffSide {
	flow := func(i int) model.Flow {
		return model.Flow{Src: from.addrs[i], Dst: to.addrs[i], Protocol: p.Protocol, Port: p.Port}
	}
	egress, ingress := was.Flow(flow(0))
	egress2, ingress2 := is.Flow(flow(1))
	var sides []diffSide
	if egress.Verdict != egress2.Verdict {
		sides = append(sides, diffSide{"egress", model.Linux})
	}
	if ingress.Verdict != ingress2.Verdict {
		sides = append(sides, diffSide{"ingress", model.Linux})
	}
	return sides
}

// Every cell of the matrix is what the reference says of all its members.
func TestMatrixAgreesWithEvaluate(t *testing.T) {
	flows := 0
	for i, shape := range surveyShapes {
		for seed := range seeds() {
			s := world.Random(seed+uint64(200*i), shape)
			reference := policy.NewEvaluator(s)
			survey := newSurvey(s)
			addrs, ports := world.Probes(s)
			byName := make(map[string][]truth)
			for _, e := range ends(survey, addrs) {
				byName[e.name] = append(byName[e.name], e)
			}
			m := &matrix{rows: survey.groups, columns: survey.groups}
			m.fill(survey)
			members := func(g *group) (all []truth) {
				for _, n := range g.names() {
					all = append(all, byName[n]...)
				}
				return all
			}
			for i, from := range m.rows {
				for j, to := range m.columns {
					cell := m.cells[i][j]
					if cell.outside || cell.itself || from.v6 != to.v6 {
						continue
					}
					for _, a := range members(from) {
						for _, b := range members(to) {
							for _, p := range ports {
								if a.name == b.name {
									continue
								}
								flows++
								want := verdictOf(reference, a.addrs[0], b.addrs[0], p) == model.Allow
								if got := contains(cell.ports, p); got != want {
									t.Fatalf("%s -> %s %v: matrix %t, reference %t", a.name, b.name, p, got, want)
								}
							}
						}
					}
				}
			}
		}
	}
	t.Logf("flows=%d", flows)
	if flows == 0 {
		t.Error("no flow was compared")
	}
}

// A cluster that has more classes of ports than one State is compiled in parts,
// and the answers stay exact.
func TestSurveyInParts(t *testing.T) {
	const pods, each = 8, 140
	var list []*model.Pod
	var policies []*model.Policy
	for i := range pods {
		name := fmt.Sprintf("p%d", i)
		list = append(list, &model.Pod{PodID: model.PodID{Namespace: "x", Name: name}, Labels: model.MakeLabels(map[string]string{"app": name}),
			Node: "n", IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(10 + i)})}})
		rule := model.Rule{AnyPeer: true, Action: model.ActionAccept}
		for k := range each {
			rule.Ports = append(rule.Ports, model.PortMatch{Protocol: model.TCP, First: uint16(1000 + 2*(i*each+k)), Last: uint16(1000 + 2*(i*each+k))})
		}
		rules := [2][]model.Rule{}
		for k, p := range rule.Ports { // a rule each, so that every port is a class
			r := rule
			r.Index, r.Ports = k, []model.PortMatch{p}
			rules[model.Ingress] = append(rules[model.Ingress], r)
		}
		policies = append(policies, &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: name}, Tier: model.TierNetworkPolicy,
			Isolates: [2]bool{true, false}, Rules: rules, Subject: model.PodSelector{Namespace: "x", Pods: model.MakeSelector(
				model.Requirement{Key: "app", Operator: model.In, Values: []string{name}})}})
	}
	s := model.MakeSnapshot(nil, nil, list, policies)
	survey := newSurvey(s)
	if len(survey.variants[0].parts) < 2 || len(survey.variants[0].overBlocked) > 0 {
		t.Fatalf("%d parts, %v", len(survey.variants[0].parts), survey.variants[0].overBlocked)
	}
	reference := policy.NewEvaluator(s)
	for _, from := range survey.groups {
		for _, to := range survey.groups {
			if len(from.pods) == 0 || len(to.pods) == 0 || from == to {
				continue
			}
			r := survey.rows(0, from, to)
			for i, c := range survey.ports {
				want := verdictOf(reference, from.pods[0].addrs[0], to.pods[0].addrs[0], world.Port{Protocol: c.protocol, Port: c.first})
				if got := survey.flow(0, from, to, r, i); got != want {
					t.Fatalf("%s -> %s %v: %s, reference %s", from, to, c, got, want)
				}
			}
		}
	}
}
