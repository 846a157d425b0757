// SPDX-License-Identifier: Apache-2.0

package cells_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/cells"
	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux/policymap/mapsim"
	"github.com/isthmus-net/isthmus/test/world"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/acl/aclsim"
	"github.com/isthmus-net/isthmus/windows/hns"
)

var shapes = []world.Shape{
	{Pods: 6, Policies: 3}, {Pods: 10, Policies: 8, IPv6: true}, {Pods: 8, Policies: 8, Tiers: true}, {Pods: 8, Policies: 10, Tiers: true, IPv6: true},
	{Pods: 8, Policies: 8, Tiers: true, Doubts: true},
}

// node is a node with its sides, so that tests can change them.
type node struct {
	*cells.Node
	maps  *mapsim.Maps
	lists []*aclsim.Lists
}

func encode(t *testing.T, s *model.Snapshot, state *model.State, reported []model.Unsupported) *node {
	t.Helper()
	maps, err := mapsim.Encode(state)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{Node: &cells.Node{Snapshot: s, State: state, Reported: reported, Maps: maps}, maps: maps, lists: aclsim.Encode(state)}
	for _, l := range n.lists {
		n.Lists = append(n.Lists, l)
	}
	return n
}

// nodes encodes every node of a random cluster.
func nodes(t *testing.T, seed uint64, shape world.Shape) []*node {
	t.Helper()
	s := world.Random(seed, shape)
	cluster := engine.Compile(s, nil)
	var all []*node
	for _, name := range slices.Sorted(maps.Keys(cluster.States)) {
		all = append(all, encode(t, s, cluster.States[name], cluster.Unsupported[name]))
	}
	return all
}

