// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"fmt"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/model"
)

// A State of the compiler can implement Node: it only has to be stored.
type tables struct{ *model.State }

func (n *tables) Apply(s *model.State) error { n.State = s; return nil }
func (n *tables) Close() error               { return nil }

func (n *tables) Decide(id model.EndpointID, d model.Direction, remote netip.Addr, p model.Protocol, port uint16) (model.Verdict, error) {
	return n.State.Policy.Decide(id, d, remote, p, port).Verdict, nil
}

// Three engines decide one flow of a cluster: the reference evaluator, the tables, and the
// tables again as one Node for each node.
func Example() {
	cluster := engine.Compile(webToAPI(), nil)
	engines := []engine.Engine{&engine.Evaluate{}, &engine.Tables{},
		&engine.PerNode{Title: "nodes", Open: func() (engine.Node, error) { return &tables{}, nil }}}
	for _, e := range engines {
		if err := e.Load(cluster); err != nil {
			fmt.Println(err)
		}
		for _, port := range []uint16{80, 22} {
			f := model.Flow{Src: netip.MustParseAddr("10.0.2.2"), Dst: netip.MustParseAddr("10.0.1.2"), Protocol: model.TCP, Port: port}
			verdict, err := cluster.Decide(e, f)
			fmt.Println(e.Name(), port, verdict, err)
		}
	}
	// Output:
	// evaluate 80 allow <nil>
	// evaluate 22 deny <nil>
	// tables 80 allow <nil>
	// tables 22 deny <nil>
	// nodes 80 allow <nil>
	// nodes 22 deny <nil>
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
