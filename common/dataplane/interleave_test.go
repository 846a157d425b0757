// SPDX-License-Identifier: Apache-2.0

package dataplane_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/world"
)

// cube visits all observable states while the writes of a group are made in any order. Writes of
// one group commute, so a state depends only on the set of completed writes. Every order is a path
// along the edges of a cube with a corner per subset.
type cube struct {
	*testing.T
	store    *store
	remotes  []netip.Addr
	ports    []world.Port
	lines    []line
	old, new []model.Verdict
	corners  int
	most     int // size of a group up to which all subsets are tried
	random   *rand.Rand
}

// line holds the cells of one endpoint, direction and remote address, one per port.
type line struct {
	id     model.EndpointID
	d      model.Direction
	remote int // of remotes
}

// name describes the ith cell that see returns.
func (c *cube) name(i int) string {
	l, at := c.lines[i/len(c.ports)], c.ports[i%len(c.ports)]
	return fmt.Sprintf("%s %s %s %s/%d", l.id, l.d, c.remotes[l.remote], at.Protocol, at.Port)
}

// see returns the verdict of every cell, in the order of the lines.
func (c *cube) see() []model.Verdict {
	classes := make([]model.PeerClass, len(c.remotes))
	for i, a := range c.remotes {
		classes[i] = c.store.class(a)
	}
	ports := make([]model.PortClass, len(c.ports))
	for i, at := range c.ports {
		ports[i] = c.store.ports[at]
	}
	v := make([]model.Verdict, 0, len(c.lines)*len(ports))
	for _, l := range c.lines {
		row := c.store.row(l.id, l.d, classes[l.remote])
		for _, class := range ports {
			v = append(v, row.Cell(class).Verdict)
		}
	}
	return v
}

// judge checks the verdicts after one more write: every cell has its old or its new verdict, and
// does not return to the old one.
func (c *cube) judge(before, after []model.Verdict, what string) {
	c.Helper()
	for i, v := range after {
		if v != c.old[i] && v != c.new[i] || before[i] == c.new[i] && v != c.new[i] {
			c.Fatalf("%s: %s is %s, one write earlier %s: before the change %s, after it %s", what, c.name(i), v, before[i], c.old[i], c.new[i])
		}
	}
}

// group tries every order of the writes if they are few, and some orders if they are many. All
// writes are made afterwards.
func (c *cube) group(writes []func(), what string) {
	c.Helper()
	if len(writes) > c.most {
		c.random.Shuffle(len(writes), func(i, j int) { writes[i], writes[j] = writes[j], writes[i] })
		before := c.see()
		for _, w := range writes {
			w()
			after := c.see()
			c.judge(before, after, what)
			before = after
			c.corners++
		}
		return
	}
	start := c.store.clone()
	seen := make([][]model.Verdict, 1<<len(writes))
	for subset := range seen {
		*c.store = *start.clone()
		for i, w := range writes {
			if subset>>i&1 != 0 {
				w()
			}
		}
		seen[subset] = c.see()
		c.corners++
		for i := range writes {
			if subset>>i&1 != 0 {
				c.judge(seen[subset&^(1<<i)], seen[subset], fmt.Sprintf("%s, writes %b then %d", what, subset&^(1<<i), i))
			}
		}
	}
}

