// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"fmt"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/model"
)

// Pod api accepts TCP 80 from pod web. Web tries port 22.
func ExampleFlow() {
	f := model.Flow{Src: netip.MustParseAddr("10.0.2.2"), Dst: netip.MustParseAddr("10.0.1.2"), Protocol: model.TCP, Port: 22}
	x := explain.Flow(webToAPI(), f, nil, nil)
	fmt.Println(x.From, "->", x.To, x.Verdict)
	for _, side := range x.Sides {
		fmt.Println(side.Direction, "of", side.Pod+":", side.Decision.Text)
		for _, c := range side.Changes {
			fmt.Println(" ", c.Then.Verdict, c.What)
		}
	}
	// Output:
	// shop/web (10.0.2.2) -> shop/api (10.0.1.2) deny
	// egress of shop/web: no policy isolates the pod for egress
	// ingress of shop/api: isolated for ingress by NetworkPolicy shop/web-to-api, no rule accepts
	//   allow if its ports matched: TCP 22 is not TCP 80
	//   allow without this policy, which isolates the pod
}

// webToAPI is a cluster of two nodes: pod api accepts TCP 80 from pod web.
func webToAPI() *model.Snapshot {
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
	return model.MakeSnapshot([]*model.Namespace{model.NewNamespace("shop", nil)},
		[]*model.Node{{Name: "node1"}, {Name: "node2"}},
		[]*model.Pod{pod("api", "node1", "10.0.1.2"), pod("web", "node2", "10.0.2.2")}, []*model.Policy{p})
}
