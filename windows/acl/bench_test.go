// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// large is a cluster of 100 nodes with pods of ten applications in ten
// namespaces, and ten policies that select the pods of one application.
func large(pods int) *model.Snapshot {
	var nodes []*model.Node
	for n := range 100 {
		nodes = append(nodes, &model.Node{Name: fmt.Sprintf("node%d", n), OS: model.Windows,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 0, byte(n + 1)})},
			PodCIDRs:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(n), 0}), 24)}})
	}
	var list []*model.Pod
	for i := range pods {
		list = append(list, largePod(i))
	}
	var policies []*model.Policy
	for i := range 10 {
		policies = append(policies, largePolicy(i))
	}
	return model.MakeSnapshot(nil, nodes, list, policies)
}

func largePod(i int) *model.Pod {
	node := i % 100
	return &model.Pod{
		PodID:  model.PodID{Namespace: fmt.Sprintf("ns%d", i/10%10), Name: fmt.Sprintf("pod%d", i)},
		Labels: model.MakeLabels(map[string]string{"app": fmt.Sprintf("app%d", i%10)}),
		Node:   fmt.Sprintf("node%d", node),
		IPs:    []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(node), byte(3 + i/100)})},
	}
}

func largePolicy(i int) *model.Policy {
	app := func(n int) model.Selector {
		return model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{fmt.Sprintf("app%d", n%10)}})
	}
	port := func(n int) []model.PortMatch {
		p := uint16(8000 + n)
		return []model.PortMatch{{Protocol: model.TCP, First: p, Last: p}, {Protocol: model.UDP, First: p, Last: p + 5}}
	}
	p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "ns0", Name: fmt.Sprintf("policy%d", i)}, Tier: model.TierNetworkPolicy}
	p.Subject = model.PodSelector{Namespace: "ns0"}
	p.Isolates = [2]bool{true, true}
	p.Rules[model.Ingress] = []model.Rule{{Peers: []model.Peer{{Kind: model.PeerPods, Pods: model.PodSelector{Pods: app(i)}}}, Ports: port(i), Action: model.ActionAccept}}
	block := netip.MustParsePrefix("172.16.0.0/12")
	p.Rules[model.Egress] = []model.Rule{{
		Peers: []model.Peer{{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: block, Except: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("172.%d.0.0/16", 16+i))}}},
			{Kind: model.PeerPods, Pods: model.PodSelector{Namespace: fmt.Sprintf("ns%d", i), Pods: app(i + 1)}}},
		Ports: port(i + 20), Action: model.ActionAccept}}
	return p
}

// BenchmarkLower lowers one endpoint under ten policies in a cluster of 5,000 pods;
// BenchmarkLower/node lowers all endpoints of its node.
func BenchmarkLower(b *testing.B) {
	s := large(5000)
	for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
		pod, _ := s.Pods.Get(model.PodID{Namespace: "ns0", Name: "pod0"})
		in := compile.Input{Snapshot: s, Node: "node0", Endpoints: map[model.EndpointID]compile.Endpoint{"c0:eth0": {Pod: pod.PodID, IPs: pod.IPs}}}
		state, _ := compile.Once(in)
		b.Run(fmt.Sprintf("hns%s", profile), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				acl.Lower(state, options(profile), "")
			}
			l := acl.Lower(state, options(profile), "")
			n := sizeOf(l, "c0:eth0")
			b.ReportMetric(float64(n.rules), "rules")
			b.ReportMetric(float64(n.addresses), "addresses")
		})
	}
}

// BenchmarkKeep checks a list in force that differs from the list that Lower would write.
func BenchmarkKeep(b *testing.B) {
	s := large(5000)
	pod, _ := s.Pods.Get(model.PodID{Namespace: "ns0", Name: "pod0"})
	in := compile.Input{Snapshot: s, Node: "node0", Endpoints: map[model.EndpointID]compile.Endpoint{"c0:eth0": {Pod: pod.PodID, IPs: pod.IPs}}}
	old, _ := compile.Once(in)
	for _, p := range s.Pods.All() { // the last pod that one rule names is deleted
		if p.Namespace == "ns3" && p.Labels == model.MakeLabels(map[string]string{"app": "app4"}) {
			s.Pods = s.Pods.Without(p.PodID)
		}
	}
	in.Previous = old
	in.Snapshot = s
	next, _ := compile.Once(in)
	o := options(hns.Server2022)
	from := &acl.Lower(old, o, "").Ruleset
	to := acl.Lower(next, o, "")
	if acl.Equal(from.Lists["c0:eth0"], to.Lists["c0:eth0"]) {
		b.Fatal("the list is the same")
	}
	for b.Loop() {
		if kept := to.Keep(from); !acl.Equal(kept.Lists["c0:eth0"], from.Lists["c0:eth0"]) {
			b.Fatal("the list was not kept")
		}
	}
}

// BenchmarkManyRules lowers one endpoint whose policy opens one port each to many networks. This is the
// most expensive case, since no two rules can be joined. No node distinguishes more than 1023 sets of
// ports.
func BenchmarkManyRules(b *testing.B) {
	for _, n := range []int{100, 400, 1000} {
		pod := largePod(0)
		p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "ns0", Name: "many"}, Tier: model.TierNetworkPolicy,
			Subject: model.PodSelector{Namespace: "ns0"}, Isolates: [2]bool{false, true}}
		for i := range n {
			port := uint16(1000 + i)
			block := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16 + byte(i>>8), byte(i), 0}), 24)
			p.Rules[model.Egress] = append(p.Rules[model.Egress], model.Rule{Index: i, Action: model.ActionAccept,
				Peers: []model.Peer{{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: block}}},
				Ports: []model.PortMatch{{Protocol: model.TCP, First: port, Last: port}}})
		}
		node := &model.Node{Name: "node0", OS: model.Windows, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}
		s := model.MakeSnapshot(nil, []*model.Node{node}, []*model.Pod{pod}, []*model.Policy{p})
		state, _ := compile.Once(compile.Input{Snapshot: s, Node: "node0", Endpoints: map[model.EndpointID]compile.Endpoint{"c0:eth0": {Pod: pod.PodID, IPs: pod.IPs}}})
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				l := acl.Lower(state, options(hns.Server2022), "")
				if got := sizeOf(l, "c0:eth0").rules; got < n/2 {
					b.Fatalf("%d rules became %d", n, got)
				}
			}
		})
	}
}
