// SPDX-License-Identifier: Apache-2.0

package compile_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/world"
)

// history is a cluster and the endpoints of node1 that change step by step.
type history struct {
	*rand.Rand
	shape world.Shape
	input compile.Input
	extra map[model.EndpointID]compile.Endpoint // in addition to one for every pod
}

func newHistory(seed uint64, shape world.Shape) *history {
	h := &history{Rand: rand.New(rand.NewPCG(seed, 4)), shape: shape, extra: make(map[model.EndpointID]compile.Endpoint)}
	h.input = compile.Input{Snapshot: world.Random(seed, shape), Node: "node1"}
	h.name()
	return h
}

// name lists the endpoints again.
func (h *history) name() {
	h.input.Endpoints = world.Endpoints(h.input.Snapshot, "node1")
	maps.Copy(h.input.Endpoints, h.extra)
}

// step makes no change, a small one or a large one.
func (h *history) step() {
	switch h.IntN(8) {
	case 0:
		h.changeNode()
	case 1:
		h.changeEndpoint()
	case 2:
		h.input.Snapshot = rebuilt(h.input.Snapshot)
	case 3:
		h.input.Snapshot = world.Mutate(h.Uint64(), h.input.Snapshot, h.shape, 6)
	case 4:
		c := *h.input.Snapshot
		c.Namespaces = c.Namespaces.Without([]string{"x", "y", "z"}[h.IntN(3)])
		h.input.Snapshot = &c
	default:
		h.input.Snapshot = world.Mutate(h.Uint64(), h.input.Snapshot, h.shape, 1)
	}
	h.name()
}

// changeNode removes a node, adds it again, or changes its labels, its pod range or its own
// addresses.
func (h *history) changeNode() {
	c := *h.input.Snapshot
	name := fmt.Sprintf("node%d", 1+h.IntN(3))
	n, ok := c.Nodes.Get(name)
	if !ok {
		n, _ = world.Random(h.Uint64(), h.shape).Nodes.Get(name)
	}
	changed := *n
	switch h.IntN(5) {
	case 0:
		changed.Labels = model.MakeLabels(map[string]string{"env": string(rune('a' + h.IntN(3)))})
	case 1:
		changed.PodCIDRs = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/%d", h.IntN(4), 23+h.IntN(4))).Masked()}
	case 2:
		changed.PodCIDRs = nil
	case 3:
		changed.Addresses = []netip.Addr{netip.MustParseAddr(fmt.Sprintf("192.168.0.%d", 1+h.IntN(4)))}
	}
	c.Nodes = c.Nodes.With(name, &changed)
	if ok && h.IntN(4) == 0 {
		c.Nodes = c.Nodes.Without(name)
	}
	h.input.Snapshot = &c
}

// changeEndpoint adds or removes an additional attachment: a second one of a pod, or one of
// a pod that the API does not have.
func (h *history) changeEndpoint() {
	id := model.EndpointID(fmt.Sprintf("extra%d:eth0", h.IntN(3)))
	if _, ok := h.extra[id]; ok {
		delete(h.extra, id)
		return
	}
	e := compile.Endpoint{Pod: model.PodID{Namespace: "x", Name: "ghost"},
		IPs: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.0.1.%d", 100+h.IntN(3)))}}
	var pods []model.PodID
	for _, p := range h.input.Snapshot.Pods.All() {
		if p.Node == "node1" && p.Policed() {
			pods = append(pods, p.PodID)
		}
	}
	if slices.SortFunc(pods, model.PodID.Compare); len(pods) > 0 && h.IntN(4) > 0 {
		e.Pod = pods[h.IntN(len(pods))]
	}
	h.extra[id] = e
}

// rebuilt returns an equal snapshot that shares nothing with its model.
func rebuilt(s *model.Snapshot) *model.Snapshot {
	var namespaces []*model.Namespace
	for _, n := range s.Namespaces.All() {
		c := *n
		namespaces = append(namespaces, &c)
	}
	var nodes []*model.Node
	for _, n := range s.Nodes.All() {
		c := *n
		nodes = append(nodes, &c)
	}
	var pods []*model.Pod
	for _, p := range s.Pods.All() {
		c := *p
		pods = append(pods, &c)
	}
	var policies []*model.Policy
	for _, p := range s.Policies.All() {
		c := *p
		policies = append(policies, &c)
	}
	r := model.MakeSnapshot(namespaces, nodes, pods, policies)
	for name := range r.Namespaces.All() { // MakeSnapshot adds the namespaces of pods
		if _, ok := s.Namespaces.Get(name); !ok {
			r.Namespaces = r.Namespaces.Without(name)
		}
	}
	return r
}

// effective returns the snapshot with the addresses that endpoints really have.
func effective(in compile.Input) *model.Snapshot {
	ips := make(map[model.PodID][]netip.Addr)
	for _, e := range in.Endpoints {
		ips[e.Pod] = append(ips[e.Pod], e.IPs...)
	}
	c := *in.Snapshot
	for id, addrs := range ips {
		if p, ok := c.Pods.Get(id); ok && !p.HostNetwork {
			local := *p
			local.IPs = addrs
			c.Pods = c.Pods.With(id, &local)
		}
	}
	return &c
}

// equalToReference compares every cell of every endpoint with the reference, which decides
// for its pod.
func equalToReference(t *testing.T, in compile.Input, state *model.State) (cells int) {
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
		own.IPs, own.Node = e.IPs, in.Node // the node of the attachment, whatever the API shows
		for _, d := range model.Directions {
			one := reference.Pod(&own, d)
			for i, a := range addrs {
				remote := remoteOf(reference, one, a)
				for _, at := range ports {
					want := remote.Decide(at.Protocol, at.Port)
					got := answers.decide(id, d, i, at.Protocol, at.Port)
					cells++
					if want.Verdict != got.Verdict || want.Cause.Reason != got.Cause.Reason {
						t.Fatalf("%s %s %s %s/%d: reference %s, table %s", e.Pod, d, a, at.Protocol, at.Port, want, got)
					}
				}
			}
		}
	}
	return cells
}

