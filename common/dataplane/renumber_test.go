// SPDX-License-Identifier: Apache-2.0

package dataplane_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/world"
)

// TestPlanUnderAnyNumbers numbers the classes of the wanted State at random, as an agent may
// if it cannot read the State of its predecessor. Classes merge into a fresh number,
// exchange numbers, or take the number of another class. A table keeps its identity while
// its numbers change their meaning. Plan must never show a mixture of old and new verdicts.
func TestPlanUnderAnyNumbers(t *testing.T) {
	seeds := uint64(96)
	if testing.Short() {
		seeds = 32
	}
	shapes := []world.Shape{{Pods: 4, Policies: 3, Nodes: 1}, {Pods: 5, Policies: 4, Tiers: true, Nodes: 1}, {Pods: 5, Policies: 4}}
	corners := 0
	for i, shape := range shapes {
		for seed := range seeds {
			t.Run(fmt.Sprintf("shape%d/%d", i, seed), func(t *testing.T) {
				a := world.Random(seed+3000, shape)
				b := world.Mutate(seed, a, shape, int(seed)%4)
				r := rand.New(rand.NewPCG(seed, 6))
				if r.IntN(2) == 0 { // unrelated policies: classes merge and split
					c := *b
					c.Policies = world.Random(seed+4000, shape).Policies
					b = &c
				}
				compiler := compile.New()
				old, _ := compiler.Compile(compile.Input{Snapshot: a, Node: "node1", Endpoints: world.Endpoints(a, "node1")})
				next, _ := compiler.Compile(compile.Input{Snapshot: b, Node: "node1", Endpoints: world.Endpoints(b, "node1")})
				next = renumbered(r, style(seed%4), style(seed/4%4), old, next)
				corners += interleave(t, seed, 4, a, b, old, next)
			})
		}
	}
	t.Logf("corners=%d", corners)
}

// renumbered returns a State that decides as s does, with other numbers of
// classes.
func renumbered(r *rand.Rand, peerStyle, portStyle style, old, s *model.State) *model.State {
	peers := injection(r, peerStyle, model.World, numbersOf(s.Policy.PeerClasses), numbersOf(old.Policy.PeerClasses), max(s.Policy.NextPeerClass, old.Policy.NextPeerClass))
	ports := injection(r, portStyle, model.OtherPorts, portNumbersOf(s.Policy.PortClasses), portNumbersOf(old.Policy.PortClasses), 1)
	n := *s
	n.Policy.Addresses = immutable.Map[netip.Addr, model.PeerClass]{}
	for a, c := range s.Policy.Addresses.All() {
		n.Policy.Addresses = n.Policy.Addresses.With(a, peers(c))
	}
	n.Policy.Prefixes = slices.Clone(s.Policy.Prefixes)
	for i := range n.Policy.Prefixes {
		n.Policy.Prefixes[i].Class = peers(n.Policy.Prefixes[i].Class)
	}
	n.Policy.Ports = slices.Clone(s.Policy.Ports)
	for i := range n.Policy.Ports {
		n.Policy.Ports[i].Class = ports(n.Policy.Ports[i].Class)
	}
	n.Policy.PeerClasses = slices.Clone(s.Policy.PeerClasses)
	for i, c := range s.Policy.PeerClasses {
		n.Policy.PeerClasses[i].Class = peers(c.Class)
		n.Policy.NextPeerClass = max(n.Policy.NextPeerClass, peers(c.Class)+1)
	}
	slices.SortFunc(n.Policy.PeerClasses, func(a, b model.PeerClassInfo) int { return cmp.Compare(a.Class, b.Class) })
	n.Policy.PortClasses = slices.Clone(s.Policy.PortClasses)
	for i, c := range s.Policy.PortClasses {
		n.Policy.PortClasses[i].Class = ports(c.Class)
	}
	slices.SortFunc(n.Policy.PortClasses, func(a, b model.PortClassInfo) int { return cmp.Compare(a.Class, b.Class) })
	rows := make(map[*model.Row]*model.Row)
	n.Policy.Tables = make(map[model.TableID]*model.Table, len(s.Policy.Tables))
	for id, table := range s.Policy.Tables {
		t := &model.Table{ID: id}
		for d := range t.Sides {
			side := &table.Sides[d]
			t.Sides[d].Default = withPorts(side.Default, s.Policy.PortClasses, ports, rows)
			for c, row := range side.Rows.All() {
				t.Sides[d].Rows = t.Sides[d].Rows.With(peers(c), withPorts(row, s.Policy.PortClasses, ports, rows))
			}
		}
		n.Policy.Tables[id] = t
	}
	return &n
}

