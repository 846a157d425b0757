// SPDX-License-Identifier: Apache-2.0

package query

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/world"
)

var reachShapes = []world.Shape{
	{Pods: 6, Policies: 4},
	{Pods: 9, Policies: 8, IPv6: true},
	{Pods: 8, Policies: 8, Tiers: true},
	{Pods: 10, Policies: 10, Tiers: true, IPv6: true, Nodes: 2},
	{Pods: 8, Policies: 8, Tiers: true, Doubts: true},
}

// seeds is the number of clusters of each shape.
func seeds() uint64 {
	if testing.Short() {
		return 4
	}
	return 12
}

// truth is one end of a flow as the test expects it: a name that both versions of a cluster
// share, and the address in each.
type truth struct {
	name  string // the name in reports
	pod   bool
	addrs []netip.Addr
}

// allEnds lists pods and nodes that all worlds have. It adds addresses without an owner in any
// of them, under the name of their range.
func allEnds(p *reach.Partition, versions int, probes []netip.Addr) []truth {
	var all []truth
	var ranges []*reach.Range
	for _, v6 := range []bool{false, true} {
		for _, g := range slices.Concat(p.Groups(v6), p.Nodes(v6)) {
			for i, m := range g.Pods {
				all = append(all, truth{endNames(g)[i], true, m.Addrs})
			}
			ranges = append(ranges, g.Ranges...)
			if g.Node != "" {
				all = append(all, truth{endNames(g)[0], false, slices.Repeat([]netip.Addr{g.Addr}, versions)})
			}
		}
	}
	for _, a := range probes {
		if p.Owned(a) {
			continue
		}
		var in *reach.Range
		for _, r := range ranges {
			if r.Prefix.Contains(a) && (in == nil || r.Prefix.Bits() > in.Prefix.Bits()) {
				in = r
			}
		}
		all = append(all, truth{in.Name(0), false, slices.Repeat([]netip.Addr{a}, versions)})
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
func contains(sets []reach.PortSet, p world.Port) bool {
	for _, s := range sets {
		if s.Protocol == p.Protocol.String() && s.First <= p.Port && p.Port <= s.Last || s.Protocol == reach.OtherProtocols && !p.Protocol.HasPorts() {
			return true
		}
	}
	return false
}

// The report contains every flow of the probes whose verdict differs once, and no other
// flow.
func TestDiffIsComplete(t *testing.T) {
	flows, differ := 0, 0
	for i, shape := range reachShapes {
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
	for _, c := range compareVersions(reach.New(a, b), a, b, false).Changes {
		for _, from := range c.From {
			for _, to := range c.To {
				reported[pair{from, to}] = append(reported[pair{from, to}], c)
			}
		}
	}
	was, is := policy.NewEvaluator(a), policy.NewEvaluator(b)
	addrs, ports := probesOf(a, b)
	all := allEnds(reach.New(a, b), 2, addrs)
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

// Every cell of the matrix equals the verdict of the reference evaluator for all its
// members.
func TestMatrixAgreesWithEvaluate(t *testing.T) {
	flows := 0
	for i, shape := range reachShapes {
		for seed := range seeds() {
			s := world.Random(seed+uint64(200*i), shape)
			reference := policy.NewEvaluator(s)
			p := reach.New(s)
			addrs, ports := world.Probes(s)
			byName := make(map[string][]truth)
			for _, e := range allEnds(p, 1, addrs) {
				byName[e.name] = append(byName[e.name], e)
			}
			members := func(g *reach.Group) (all []truth) {
				for _, n := range endNames(g) {
					all = append(all, byName[n]...)
				}
				return all
			}
			for _, v6 := range []bool{false, true} {
				m := newMatrix(p, nil)
				m.rows, m.columns = p.Groups(v6), p.Groups(v6)
				err := m.each(func(i int, cells []matrixCell) error {
					for j, cell := range cells {
						if cell.outside || cell.itself {
							continue
						}
						for _, a := range members(m.rows[i]) {
							for _, b := range members(m.columns[j]) {
								for _, p := range ports {
									if a.name == b.name {
										continue
									}
									flows++
									want := verdictOf(reference, a.addrs[0], b.addrs[0], p) == model.Allow
									if got := contains(cell.sets, p); got != want {
										t.Fatalf("%s -> %s %v: matrix %t, reference %t", a.name, b.name, p, got, want)
									}
								}
							}
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	t.Logf("flows=%d", flows)
	if flows == 0 {
		t.Error("no flow was compared")
	}
}

// The answer is exact for a cluster with more port classes than a State holds.
func TestMorePortsThanANodeHolds(t *testing.T) {
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
	p := reach.New(s)
	if len(crowded(p)) == 0 {
		t.Error("nothing is said of what a node may deny")
	}
	reference := policy.NewEvaluator(s)
	var all []*reach.Group
	for _, g := range p.Groups(false) {
		if len(g.Pods) > 0 {
			all = append(all, g)
		}
	}
	err := p.Reach(all, all, func(i int, allowed []reach.PortsID) error {
		for j, to := range all {
			if i == j {
				continue
			}
			for n, c := range p.Cells() {
				want := verdictOf(reference, all[i].Pods[0].Addrs[0], to.Pods[0].Addrs[0], world.Port{Protocol: c.Protocol, Port: c.First})
				if got := p.Has(allowed[j], n); got != (want == model.Allow) {
					t.Fatalf("%v -> %v %v: %t, reference %s", names(all[i]), names(to), c, got, want)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