// equalToFull compares a State with one that was compiled from scratch: every cell, causes
// included, and the absence of anything else.
func equalToFull(t *testing.T, state, full *model.State) (cells int) {
	t.Helper()
	if a, b := len(state.Policy.PeerClasses), len(full.Policy.PeerClasses); a != b {
		t.Fatalf("%d peer classes, from scratch %d", a, b)
	}
	if a, b := len(state.Policy.PortClasses), len(full.Policy.PortClasses); a != b {
		t.Fatalf("%d port classes, from scratch %d", a, b)
	}
	peers := pairs(t, state, full)
	ports := portPairs(t, state, full)
	if a, b := len(state.Policy.Tables), len(full.Policy.Tables); a != b {
		t.Fatalf("%d tables, from scratch %d", a, b)
	}
	for id, e := range full.Policy.Endpoints {
		got := state.Policy.Endpoints[id]
		if got.Table != e.Table || got.Pod != e.Pod || !slices.Equal(got.IPs, e.IPs) {
			t.Fatalf("endpoint %s is %v, from scratch %v", id, got, e)
		}
	}
	for id, want := range full.Policy.Tables {
		for _, d := range model.Directions {
			for a, b := range peers {
				for m, n := range ports {
					x, y := state.Policy.Tables[id].Sides[d].Row(a).Cell(m), want.Sides[d].Row(b).Cell(n)
					cells++
					if x.Verdict != y.Verdict || *x.Cause != *y.Cause {
						t.Fatalf("table %s %s class %d ports %d: %s, from scratch %s", id, d, a, m, x, y)
					}
				}
			}
		}
	}
	return cells
}

// pairs finds the corresponding classes of two States by their content and description.
func pairs(t *testing.T, a, b *model.State) map[model.PeerClass]model.PeerClass {
	t.Helper()
	if a.Policy.Addresses.Len() != b.Policy.Addresses.Len() || len(a.Policy.Prefixes) != len(b.Policy.Prefixes) {
		t.Fatalf("%d addresses and %d prefixes, from scratch %d and %d", a.Policy.Addresses.Len(), len(a.Policy.Prefixes), b.Policy.Addresses.Len(), len(b.Policy.Prefixes))
	}
	byText := make(map[string]model.PeerClass)
	for _, info := range b.Policy.PeerClasses {
		byText[fmt.Sprint(info.Kind, info.Terms, info.Names)] = info.Class
	}
	m := make(map[model.PeerClass]model.PeerClass)
	for _, info := range a.Policy.PeerClasses {
		other, ok := byText[fmt.Sprint(info.Kind, info.Terms, info.Names)]
		if !ok {
			t.Fatalf("class %+v is not among those from scratch", info)
		}
		m[info.Class] = other
	}
	for addr, c := range a.Policy.Addresses.All() {
		if other, ok := b.Policy.Addresses.Get(addr); !ok || m[c] != other {
			t.Fatalf("%s is in class %d, from scratch in what would be %d", addr, c, other)
		}
	}
	for i, p := range a.Policy.Prefixes {
		if other := b.Policy.Prefixes[i]; p.Prefix != other.Prefix || m[p.Class] != other.Class {
			t.Fatalf("prefix %v, from scratch %v", p, other)
		}
	}
	return m
}

func portPairs(t *testing.T, a, b *model.State) map[model.PortClass]model.PortClass {
	t.Helper()
	m := map[model.PortClass]model.PortClass{}
	for _, info := range a.Policy.PortClasses {
		i := slices.IndexFunc(b.Policy.PortClasses, func(o model.PortClassInfo) bool { return slices.Equal(o.Terms, info.Terms) })
		if i < 0 {
			t.Fatalf("port class %+v is not among those from scratch", info)
		}
		m[info.Class] = b.Policy.PortClasses[i].Class
	}
	for _, list := range [][]model.PortRange{a.Policy.Ports, b.Policy.Ports} {
		for _, r := range list {
			for _, port := range []uint16{r.First - 1, r.First, r.Last, r.Last + 1} {
				if x, y := a.Policy.PortClass(r.Protocol, port), b.Policy.PortClass(r.Protocol, port); m[x] != y {
					t.Fatalf("%s %d is in class %d, from scratch in %d", r.Protocol, port, x, y)
				}
			}
		}
	}
	return m
}

