// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// The size of the cluster.
const (
	namespaces = 20
	apps       = 10 // of each namespace
	pods       = 2_000
	nodes      = 20
	local      = pods / nodes // endpoints
	policies   = 25           // of each namespace
)

const self = "node-0"

// pod makes pod i, which is on node i%nodes.
func pod(i int) *model.Pod {
	set := i / nodes
	n := i % nodes
	return &model.Pod{PodID: model.PodID{Namespace: fmt.Sprintf("ns-%d", set%namespaces), Name: fmt.Sprintf("pod-%d", i)},
		Labels: labels(set / namespaces % apps), Node: fmt.Sprintf("node-%d", n), IPs: []netip.Addr{addressOf(n, set)}}
}

// addressOf returns address i of the pods of a node. HNS reserves the first addresses.
func addressOf(node, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(node), byte(i >> 7), byte(3 + i&0x7F)})
}

func labels(app int) model.Labels {
	return model.MakeLabels(map[string]string{"app": fmt.Sprint(app), "tier": []string{"front", "back", "data"}[app%3]})
}

func cidrOf(node int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(node), 0, 0}), 16)
}

func nodeAddress(node int) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, 0, byte(1 + node)}) }

// cluster makes the snapshot and this node's endpoints.
func cluster() (*model.Snapshot, map[model.EndpointID]compile.Endpoint) {
	var spaces []*model.Namespace
	var rules []*model.Policy
	for i := range namespaces {
		name := fmt.Sprintf("ns-%d", i)
		spaces = append(spaces, model.NewNamespace(name, map[string]string{"team": fmt.Sprint(i % 5)}))
		for kind := range policies {
			rules = append(rules, policyOf(name, i, kind))
		}
	}
	var machines []*model.Node
	for i := range nodes {
		machines = append(machines, &model.Node{Name: fmt.Sprintf("node-%d", i), OS: model.Windows,
			Addresses: []netip.Addr{nodeAddress(i)}, PodCIDRs: []netip.Prefix{cidrOf(i)}})
	}
	endpoints := make(map[model.EndpointID]compile.Endpoint, local)
	var all []*model.Pod
	for i := range pods {
		p := pod(i)
		all = append(all, p)
		if p.Node == self {
			endpoints[model.MakeEndpointID(p.Name, "eth0")] = compile.Endpoint{Pod: p.PodID, IPs: p.IPs}
		}
	}
	return model.MakeSnapshot(spaces, machines, all, rules), endpoints
}

func is(key string, value any) model.Selector {
	return model.MakeSelector(model.Requirement{Key: key, Operator: model.In, Values: []string{fmt.Sprint(value)}})
}

func tcp(port int) []model.PortMatch {
	return []model.PortMatch{{Protocol: model.TCP, First: uint16(port), Last: uint16(port)}}
}

func podsOf(s model.PodSelector) []model.Peer { return []model.Peer{{Kind: model.PeerPods, Pods: s}} }

// policyOf makes a policy of a namespace: two per application, and five for all pods of the
// namespace.
func policyOf(ns string, i, kind int) *model.Policy {
	p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: ns, Name: fmt.Sprint("policy-", kind)}, Tier: model.TierNetworkPolicy,
		Subject: model.PodSelector{Namespace: ns}, Isolates: [2]bool{true, true}}
	allow := func(d model.Direction, peers []model.Peer, ports []model.PortMatch) {
		p.Rules[d] = append(p.Rules[d], model.Rule{Index: len(p.Rules[d]), Action: model.ActionAccept, Peers: peers, Ports: ports})
	}
	app := kind % apps
	switch {
	case kind < apps: // clients: two other applications
		p.Subject.Pods = is("app", app)
		p.Isolates[model.Egress] = false
		for k := range 2 {
			allow(model.Ingress, podsOf(model.PodSelector{Namespace: ns, Pods: is("app", (app+1+k)%apps)}), tcp(8000+k))
		}
	case kind < 2*apps: // clients: front ends of the team's namespaces; egress: a database
		p.Subject.Pods = is("app", app)
		allow(model.Ingress, podsOf(model.PodSelector{Namespaces: is("team", (i+app)%5), Pods: is("tier", "front")}), tcp(443))
		allow(model.Egress, podsOf(model.PodSelector{Namespace: ns, Pods: is("app", (app+3)%apps)}), tcp(5432))
	case kind == 2*apps: // allows DNS
		p.Isolates[model.Ingress] = false
		allow(model.Egress, podsOf(model.PodSelector{Namespace: "ns-0", Pods: is("app", 0)}), []model.PortMatch{{Protocol: model.UDP, First: 53, Last: 53}})
	case kind == 2*apps+1: // monitoring
		p.Isolates[model.Egress] = false
		allow(model.Ingress, podsOf(model.PodSelector{Namespace: "ns-1", Pods: is("app", 1)}), tcp(9100))
	case kind == 2*apps+2: // allows addresses outside the cluster
		p.Isolates[model.Ingress] = false
		b := model.IPBlock{CIDR: netip.MustParsePrefix("0.0.0.0/0"), Except: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
		allow(model.Egress, []model.Peer{{Kind: model.PeerBlock, Block: b}}, tcp(443))
	case kind == 2*apps+3: // allows the addresses of an office
		p.Isolates[model.Egress] = false
		b := model.IPBlock{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i), 0}), 24)}
		allow(model.Ingress, []model.Peer{{Kind: model.PeerBlock, Block: b}}, tcp(8443))
	}
	return p
}

// change is a change of pods on other nodes as clusters have it: a pod is created, deleted,
// replaced by one with another address, or relabelled to another application.
type change struct {
	random *rand.Rand
	come   []*model.Pod
	next   int
}

func (c *change) apply(s *model.Snapshot) {
	switch n := c.random.IntN(10); {
	case n < 4 || len(c.come) == 0:
		c.add(s)
	case n < 7:
		c.remove(s)
	case n < 9:
		c.remove(s)
		c.add(s)
	default:
		i := c.random.IntN(len(c.come))
		p := *c.come[i]
		p.Labels = labels(c.random.IntN(apps))
		c.come[i] = &p
		s.Pods = s.Pods.With(p.PodID, &p)
	}
}

func (c *change) add(s *model.Snapshot) {
	node := 1 + c.random.IntN(nodes-1)
	p := &model.Pod{PodID: model.PodID{Namespace: fmt.Sprintf("ns-%d", c.random.IntN(namespaces)), Name: fmt.Sprint("late-", c.next)},
		Labels: labels(c.random.IntN(apps)), Node: fmt.Sprintf("node-%d", node), IPs: []netip.Addr{addressOf(node, local+c.next)}}
	c.next++
	c.come = append(c.come, p)
	s.Pods = s.Pods.With(p.PodID, p)
}

func (c *change) remove(s *model.Snapshot) {
	i := c.random.IntN(len(c.come))
	s.Pods = s.Pods.Without(c.come[i].PodID)
	c.come[i] = c.come[len(c.come)-1]
	c.come = c.come[:len(c.come)-1]
}
