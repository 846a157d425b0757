// SPDX-License-Identifier: Apache-2.0

package reach_test

import (
	"fmt"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
)

// The ports that each pod may reach under a policy that isolates pod api and accepts TCP 80
// from pod web.
func ExamplePartition_Reach() {
	p := reach.New(shop(webToAPI()))
	pods := p.Groups(false)[:3] // groups of pods come first
	err := p.Reach(pods, pods, func(i int, allowed []reach.PortsID) error {
		for j, ports := range allowed {
			if i == j && pods[i].Single() {
				continue // no policy decides flows of a pod to itself
			}
			fmt.Printf("%s -> %s: %d of %d port cells\n", name(pods[i]), name(pods[j]), len(p.Members(ports)), len(p.Cells()))
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// api -> db: 6 of 6 port cells
	// api -> web: 6 of 6 port cells
	// db -> api: 0 of 6 port cells
	// db -> web: 6 of 6 port cells
	// web -> api: 1 of 6 port cells
	// web -> db: 6 of 6 port cells
}

// The changes by a policy in a cluster that had none.
func ExamplePartition_Changes() {
	p := reach.New(shop(), shop(webToAPI()))
	for _, c := range p.Changes() {
		fmt.Printf("%d groups -> %s at %d of %d port cells: was %s, is %s\n", len(c.From), name(c.To[0]), len(p.Members(c.Ports)), len(p.Cells()), c.Was, c.Is)
	}
	// Output:
	// 2 groups -> api at 6 of 6 port cells: was allow, is deny
	// 1 groups -> api at 5 of 6 port cells: was allow, is deny
}

func name(g *reach.Group) string { return g.Pods[0].ID.Name }

func shop(policies ...*model.Policy) *model.Snapshot {
	pod := func(name, ip string) *model.Pod {
		return &model.Pod{PodID: model.PodID{Namespace: "shop", Name: name}, Node: "node1", IPs: []netip.Addr{netip.MustParseAddr(ip)},
			Labels: model.MakeLabels(map[string]string{"app": name})}
	}
	return model.MakeSnapshot([]*model.Namespace{model.NewNamespace("shop", nil)}, []*model.Node{{Name: "node1"}},
		[]*model.Pod{pod("api", "10.0.1.2"), pod("web", "10.0.1.3"), pod("db", "10.0.1.4")}, policies)
}

func webToAPI() *model.Policy {
	app := func(name string) model.PodSelector {
		return model.PodSelector{Namespace: "shop", Pods: model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{name}})}
	}
	p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "web-to-api"},
		Tier: model.TierNetworkPolicy, Subject: app("api")}
	p.Isolates[model.Ingress] = true
	p.Rules[model.Ingress] = []model.Rule{{Action: model.ActionAccept,
		Peers: []model.Peer{{Kind: model.PeerPods, Pods: app("web")}}, Ports: []model.PortMatch{{Protocol: model.TCP, First: 80, Last: 80}}}}
	return p
}