// keepsMeaning checks that a number that stays has the same meaning in a table that stays, so that
// a data path need not change it.
func keepsMeaning(t *testing.T, was, is *model.State) {
	t.Helper()
	for id, a := range was.Policy.Tables {
		b := is.Policy.Tables[id]
		if b == nil || a == b {
			continue
		}
		for _, d := range model.Directions {
			for _, class := range was.Policy.PeerClasses {
				if !slices.ContainsFunc(is.Policy.PeerClasses, func(i model.PeerClassInfo) bool { return i.Class == class.Class }) {
					continue
				}
				for _, n := range was.Policy.PortClasses {
					if !slices.ContainsFunc(is.Policy.PortClasses, func(i model.PortClassInfo) bool { return i.Class == n.Class }) {
						continue
					}
					if x, y := a.Sides[d].Row(class.Class).Cell(n.Class), b.Sides[d].Row(class.Class).Cell(n.Class); x.Verdict != y.Verdict {
						t.Fatalf("table %s %s class %d ports %d was %s and is %s", id, d, class.Class, n.Class, x, y)
					}
				}
			}
		}
	}
}

// dump renders a State completely, numbers included.
func dump(s *model.State) string {
	var b strings.Builder
	rest := s.Policy // the parts that are not written below
	rest.Endpoints, rest.Addresses, rest.Tables = nil, immutable.Map[netip.Addr, model.PeerClass]{}, nil
	fmt.Fprintf(&b, "%s %v %v\n", s.Node, s.Fabric, rest)
	if s.Deny != nil {
		fmt.Fprintln(&b, len(s.Deny.Lists), s.Deny.Prefixes, s.Deny.Exempt)
	}
	for _, id := range slices.Sorted(maps.Keys(s.Policy.Endpoints)) {
		fmt.Fprintln(&b, id, s.Policy.Endpoints[id])
	}
	addresses := maps.Collect(s.Policy.Addresses.All())
	for _, a := range slices.SortedFunc(maps.Keys(addresses), netip.Addr.Compare) {
		fmt.Fprintln(&b, a, addresses[a])
	}
	for _, id := range slices.SortedFunc(maps.Keys(s.Policy.Tables), func(a, b model.TableID) int { return slices.Compare(a[:], b[:]) }) {
		for d, side := range s.Policy.Tables[id].Sides {
			fmt.Fprintln(&b, id, d, side.Default.Cells)
			rows := maps.Collect(side.Rows.All())
			for _, c := range slices.Sorted(maps.Keys(rows)) {
				fmt.Fprintln(&b, c, rows[c].Cells)
			}
		}
	}
	return b.String()
}

// TestCompilerEqualsCompile runs Compilers through random histories.
func TestCompilerEqualsCompile(t *testing.T) {
	histories, steps := uint64(60), 12
	if testing.Short() {
		histories = 5
	}
	states, cells := 0, 0
	for i, shape := range world.Shapes {
		for seed := range histories {
			t.Run(fmt.Sprintf("shape%d/%d", i, seed), func(t *testing.T) {
				h := newHistory(seed, shape)
				c := compile.New()
				var was *model.State
				for range steps {
					state, unsupported := c.Compile(h.input)
					if len(unsupported) > 0 {
						t.Fatal(unsupported)
					}
					full, _ := compile.Once(h.input)
					cells += equalToFull(t, state, full)
					if states%3 == 0 { // another test compares the full State with it
						cells += equalToReference(t, h.input, state)
					}
					if was != nil {
						keepsMeaning(t, was, state)
					}
					if again, _ := c.Compile(h.input); again != state {
						t.Fatal("nothing changed, and yet the State is another one")
					}
					was = state
					states++
					h.step()
				}
			})
		}
	}
	t.Logf("states=%d cells=%d", states, cells)
}

// TestCompilerIsDeterministic compares two Compilers with the same inputs. The inputs are
// rebuilt, so that the iteration order of maps differs.
func TestCompilerIsDeterministic(t *testing.T) {
	for i, shape := range world.Shapes {
		for seed := range uint64(20) {
			t.Run(fmt.Sprintf("shape%d/%d", i, seed), func(t *testing.T) {
				h, g := newHistory(seed, shape), newHistory(seed, shape)
				a, b := compile.New(), compile.New()
				for range 10 {
					x, _ := a.Compile(h.input)
					y, _ := b.Compile(g.input)
					if was, is := dump(x), dump(y); was != is {
						t.Fatalf("the same inputs give\n%s\nand\n%s", was, is)
					}
					h.step()
					g.step()
				}
			})
		}
	}
}
