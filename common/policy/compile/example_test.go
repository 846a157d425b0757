// SPDX-License-Identifier: Apache-2.0

package compile_test

import (
	"fmt"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// The policy of the README: pods app=web may reach pods app=api at TCP 80,
// compiled for the node of the api pod.
func ExampleOnce() {
	in := webToAPI()
	state, unsupported := compile.Once(in)
	for _, c := range state.Policy.PeerClasses {
		fmt.Printf("peer class %d (%s): %q\n", c.Class, c.Kind, c.Terms)
	}
	for _, c := range state.Policy.PortClasses {
		fmt.Printf("port class %d: %q\n", c.Class, c.Terms)
	}
	web, other := netip.MustParseAddr("10.0.2.2"), netip.MustParseAddr("10.0.2.9")
	ingress := state.Policy.Tables[state.Policy.Endpoints["api-eth0"].Table].Sides[model.Ingress]
	for _, a := range []netip.Addr{web, other} {
		row := ingress.Row(state.Policy.Class(a))
		fmt.Println(a, "port 80:", row.Cell(state.Policy.PortClass(model.TCP, 80)))
		fmt.Println(a, "port 22:", row.Cell(state.Policy.PortClass(model.TCP, 22)))
	}
	fmt.Println("not exact:", len(unsupported))
	// Output:
	// peer class 0 (known): []
	// peer class 1 (known): ["namespace shop pods{app=web}"]
	// peer class 2 (unknown pod): []
	// port class 0: []
	// port class 1: ["TCP 80"]
	// 10.0.2.2 port 80: allow: ingress rule 0 of NetworkPolicy shop/web-to-api, tier NetworkPolicy
	// 10.0.2.2 port 22: deny: isolated for ingress by NetworkPolicy shop/web-to-api, no rule accepts
	// 10.0.2.9 port 80: deny: isolated for ingress by NetworkPolicy shop/web-to-api, no rule accepts
	// 10.0.2.9 port 22: deny: isolated for ingress by NetworkPolicy shop/web-to-api, no rule accepts
	// not exact: 0
}

// webToAPI is a cluster of two nodes and three pods under one NetworkPolicy.
func webToAPI() compile.Input {
	pod := func(name, node, ip string) *model.Pod {
		return &model.Pod{PodID: model.PodID{Namespace: "shop", Name: name}, Node: node, IPs: []netip.Addr{netip.MustParseAddr(ip)},
			Labels: model.MakeLabels(map[string]string{"app": name})}
	}
	app := func(name string) model.PodSelector {
		return model.PodSelector{Namespace: "shop", Pods: model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{name}})}
	}
	p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "web-to-api"},
		Tier: model.TierNetworkPolicy, Subject: app("api")}
	p.Isolates[model.Ingress] = true
	p.Rules[model.Ingress] = []model.Rule{{Action: model.ActionAccept,
		Peers: []model.Peer{{Kind: model.PeerPods, Pods: app("web")}}, Ports: []model.PortMatch{{Protocol: model.TCP, First: 80, Last: 80}}}}
	api := pod("api", "node1", "10.0.1.2")
	s := model.MakeSnapshot([]*model.Namespace{model.NewNamespace("shop", nil)},
		[]*model.Node{{Name: "node1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}},
			{Name: "node2", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}}},
		[]*model.Pod{api, pod("web", "node2", "10.0.2.2"), pod("db", "node2", "10.0.2.9")}, []*model.Policy{p})
	return compile.Input{Snapshot: s, Node: "node1",
		Endpoints: map[model.EndpointID]compile.Endpoint{"api-eth0": {Pod: api.PodID, IPs: api.IPs}}}
}
