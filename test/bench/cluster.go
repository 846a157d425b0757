// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// The size of the cluster.
const (
	pods       = 100_000
	nodes      = 400
	namespaces = 200
	labelSets  = 2_000
	policies   = 2_000
	local      = pods / nodes // endpoints
)

// podID names pod i, which is on node i%nodes and has label set i/(pods/labelSets).
func podID(i int) model.PodID {
	return model.PodID{Namespace: namespaceOf(i / (pods / labelSets)), Name: fmt.Sprintf("pod-%d", i)}
}

// namespaceOf returns the namespace of the pods with a label set.
func namespaceOf(set int) string { return fmt.Sprintf("ns-%d", set/(labelSets/namespaces)) }

func labelsOf(set int) map[string]string {
	return map[string]string{"app": fmt.Sprintf("app-%d", set%10), "tier": []string{"front", "back", "data"}[set%3],
		"release": fmt.Sprintf("r%d", set), "managed-by": "helm"}
}

func pod(i, set int) *model.Pod {
	n := i % nodes
	return &model.Pod{PodID: podID(i), Labels: model.MakeLabels(labelsOf(set)), Node: fmt.Sprintf("node-%d", n), Created: int64(i),
		IPs:   []netip.Addr{netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), byte(2 + i/nodes)})},
		Ports: []model.NamedPort{{Name: "http", Protocol: model.TCP, Port: 8080}}}
}

// cluster makes the snapshot and the endpoints of node-0.
func cluster() (*model.Snapshot, map[model.EndpointID]compile.Endpoint) {
	var ns []*model.Namespace
	for i := range namespaces {
		ns = append(ns, model.NewNamespace(fmt.Sprintf("ns-%d", i), map[string]string{"team": fmt.Sprintf("team-%d", i%20)}))
	}
	var all []*model.Node
	for i := range nodes {
		all = append(all, &model.Node{Name: fmt.Sprintf("node-%d", i), OS: model.Linux,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)})},
			PodCIDRs:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)}})
	}
	endpoints := make(map[model.EndpointID]compile.Endpoint)
	var list []*model.Pod
	for i := range pods {
		p := pod(i, i/(pods/labelSets))
		list = append(list, p)
		if i%nodes == 0 {
			endpoints[model.MakeEndpointID(p.Name, "eth0")] = compile.Endpoint{Pod: p.PodID, IPs: p.IPs}
		}
	}
	var rules []*model.Policy
	for i := range policies {
		rules = append(rules, policyOf(i))
	}
	return model.MakeSnapshot(ns, all, list, rules), endpoints
}

func selector(key, value string) model.Selector {
	return model.MakeSelector(model.Requirement{Key: key, Operator: model.In, Values: []string{value}})
}

func tcp(first, last uint16) model.PortMatch {
	return model.PortMatch{Protocol: model.TCP, First: first, Last: last}
}

func block(cidr string, except ...string) model.Peer {
	b := model.IPBlock{CIDR: netip.MustParsePrefix(cidr)}
	for _, e := range except {
		b.Except = append(b.Except, netip.MustParsePrefix(e))
	}
	return model.Peer{Kind: model.PeerBlock, Block: b}
}

func podsOf(s model.PodSelector) model.Peer { return model.Peer{Kind: model.PeerPods, Pods: s} }

// policyOf makes policy i: ten kinds, one of each per namespace. Namespace 0 has
// cluster-wide policies in place of its last five.
func policyOf(i int) *model.Policy {
	ns, kind := fmt.Sprintf("ns-%d", i/10), i%10
	if i < 10 && kind >= 5 {
		return clusterPolicy(kind)
	}
	p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: ns, Name: fmt.Sprintf("policy-%d", kind)}, Tier: model.TierNetworkPolicy}
	app := fmt.Sprintf("app-%d", kind)
	p.Subject = model.PodSelector{Namespace: ns, Pods: selector("app", app)}
	p.Isolates = [2]bool{true, false}
	r := model.Rule{Action: model.ActionAccept}
	switch kind {
	case 0: // isolates every pod of the namespace
		p.Subject.Pods, p.Isolates = model.Selector{}, [2]bool{true, true}
		return p
	case 1: // allows traffic between the pods of the namespace
		p.Subject.Pods, p.Isolates = model.Selector{}, [2]bool{true, true}
		r.Peers, r.AnyPort = []model.Peer{podsOf(model.PodSelector{Namespace: ns})}, true
		p.Rules = [2][]model.Rule{{r}, {r}}
		return p
	case 2: // allows DNS
		p.Subject.Pods, p.Isolates = model.Selector{}, [2]bool{false, true}
		r.Peers = []model.Peer{podsOf(model.PodSelector{Namespaces: selector(model.MetadataName, "ns-0"), Pods: selector("app", "app-0")})}
		r.Ports = []model.PortMatch{{Protocol: model.UDP, First: 53, Last: 53}, tcp(53, 53)}
		p.Rules[model.Egress] = []model.Rule{r}
		return p
	case 3, 4:
		r.Peers = []model.Peer{podsOf(model.PodSelector{Namespaces: selector("team", fmt.Sprintf("team-%d", i%20)), Pods: selector("tier", "front")})}
		r.Ports = []model.PortMatch{tcp(uint16(8000+i%50), uint16(8000+i%50)), tcp(443, 443)}
	case 5:
		r.Peers, r.Ports = []model.Peer{block("0.0.0.0/0", "10.0.0.0/8", "192.168.0.0/16")}, []model.PortMatch{tcp(443, 443)}
	case 6:
		p.Isolates = [2]bool{false, true}
		r.Peers, r.AnyPort = []model.Peer{block(fmt.Sprintf("172.16.%d.0/24", i/10))}, true
		p.Rules[model.Egress] = []model.Rule{r}
		return p
	case 7:
		p.Isolates = [2]bool{false, true}
		r.Peers, r.Ports = []model.Peer{podsOf(model.PodSelector{Namespace: ns})}, []model.PortMatch{{Protocol: model.TCP, Name: "http"}}
		p.Rules[model.Egress] = []model.Rule{r}
		return p
	case 8: // one rule for each of ten releases of the next namespace, each with a port of its own
		for k := range 10 {
			r.Index, r.Ports = k, []model.PortMatch{tcp(uint16(7000+k), uint16(7000+k))}
			r.Peers = []model.Peer{podsOf(model.PodSelector{Namespace: namespaceOf((i + 10) % policies),
				Pods: selector("release", fmt.Sprintf("r%d", (i-8+10+k)%labelSets))})}
			p.Rules[model.Ingress] = append(p.Rules[model.Ingress], r)
		}
		p.Subject.Pods = model.Selector{}
		return p
	default:
		r.AnyPeer, r.Ports = true, []model.PortMatch{tcp(9100, 9110)}
	}
	p.Rules[model.Ingress] = []model.Rule{r}
	return p
}

func clusterPolicy(kind int) *model.Policy {
	p := &model.Policy{Origin: model.Origin{Kind: "ClusterNetworkPolicy", Name: fmt.Sprintf("cluster-%d", kind)}, Tier: model.TierAdmin, Priority: kind}
	r := model.Rule{Action: model.ActionDeny, AnyPort: true, Peers: []model.Peer{podsOf(model.PodSelector{Namespaces: selector("team", "team-13")})}}
	p.Subject = model.PodSelector{Namespaces: selector("team", fmt.Sprintf("team-%d", kind))}
	if kind == 9 {
		p.Subject = model.PodSelector{}
		r.Peers = []model.Peer{block("203.0.113.0/24")}
	}
	p.Rules[model.Egress] = []model.Rule{r}
	return p
}