// withPorts returns a row whose new numbers have the decisions of the old ones. Shared rows stay
// shared.
func withPorts(r *model.Row, classes []model.PortClassInfo, to func(model.PortClass) model.PortClass, made map[*model.Row]*model.Row) *model.Row {
	if m, ok := made[r]; ok {
		return m
	}
	if len(r.Cells) == 0 {
		made[r] = r
		return r
	}
	m := &model.Row{}
	for _, c := range classes {
		for int(to(c.Class)) >= len(m.Cells) {
			m.Cells = append(m.Cells, r.Cell(model.OtherPorts))
		}
	}
	for _, c := range classes {
		m.Cells[to(c.Class)] = r.Cell(c.Class)
	}
	made[r] = m
	return m
}

// style is the source of the new numbers of classes.
type style int

const (
	carried  style = iota // as compiled
	permuted              // numbers that were in use
	fresh                 // numbers that were not in use
	mixed                 // any number, or the same
)

// injection maps numbers to others at random. One number stays the same.
func injection[N ~uint16 | ~uint32](r *rand.Rand, s style, fixed N, from, used []N, next N) func(N) N {
	if s == carried {
		return func(n N) N { return n }
	}
	isFixed := func(n N) bool { return n == fixed }
	pool := shuffled(r, slices.DeleteFunc(slices.Clone(used), isFixed))
	var more []N
	for n := next; len(more) < 2*len(from); n++ {
		if !isFixed(n) && !slices.Contains(used, n) {
			more = append(more, n)
		}
	}
	switch more = shuffled(r, more); s {
	case fresh:
		pool = more
	case permuted:
		pool = append(pool, more...)
	case mixed:
		pool = shuffled(r, append(pool, more...))
	}
	m := map[N]N{fixed: fixed}
	for _, n := range from {
		if isFixed(n) {
			continue
		}
		if i := slices.Index(pool, n); s == mixed && i >= 0 && r.IntN(2) == 0 {
			pool[i], pool[0] = pool[0], pool[i] // keeps its number
		}
		m[n], pool = pool[0], pool[1:]
	}
	return func(n N) N {
		to, ok := m[n]
		if !ok {
			panic(fmt.Sprintf("number %d is none of %v", n, slices.Sorted(maps.Keys(m))))
		}
		return to
	}
}