// interleave executes the plan from one State to another in every order that the
// contract of Plan leaves open.
func interleave(t *testing.T, seed uint64, most int, a, b *model.Snapshot, old, next *model.State) (corners int) {
	t.Helper()
	addrs, ports := world.Probes(a)
	more, morePorts := world.Probes(b)
	addrs, ports = append(addrs, more...), append(ports, morePorts...)
	slices.SortFunc(addrs, netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	c := &cube{T: t, store: newStore(old, ports), remotes: addrs, most: most, random: rand.New(rand.NewPCG(seed, 5))}
	c.ports = boundaries(old, next, ports)
	for id, e := range next.Policy.Endpoints {
		if _, ok := old.Policy.Endpoints[id]; !ok {
			continue
		}
		for _, d := range model.Directions {
			for i, remote := range addrs {
				if slices.Contains(e.IPs, remote) || slices.Contains(old.Policy.Endpoints[id].IPs, remote) {
					continue
				}
				c.lines = append(c.lines, line{id, d, i})
				for _, at := range c.ports {
					c.old = append(c.old, old.Policy.Decide(id, d, remote, at.Protocol, at.Port).Verdict)
					c.new = append(c.new, next.Policy.Decide(id, d, remote, at.Protocol, at.Port).Verdict)
				}
			}
		}
	}
	was := old
	for step, to := range dataplane.Plan(old, next) {
		for g, group := range c.store.writes(was, to, c.ports) {
			c.group(group, fmt.Sprintf("step %d group %d", step, g))
		}
		was = to
	}
	if end := c.see(); !slices.Equal(end, c.new) {
		t.Fatal("the end is not the new State")
	}
	return c.corners
}

// boundaries returns one port of each kind that a State distinguishes.
func boundaries(old, next *model.State, ports []world.Port) []world.Port {
	var kept []world.Port
	seen := make(map[[2]model.PortClass]bool)
	for _, at := range ports {
		key := [2]model.PortClass{old.Policy.PortClass(at.Protocol, at.Port), next.Policy.PortClass(at.Protocol, at.Port)}
		if !seen[key] {
			seen[key] = true
			kept = append(kept, at)
		}
	}
	return kept
}

// TestEveryInterleaving changes small clusters in small steps.
func TestEveryInterleaving(t *testing.T) {
	seeds, most := uint64(40), 8
	if testing.Short() {
		seeds, most = 3, 5
	}
	corners := 0
	for i := range small {
		for seed := range seeds {
			t.Run(fmt.Sprintf("shape%d/%d", i, seed), func(t *testing.T) {
				corners += change(t, seed, i, 1+int(seed)%3, most)
			})
		}
	}
	t.Logf("corners=%d", corners)
}

var small = []world.Shape{{Pods: 3, Policies: 2, Nodes: 1}, {Pods: 4, Policies: 3, Tiers: true, Nodes: 1}, {Pods: 4, Policies: 3, Nodes: 2}}

// change changes a random small cluster several times.
func change(t *testing.T, seed uint64, shape, changes, most int) (corners int) {
	a := world.Random(seed, small[shape])
	b := world.Mutate(seed, a, small[shape], changes)
	compiler := compile.New()
	old, _ := compiler.Compile(compile.Input{Snapshot: a, Node: "node1", Endpoints: world.Endpoints(a, "node1")})
	next, _ := compiler.Compile(compile.Input{Snapshot: b, Node: "node1", Endpoints: world.Endpoints(b, "node1")})
	return interleave(t, seed, most, a, b, old, next)
}

// FuzzInterleaving repeats TestEveryInterleaving with the seeds of the fuzzer.
func FuzzInterleaving(f *testing.F) {
	for seed := range uint64(3) {
		f.Add(seed, byte(seed), byte(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, shape, changes byte) {
		change(t, seed, int(shape)%len(small), 1+int(changes)%6, 8)
	})
}

// TestEndpointMovesToSharedTable moves an endpoint to a table that another endpoint already uses,
// while a peer loses access by that table. The table must not deny the peer for the one endpoint
// too early, and must not allow it for the other even briefly.
func TestEndpointMovesToSharedTable(t *testing.T) {
	labelled := func(key, value string) model.Selector {
		return model.MakeSelector(model.Requirement{Key: key, Values: []string{value}})
	}
	isolate := func(role string, peers ...model.Peer) *model.Policy {
		p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: role}, Tier: model.TierNetworkPolicy,
			Subject: model.PodSelector{Namespace: "x", Pods: labelled("role", role)}, Isolates: [2]bool{true, false}}
		if len(peers) > 0 {
			p.Rules[model.Ingress] = []model.Rule{{Action: model.ActionAccept, Peers: peers, AnyPort: true}}
		}
		return p
	}
	app := model.Peer{Kind: model.PeerPods, Pods: model.PodSelector{Namespace: "x", Pods: labelled("app", "a")}}
	pod := func(i int, labels map[string]string) *model.Pod {
		return &model.Pod{PodID: model.PodID{Namespace: "x", Name: fmt.Sprintf("p%d", i)}, Node: "node1", Labels: model.MakeLabels(labels),
			IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})}}
	}
	cluster := func(role, peer string) *model.Snapshot {
		return model.MakeSnapshot(nil, []*model.Node{{Name: "node1"}}, []*model.Pod{
			pod(2, map[string]string{"role": "web"}), pod(3, map[string]string{"role": role}),
			pod(4, map[string]string{"app": peer}), pod(5, map[string]string{"app": "a"}), pod(6, map[string]string{"app": "b"}),
		}, []*model.Policy{isolate("web", app), isolate("closed")})
	}
	a, b := cluster("closed", "a"), cluster("web", "b")
	compiler := compile.New()
	old, _ := compiler.Compile(compile.Input{Snapshot: a, Node: "node1", Endpoints: world.Endpoints(a, "node1")})
	next, _ := compiler.Compile(compile.Input{Snapshot: b, Node: "node1", Endpoints: world.Endpoints(b, "node1")})
	interleave(t, 1, 10, a, b, old, next)
}