func compare(t *testing.T, n *node) cells.Result {
	t.Helper()
	r, err := cells.Compare(context.Background(), n.Node)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// All sides agree on random clusters.
func TestAgree(t *testing.T) {
	count := 0
	for i, shape := range shapes {
		for seed := range uint64(12) {
			for _, n := range nodes(t, seed, shape) {
				r := compare(t, n)
				if r.Differ > 0 || len(r.Problems) > 0 {
					t.Fatalf("shape %d seed %d: differ=%d %v %v", i, seed, r.Differ, r.Differences[0], r.Problems)
				}
				count += r.Cells
			}
		}
	}
	if count == 0 {
		t.Error("no cells")
	}
	t.Logf("cells=%d", count)
}

// plant makes an error on one side of a node and describes it; it returns "" if there is
// nothing to change.
type plant struct {
	side string
	make func(n *node, r *rand.Rand) string
}

var plants = []plant{
	{"tables", wrongRow},
	{"maps", wrongVerdict}, {"maps", wrongBits}, {"maps", wrongPeer}, {"maps", wrongPrefix}, {"maps", wrongPort}, {"maps", wrongSlot},
	{"HNS", wrongAction}, {"HNS", missingRule}, {"HNS", wrongPorts}, {"HNS", wrongMember}, {"HNS", wrongSet},
}

// wrongRow reverses one cell of one row of a table.
func wrongRow(n *node, r *rand.Rand) string {
	state := *n.State
	state.Policy.Tables = maps.Clone(state.Policy.Tables)
	for id, t := range state.Policy.Tables {
		d := model.Directions[r.IntN(2)]
		class := state.Policy.PeerClasses[r.IntN(len(state.Policy.PeerClasses))].Class
		row := t.Sides[d].Row(class)
		wrong := &model.Row{Cells: make([]model.Decision, len(state.Policy.PortClasses)+1)}
		for i := range wrong.Cells {
			wrong.Cells[i] = row.Cell(model.PortClass(i))
		}
		port := state.Policy.PortClasses[r.IntN(len(state.Policy.PortClasses))].Class
		wrong.Cells[port].Verdict ^= 1
		changed := *t
		changed.Sides[d].Rows = t.Sides[d].Rows.With(class, wrong)
		state.Policy.Tables[id] = &changed
		n.State = &state
		return fmt.Sprintf("row of table %s, class %d, ports %d", id, class, port)
	}
	return ""
}

func wrongVerdict(n *node, r *rand.Rand) string {
	for table, rows := range n.maps.Entries.Verdicts {
		for peer := range rows {
			if r.IntN(3) == 0 {
				delete(rows, peer)
			} else {
				row := rows[peer]
				row.Row ^= 1
				rows[peer] = row
			}
			return fmt.Sprintf("verdicts of table %d, peer %d", table, peer)
		}
	}
	return ""
}

func wrongBits(n *node, r *rand.Rand) string {
	for number, row := range n.maps.Entries.Rows {
		bit := r.IntN(len(n.State.Policy.PortClasses))
		row.Allow[bit/64] ^= 1 << (bit % 64)
		n.maps.Entries.Rows[number] = row
		return fmt.Sprintf("bit %d of row %d", bit, number)
	}
	return ""
}

func anotherClass(n *node, r *rand.Rand, was uint32) uint32 {
	class := uint32(n.State.Policy.PeerClasses[r.IntN(len(n.State.Policy.PeerClasses))].Class)
	if class == was {
		return was + 1
	}
	return class
}

func wrongPeer(n *node, r *rand.Rand) string {
	for a, class := range n.maps.Entries.Peers {
		n.maps.Entries.Peers[a] = anotherClass(n, r, class)
		return fmt.Sprintf("class of %s", a)
	}
	return ""
}

func wrongPrefix(n *node, r *rand.Rand) string {
	for p, class := range n.maps.Entries.Prefixes {
		n.maps.Entries.Prefixes[p] = anotherClass(n, r, class)
		return fmt.Sprintf("class of %s", p)
	}
	return ""
}

func wrongPort(n *node, r *rand.Rand) string {
	i := r.IntN(len(n.maps.Entries.Ports))
	n.maps.Entries.Ports[i] = uint16((int(n.maps.Entries.Ports[i]) + 1) % (len(n.State.Policy.PortClasses) + 1))
	return fmt.Sprintf("class of port %d", i)
}

func wrongSlot(n *node, r *rand.Rand) string {
	for i, s := range n.maps.Entries.Slots {
		for number := range n.maps.Entries.Tables {
			if number != s.Table {
				s.Table = number
				n.maps.Entries.Slots[i] = s
				return fmt.Sprintf("table of slot %d", i)
			}
		}
	}
	return ""
}

// edit changes a copy of the list of one endpoint.
func edit(n *node, r *rand.Rand, change func([]hns.ACL) ([]hns.ACL, string)) string {
	l := n.lists[r.IntN(len(n.lists))]
	for id, list := range l.Ruleset.Lists {
		changed, what := change(slices.Clone(list))
		if what == "" {
			continue
		}
		l.Ruleset.Lists[id] = changed
		return fmt.Sprintf("%s, endpoint %s: %s", l.Name, id, what)
	}
	return ""
}

func wrongAction(n *node, r *rand.Rand) string {
	return edit(n, r, func(list []hns.ACL) ([]hns.ACL, string) {
		a := &list[r.IntN(len(list))]
		if a.Action == hns.Allow {
			a.Action = hns.Block
		} else {
			a.Action = hns.Allow
		}
		return list, "action of " + a.ID
	})
}

func missingRule(n *node, r *rand.Rand) string {
	return edit(n, r, func(list []hns.ACL) ([]hns.ACL, string) {
		i := r.IntN(len(list))
		return slices.Delete(list, i, i+1), "rule " + list[i].ID + " is gone"
	})
}

func wrongPorts(n *node, r *rand.Rand) string {
	return edit(n, r, func(list []hns.ACL) ([]hns.ACL, string) {
		for i := range list {
			if list[i].LocalPorts != "" {
				list[i].LocalPorts = "79"
				return list, "ports of " + list[i].ID
			}
			if list[i].RemotePorts != "" {
				list[i].RemotePorts += ",5000-6000"
				return list, "ports of " + list[i].ID
			}
		}
		return list, ""
	})
}

func wrongMember(n *node, r *rand.Rand) string {
	return edit(n, r, func(list []hns.ACL) ([]hns.ACL, string) {
		for i := range list {
			if a := &list[i]; strings.Contains(a.RemoteAddresses, ",") {
				_, a.RemoteAddresses, _ = strings.Cut(a.RemoteAddresses, ",")
				return list, "addresses of " + a.ID
			}
		}
		return list, ""
	})
}

func wrongSet(n *node, r *rand.Rand) string {
	for _, l := range n.lists {
		for id, members := range l.Ruleset.Sets {
			if r.IntN(2) == 0 && len(members) > 0 {
				l.Ruleset.Sets[id] = members[1:]
				return "a member of " + id + " is gone"
			}
			l.Ruleset.Sets[id] = append(slices.Clone(members), netip.MustParseAddr("203.0.113.77"))
			return "a member of " + id + " is too many"
		}
	}
	return ""
}

// Every planted error that makes a difference for a flow is found, and every difference that
// is found is real.
func TestPlanted(t *testing.T) {
	found := make(map[string]int)
	for i, shape := range shapes {
		for seed := range uint64(2) {
			for k, p := range plants {
				r := rand.New(rand.NewPCG(seed, uint64(k)))
				for _, n := range nodes(t, seed, shape) {
					what := p.make(n, r)
					if what == "" {
						continue
					}
					name := fmt.Sprintf("shape %d seed %d node %s: %s: %s", i, seed, n.State.Node, p.side, what)
					wrong, certain := probe(t, n)
					result, err := cells.Compare(context.Background(), n.Node)
					if err != nil {
						if p.side == "HNS" {
							continue // HNS would reject the list
						}
						t.Fatalf("%s: %v", name, err)
					}
					if result.Differ == 0 && len(result.Problems) == 0 && wrong != "" {
						t.Errorf("%s: not found: %s", name, wrong)
					}
					for _, d := range result.Differences {
						if !certain(d) {
							t.Errorf("%s: not a difference: %s", name, d)
						}
					}
					if result.Differ > 0 {
						found[fmt.Sprint(k)]++
					}
				}
			}
		}
	}
	for k := range plants {
		if found[fmt.Sprint(k)] == 0 {
			t.Errorf("plant %d (%s) never made a difference", k, plants[k].side)
		}
	}
	t.Log(found)
}

// Addresses that policies cannot distinguish form one peer. A list or map that treats one of
// them differently is still detected.
func TestOneOfManyIsWrong(t *testing.T) {
	labels := model.MakeLabels(map[string]string{"app": "client"})
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 2, byte(10 + i)}) }
	pods := []*model.Pod{{PodID: model.PodID{Namespace: "x", Name: "server"}, Node: "node1", IPs: []netip.Addr{netip.MustParseAddr("10.0.1.2")}}}
	const clients = 5
	for i := range clients {
		pods = append(pods, &model.Pod{PodID: model.PodID{Namespace: "x", Name: fmt.Sprint("client", i)}, Labels: labels, Node: "node2", IPs: []netip.Addr{at(i)}})
	}
	rule := model.Rule{Action: model.ActionAccept, AnyPort: true, Peers: []model.Peer{{Kind: model.PeerPods, Pods: model.PodSelector{Namespace: "x",
		Pods: model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{"client"}})}}}}
	policies := []*model.Policy{{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: "p"}, Tier: model.TierNetworkPolicy,
		Subject:  model.PodSelector{Namespace: "x", Pods: model.MakeSelector(model.Requirement{Key: "app", Operator: model.DoesNotExist})},
		Isolates: [2]bool{true, false}, Rules: [2][]model.Rule{{rule}}}}
	s := model.MakeSnapshot(nil, nil, pods, policies)
	state, unsupported := compile.Once(compile.Input{Snapshot: s, Node: "node1", Endpoints: engine.Endpoints(s)["node1"]})
	encode := func() *node { return encode(t, s, state, unsupported) }
	if r := compare(t, encode()); r.Differ > 0 || len(r.Problems) > 0 {
		t.Fatalf("%v %v", r.Differences, r.Problems)
	}
	for i := range clients {
		n := encode()
		for _, l := range n.lists {
			for id, members := range l.Ruleset.Sets {
				l.Ruleset.Sets[id] = slices.DeleteFunc(slices.Clone(members), func(a netip.Addr) bool { return a == at(i) })
			}
		}
		r := compare(t, n)
		if r.Differ == 0 || slices.ContainsFunc(r.Differences, func(d cells.Difference) bool { return d.Remote != at(i) }) {
			t.Errorf("client %d is in no set: differ=%d %v", i, r.Differ, r.Differences)
		}
		n = encode()
		n.maps.Entries.Peers[at(i)] = 999
		if r := compare(t, n); r.Differ == 0 {
			t.Errorf("client %d has another class in the maps, and no cell differs", i)
		}
	}
}

