// SPDX-License-Identifier: Apache-2.0

package vfp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/corpus"
	"github.com/isthmus-net/isthmus/test/hnsemu/facts"
	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

var ctx = context.Background()

// node is a Windows node: the objects of its HNS, and the ports that follow from them.
type node struct {
	store     *hnstest.Fake
	network   string
	ruleset   *acl.Ruleset
	endpoints map[model.EndpointID]string // ids in HNS
	specs     []vfp.Spec
	// facts decide by the documented facts about HNS, by id in HNS.
	facts map[string]*facts.Port
}

// newNode makes a network that accepts any address, and the port of the host.
func newNode(t *testing.T, v hns.Version) *node {
	t.Helper()
	prefixes := [][2]string{{"0.0.0.0/1", "0.0.0.1"}, {"128.0.0.0/1", "128.0.0.1"}}
	if v.Supports(hns.DualStack) {
		prefixes = append(prefixes, [2]string{"::/1", "::1:1"}, [2]string{"8000::/1", "8000::1"})
	}
	var ipam hns.Ipam
	for _, p := range prefixes {
		def := "0.0.0.0/0"
		if netip.MustParsePrefix(p[0]).Addr().Is6() {
			def = "::/0"
		}
		ipam.Subnets = append(ipam.Subnets, hns.Subnet{IPAddressPrefix: p[0], Routes: []hns.Route{{NextHop: p[1], DestinationPrefix: def}}})
	}
	n := &node{store: hnstest.NewFake(v), ruleset: &acl.Ruleset{}, endpoints: make(map[model.EndpointID]string)}
	made, err := n.store.CreateNetwork(ctx, hns.Network{Name: "net", Type: hns.L2Bridge, Ipams: []hns.Ipam{ipam}})
	if err != nil {
		t.Fatal(err)
	}
	n.network = made.ID
	host, err := n.store.CreateEndpoint(ctx, hns.Endpoint{Name: "host", HostComputeNetwork: n.network, IPConfigurations: []hns.IPConfig{{IPAddress: "0.0.0.2"}}})
	if err == nil {
		err = n.store.AttachEndpoint(ctx, hns.HostNamespace, host.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// without removes addresses that belong to another pod, and endpoints without other addresses: HNS assigns no
// address twice.
func without(s *model.State, owners model.Owners) *model.State {
	c := *s
	c.Policy.Endpoints = make(map[model.EndpointID]model.EndpointState)
	for id, e := range s.Policy.Endpoints {
		e.IPs = slices.DeleteFunc(slices.Clone(e.IPs), func(a netip.Addr) bool { return owners.Pods[a] == nil || owners.Pods[a].PodID != e.Pod })
		if len(e.IPs) > 0 {
			c.Policy.Endpoints[id] = e
		}
	}
	return &c
}

// apply writes the sets and ACLs of a State, sets first, to a store that refuses what HNS refuses.
func (n *node) apply(t *testing.T, v hns.Version, state *model.State) {
	t.Helper()
	options := acl.Options{Sets: v.Supports(hns.Sets), NoIPv6: !v.Supports(hns.DualStack)}.Defaults()
	n.ruleset = acl.Lower(state, options, "HNS "+v.String()).Keep(n.ruleset)
	have := make(map[string]bool)
	network, err := n.store.Network(ctx, n.network)
	if err != nil {
		t.Fatal(err)
	}
	sets, err := network.Sets()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sets {
		have[s.ID] = true
	}
	for id, members := range n.ruleset.Sets {
		request := hns.Add
		if have[id] {
			request = hns.Update
		}
		if _, err := n.store.ModifyNetwork(ctx, n.network, request, acl.EncodeSet(id, members).Policy()); err != nil {
			t.Fatal(err)
		}
	}
	for id, endpoint := range n.endpoints { // another pod may now have the address
		if err := n.store.DeleteEndpoint(ctx, endpoint); err != nil {
			t.Fatal(err)
		}
		delete(n.endpoints, id)
	}
	for id, e := range state.Policy.Endpoints {
		n.attach(t, v, id, e.IPs)
		var policies []hns.Policy
		for _, a := range n.ruleset.Lists[id] {
			policies = append(policies, a.Policy())
		}
		if _, err := n.store.ModifyEndpoint(ctx, n.endpoints[id], hns.Update, policies...); err != nil {
			t.Fatalf("%s: %v", id, err)
		}
	}
	if n.specs, err = vfp.Specs(n.store, func(namespace string) string { return namespace }); err != nil {
		t.Fatal(err)
	}
	n.read(t)
}

// read passes the policies of every endpoint in the store to an evaluator that shares no code with the switch.
func (n *node) read(t *testing.T) {
	t.Helper()
	network, err := n.store.Network(ctx, n.network)
	if err != nil {
		t.Fatal(err)
	}
	list, err := n.store.Endpoints(ctx, n.network)
	if err != nil {
		t.Fatal(err)
	}
	n.facts = make(map[string]*facts.Port)
	for _, e := range list {
		if n.facts[e.ID], err = facts.Read(raw(t, e.Policies), raw(t, network.Policies)); err != nil {
			t.Fatalf("%s: %v", e.Name, err)
		}
	}
}

// raw returns policies as JSON.
func raw(t *testing.T, policies []hns.Policy) []json.RawMessage {
	t.Helper()
	var all []json.RawMessage
	for _, p := range policies {
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}

func (n *node) attach(t *testing.T, v hns.Version, id model.EndpointID, ips []netip.Addr) {
	t.Helper()
	e := hns.Endpoint{Name: string(id), HostComputeNetwork: n.network}
	for _, a := range ips {
		if a.Is4() || v.Supports(hns.DualStack) {
			e.IPConfigurations = append(e.IPConfigurations, hns.IPConfig{IPAddress: a.String()})
		}
	}
	made, err := n.store.CreateEndpoint(ctx, e)
	if err == nil {
		err = n.store.AttachEndpoint(ctx, n.store.AddNamespace(), made.ID)
	}
	if err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	n.endpoints[id] = made.ID
}

// mailbox is a device that records that a frame arrived.
type mailbox struct {
	id  string
	got *string // the port that received the last frame
}

func (m mailbox) Write(frame []byte) (int, error) { *m.got = m.id; return len(frame), nil }
func (mailbox) Close() error                      { return nil }

// segment holds the switches of all nodes, and the network between them.
type segment struct {
	switches map[string]*vfp.Switch
	hosts    map[string]string // ids of the hosts' ports
	got      string
	packets  int
}

func newSegment(t *testing.T, nodes map[string]*node, o vfp.Options) *segment {
	t.Helper()
	s := &segment{switches: make(map[string]*vfp.Switch), hosts: make(map[string]string)}
	for name, n := range nodes {
		sw := vfp.New(vfp.Config{Options: o, Open: func(spec vfp.Spec) (vfp.Device, error) { return mailbox{spec.ID, &s.got}, nil }})
		if err := sw.Set(n.specs); err != nil {
			t.Fatal(err)
		}
		s.switches[name] = sw
		for _, spec := range n.specs {
			if spec.Host {
				s.hosts[name] = spec.ID
			}
		}
	}
	return s
}

// place is the port of a pod; without a node it is outside the cluster.
type place struct{ node, port string }

// send carries a packet from one port to another and reports whether it arrived.
func (s *segment) send(w wire, from, to place) bool {
	s.packets++
	if from.node != "" {
		s.got = ""
		s.switches[from.node].Frame(from.port, w.frame())
		if from.node == to.node || to.node == "" || s.got == "" {
			return s.got != "" && (to.node != "" && s.got == to.port || to.node == "" && s.got == s.hosts[from.node])
		}
	}
	s.got = ""
	s.switches[to.node].Frame(s.hosts[to.node], w.frame())
	return s.got == to.port
}

// conformance counts comparisons. facts are flows that were also decided by the documented facts about HNS,
// without code of windows/hns.
type conformance struct{ cases, packets, verdicts, differ, facts int }

// TestConformance sends the packets of every flow of every case, and the answers
// to those that arrive. Switches enforce the ACLs of the case's policies, for every
// version of HNS and under every reading of its rules.
func TestConformance(t *testing.T) {
	cases, err := corpus.Load("../../corpus")
	if err != nil {
		t.Fatal(err)
	}
	readings := hns.Readings()
	if testing.Short() {
		readings = []hns.Reading{readings[0], readings[len(readings)-1]}
	}
	var c conformance
	for i := range cases {
		for _, v := range hns.Profiles() {
			c.run(t, &cases[i], v, readings)
		}
		c.cases++
	}
	line := fmt.Sprintf("conformance cases=%d profiles=%d readings=%d verdicts=%d facts=%d differ=%d packets=%d",
		c.cases, len(hns.Profiles()), len(readings), c.verdicts, c.facts, c.differ, c.packets)
	t.Log(line)
	if dir := os.Getenv("ISTHMUS_WINDOWS_SUMMARY"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, "2-conformance"), []byte(line+"\n"), 0o600); err != nil {
			t.Error(err)
		}
	}
	if c.cases == 0 || c.verdicts == 0 || c.facts == 0 {
		t.Error("nothing was compared")
	}
}

func (c *conformance) run(t *testing.T, one *corpus.Case, v hns.Version, readings []hns.Reading) {
	t.Helper()
	nodes := make(map[string]*node)
	var cluster *engine.Cluster
	for number, step := range one.Steps {
		cluster = engine.Compile(step.Snapshot, cluster)
		places := make(map[netip.Addr]place)
		owners := step.Snapshot.Owners()
		for name, state := range cluster.States {
			if nodes[name] == nil {
				nodes[name] = newNode(t, v)
			}
			nodes[name].apply(t, v, without(state, owners))
			for id, e := range state.Policy.Endpoints {
				for _, a := range e.IPs {
					if owners.Pods[a] != nil && owners.Pods[a].PodID == e.Pod {
						places[a] = place{name, nodes[name].endpoints[id]}
					}
				}
			}
		}
		for _, f := range step.Flows {
			c.byTheFacts(t, nodes, f, v, places, fmt.Sprintf("%s step %d, HNS %s", one.Name, number+1, v))
		}
		for _, reading := range readings {
			s := newSegment(t, nodes, vfp.Options{Rules: reading})
			for _, f := range step.Flows {
				c.flow(t, s, f, v, places, fmt.Sprintf("%s step %d, HNS %s, %s", one.Name, number+1, v, reading))
			}
			c.packets += s.packets
		}
	}
}

// asked reports whether a port evaluates a packet of the flow.
func asked(f corpus.Flow, v hns.Version, from, to place) bool {
	switch {
	case f.Src == f.Dst, from.node == "" && to.node == "": // passes no port
		return false
	case f.Src.Is6() != f.Dst.Is6(), f.Protocol == model.ICMP && f.Src.Is6(), f.Protocol == model.ICMPv6 && f.Src.Is4():
		return false // no such packet can exist
	case f.Src.Is6() && !v.Supports(hns.DualStack):
		return false
	}
	return from != to // the other address of the pod
}

// byTheFacts decides a flow at both ends by the documented facts about HNS.
func (c *conformance) byTheFacts(t *testing.T, nodes map[string]*node, f corpus.Flow, v hns.Version, places map[netip.Addr]place, where string) {
	t.Helper()
	from, to := places[f.Src], places[f.Dst]
	if !asked(f, v, from, to) {
		return
	}
	k := facts.Packet{From: f.Src, To: f.Dst, Protocol: int(f.Protocol), ToPort: int(f.Port)}
	if f.Protocol.HasPorts() {
		k.FromPort = 40000
	}
	pass := true
	for way, at := range map[facts.Way]place{facts.Out: from, facts.In: to} {
		if at.node == "" {
			continue
		}
		passes, err := nodes[at.node].facts[at.port].Decide(way, k)
		if err != nil {
			t.Errorf("%s: %s: %v", where, f.Text, err)
		}
		pass = pass && passes
	}
	if c.facts++; pass != (f.Want == model.Allow) {
		c.differ++
		t.Errorf("%s: %s: by the facts it passes %t", where, f.Text, pass)
	}
}

func (c *conformance) flow(t *testing.T, s *segment, f corpus.Flow, v hns.Version, places map[netip.Addr]place, where string) {
	t.Helper()
	from, to := places[f.Src], places[f.Dst]
	if !asked(f, v, from, to) {
		return
	}
	w := wire{src: f.Src, dst: f.Dst, protocol: uint8(f.Protocol), srcPort: uint16(40000 + s.packets%20000), dstPort: f.Port}
	if f.Protocol == model.ICMP || f.Protocol == model.ICMPv6 {
		w.dstPort = w.srcPort
	}
	arrived := s.send(w, from, to)
	c.verdicts++
	if arrived != (f.Want == model.Allow) {
		c.differ++
		t.Errorf("%s: %s: arrived %t", where, f.Text, arrived)
		return
	}
	if arrived && !s.send(w.back(), to, from) {
		c.differ++
		t.Errorf("%s: %s: the answer did not arrive", where, f.Text)
	}
}
