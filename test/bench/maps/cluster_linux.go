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
	pods     = 10_000
	nodes    = 40
	policies = 1_000
	touched  = 100 // pods that a measured edit touches
)

// place returns the namespace and the app of pod i. The first pods of node-0 are replicas of one
// app; the next ones have a table each.
func place(i int) (ns, app string) {
	j := i / nodes
	if i%nodes == 0 && j < touched {
		return "n-0", "same"
	}
	return fmt.Sprintf("n-%d", j%20), fmt.Sprintf("a-%d", j%100)
}

func newPod(i int) *model.Pod {
	ns, app := place(i)
	labels := map[string]string{"app": app, "release": fmt.Sprintf("r-%d", i%7)}
	if j := i / nodes; i%nodes == 0 && touched <= j && j < 2*touched {
		labels["wide"] = "yes"
	}
	n := i % nodes
	return &model.Pod{PodID: model.PodID{Namespace: ns, Name: fmt.Sprintf("pod-%d", i)}, Labels: model.MakeLabels(labels), Node: fmt.Sprintf("node-%d", n),
		IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(n), byte(2 + i/nodes)}), netip.AddrFrom16([16]byte{0xfd, 1, 13: byte(n), 15: byte(2 + i/nodes)})}}
}

func endpointOf(p *model.Pod) (model.EndpointID, compile.Endpoint) {
	return model.MakeEndpointID(p.Name, "eth0"), compile.Endpoint{Pod: p.PodID, IPs: p.IPs}
}

// cluster makes the snapshot and the endpoints of node-0.
func cluster() (*model.Snapshot, map[model.EndpointID]compile.Endpoint) {
	var namespaces []*model.Namespace
	for i := range 20 {
		namespaces = append(namespaces, model.NewNamespace(fmt.Sprintf("n-%d", i), map[string]string{"team": fmt.Sprintf("t-%d", i%5)}))
	}
	var all []*model.Node
	for n := range nodes {
		all = append(all, &model.Node{Name: fmt.Sprintf("node-%d", n), OS: model.Linux,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 9, byte(n + 1)}), netip.AddrFrom16([16]byte{0xfd, 0x99, 15: byte(n + 1)})},
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(n), 0}), 24),
				netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 1, 13: byte(n)}), 120)}})
	}
	endpoints := make(map[model.EndpointID]compile.Endpoint)
	var list []*model.Pod
	for i := range pods {
		p := newPod(i)
		list = append(list, p)
		if i%nodes == 0 {
			id, e := endpointOf(p)
			endpoints[id] = e
		}
	}
	rules := []*model.Policy{oneTable(0), manyTables(0)}
	for i := range policies - len(rules) {
		rules = append(rules, policyOf(i))
	}
	return model.MakeSnapshot(namespaces, all, list, rules), endpoints
}

func selector(key, value string) model.Selector {
	return model.MakeSelector(model.Requirement{Key: key, Operator: model.In, Values: []string{value}})
}

func block(cidr string) model.Peer {
	return model.Peer{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: netip.MustParsePrefix(cidr)}}
}

func tcp(port int) []model.PortMatch {
	return []model.PortMatch{{Protocol: model.TCP, First: uint16(port), Last: uint16(port)}}
}

// policyOf makes policy i: it allows an app of another team to reach an app of a namespace. Every
// fifth policy also allows a range outside the cluster.
func policyOf(i int) *model.Policy {
	ns := fmt.Sprintf("n-%d", i%20)
	p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: ns, Name: fmt.Sprintf("policy-%d", i)}, Tier: model.TierNetworkPolicy,
		Subject: model.PodSelector{Namespace: ns, Pods: selector("app", fmt.Sprintf("a-%d", i%100))}, Isolates: [2]bool{true, i%3 == 0}}
	peer := model.Peer{Kind: model.PeerPods, Pods: model.PodSelector{Namespaces: selector("team", fmt.Sprintf("t-%d", i/7%5)),
		Pods: selector("app", fmt.Sprintf("a-%d", i*7%100))}}
	r := model.Rule{Action: model.ActionAccept, Peers: []model.Peer{peer}, Ports: tcp(8000 + i%50)}
	if i%5 == 0 {
		r.Peers = append(r.Peers, block(fmt.Sprintf("172.16.%d.0/24", i%250)), block(fmt.Sprintf("fd16:%x::/64", i%250)))
	}
	p.Rules[model.Ingress] = []model.Rule{r}
	if i%3 == 0 {
		p.Rules[model.Egress] = []model.Rule{{Action: model.ActionAccept, Peers: []model.Peer{peer}, AnyPort: true}}
	}
	return p
}

// oneTable selects 100 pods of node-0 that share a Table.
func oneTable(edit int) *model.Policy {
	p := policyOf(0)
	p.Origin.Name, p.Subject.Pods = "same", selector("app", "same")
	p.Rules[model.Ingress][0].Ports = tcp(9000 + edit%2)
	return p
}

// manyTables selects 100 pods of node-0 that have a Table each.
func manyTables(edit int) *model.Policy {
	return &model.Policy{Origin: model.Origin{Kind: "ClusterNetworkPolicy", Name: "wide"}, Tier: model.TierAdmin,
		Subject: model.PodSelector{Pods: selector("wide", "yes")},
		Rules: [2][]model.Rule{model.Egress: {{Action: model.ActionDeny, AnyPort: true,
			Peers: []model.Peer{block(fmt.Sprintf("203.0.%d.0/24", edit%2)), block(fmt.Sprintf("fd20:%x::/64", edit%2))}}}}}
}