// probe looks for a difference without package cells: it evaluates single flows on all
// sides. It returns the first difference, and a function that judges one cell.
func probe(t *testing.T, n *node) (wrong string, differs func(cells.Difference) bool) {
	t.Helper()
	reference := policy.NewEvaluator(n.Snapshot)
	judge := func(id model.EndpointID, d model.Direction, a netip.Addr, p model.Protocol, port uint16) bool {
		e := n.State.Policy.Endpoints[id]
		pod, _ := n.Snapshot.Pods.Get(e.Pod)
		want := n.State.Policy.Decide(id, d, a, p, port).Verdict
		if reference.Endpoint(pod, d, a, p, port).Verdict != want || n.maps.Lookup(n.maps.Index[id], d, a, p, port) != want {
			return true
		}
		for _, l := range n.lists {
			rules, err := hns.ParseRules(l.Ruleset.Lists[id], l.Ruleset.EncodedSets())
			if err != nil {
				return true
			}
			for _, reading := range hns.Readings() {
				allow := rules.Decide(hns.Packet{Direction: acl.PacketDirection(d), Remote: a, Protocol: uint8(p), Port: port}, reading).Allow
				if allow != (want == model.Allow) && (allow || !l.Options.NoIPv6 || a.Is4()) {
					return true
				}
			}
		}
		return false
	}
	addrs, ports := world.Probes(n.Snapshot)
	r := rand.New(rand.NewPCG(1, 1))
	for id, e := range n.State.Policy.Endpoints {
		for range 60 { // a sample: all flows take long, and there are many planted errors
			a, at := addrs[r.IntN(len(addrs))], ports[r.IntN(len(ports))]
			d := model.Directions[r.IntN(2)]
			if !slices.Contains(e.IPs, a) && !a.IsLoopback() && judge(id, d, a, at.Protocol, at.Port) {
				return fmt.Sprintf("%s %s %s %s/%d", id, d, a, at.Protocol, at.Port), func(x cells.Difference) bool {
					return judge(x.Endpoint, x.Direction, x.Remote, x.Protocol, x.Port)
				}
			}
		}
	}
	return "", func(x cells.Difference) bool { return judge(x.Endpoint, x.Direction, x.Remote, x.Protocol, x.Port) }
}