func shuffled[N any](r *rand.Rand, all []N) []N {
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

func numbersOf(infos []model.PeerClassInfo) []model.PeerClass {
	var all []model.PeerClass
	for _, i := range infos {
		all = append(all, i.Class)
	}
	return all
}

func portNumbersOf(infos []model.PortClassInfo) []model.PortClass {
	var all []model.PortClass
	for _, i := range infos {
		all = append(all, i.Class)
	}
	return all
}

// TestClassesMergeIntoAFreshNumber allows both ports to two kinds of peers that had one port each.
// Their classes become one, under a number that neither had. During the change each must keep its
// own number, or one of them loses its port.
func TestClassesMergeIntoAFreshNumber(t *testing.T) {
	peers := func(apps ...string) model.Peer {
		s := model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: apps})
		return model.Peer{Kind: model.PeerPods, Pods: model.PodSelector{Namespace: "x", Pods: s}}
	}
	rule := func(peer model.Peer, ports ...uint16) model.Rule {
		r := model.Rule{Action: model.ActionAccept, Peers: []model.Peer{peer}}
		for _, p := range ports {
			r.Ports = append(r.Ports, model.PortMatch{Protocol: model.TCP, First: p, Last: p})
		}
		return r
	}
	cluster := func(rules ...model.Rule) *model.Snapshot {
		var pods []*model.Pod
		for i, app := range []string{"web", "a", "b"} {
			pods = append(pods, &model.Pod{PodID: model.PodID{Namespace: "x", Name: app}, Node: "node1",
				Labels: model.MakeLabels(map[string]string{"app": app}), IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(2 + i)})}})
		}
		return model.MakeSnapshot(nil, []*model.Node{{Name: "node1"}}, pods, []*model.Policy{
			{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: "web"}, Tier: model.TierNetworkPolicy, Isolates: [2]bool{true, false},
				Subject: peers("web").Pods, Rules: [2][]model.Rule{rules, nil}}})
	}
	a, b := cluster(rule(peers("a"), 80), rule(peers("b"), 81)), cluster(rule(peers("a", "b"), 80, 81))
	compiler := compile.New()
	old, _ := compiler.Compile(compile.Input{Snapshot: a, Node: "node1", Endpoints: world.Endpoints(a, "node1")})
	next, _ := compiler.Compile(compile.Input{Snapshot: b, Node: "node1", Endpoints: world.Endpoints(b, "node1")})
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 6))
		interleave(t, seed, 8, a, b, old, renumbered(r, fresh, carried, old, next))
	}
}

// TestPlanClosesPortsWithoutAClass exchanges the numbers of two classes of ports while every number
// is in use. No number is free for the intermediate State, so both are denied during the change,
// whatever their verdicts before and after.
func TestPlanClosesPortsWithoutAClass(t *testing.T) {
	const open, shut = 2, 1 // TCP ports
	state := func(id byte, ofOpen, ofShut model.PortClass) *model.State {
		s := &model.State{Policy: model.PolicyState{NextPeerClass: 1, PeerClasses: []model.PeerClassInfo{{}}, PortClasses: []model.PortClassInfo{{}},
			Endpoints: map[model.EndpointID]model.EndpointState{"e": {Table: model.TableID{id}}}}}
		row := &model.Row{Cells: make([]model.Decision, model.MaxPortClasses-1)}
		row.Cells[ofOpen].Verdict = model.Allow
		for port := uint16(1); port < model.MaxPortClasses-1; port++ {
			class := model.PortClass(port)
			switch port {
			case open:
				class = ofOpen
			case shut:
				class = ofShut
			}
			s.Policy.Ports = append(s.Policy.Ports, model.PortRange{Protocol: model.TCP, First: port, Last: port, Class: class})
			s.Policy.PortClasses = append(s.Policy.PortClasses, model.PortClassInfo{Class: model.PortClass(port)})
		}
		s.Policy.Tables = map[model.TableID]*model.Table{{id}: {ID: model.TableID{id}, Sides: [2]model.Side{{Default: row}, {Default: row}}}}
		return s
	}
	old, next := state(1, 2, 1), state(2, 1, 2)
	closed := 0
	plan := dataplane.Plan(old, next)
	for i, s := range plan {
		for port, want := range map[uint16]model.Verdict{open: model.Allow, shut: model.Deny} {
			got := s.Policy.Decide("e", model.Ingress, netip.MustParseAddr("192.0.2.1"), model.TCP, port).Verdict
			if s.Policy.PortClass(model.TCP, port) == model.ClosedPorts {
				closed++
				want = model.Deny
			}
			if got != want {
				t.Errorf("step %d of %d: TCP %d in class %d is %s, want %s", i+1, len(plan), port, s.Policy.PortClass(model.TCP, port), got, want)
			}
		}
	}
	if closed == 0 {
		t.Error("a class was left that nothing uses: the test shows nothing")
	}
}
