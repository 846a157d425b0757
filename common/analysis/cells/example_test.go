// SPDX-License-Identifier: Apache-2.0

package cells_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/analysis/cells"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux/policymap/mapsim"
	"github.com/isthmus-net/isthmus/windows/acl/aclsim"
)

// All sides decide every cell of node1. Then one entry of the maps is changed.
func ExampleCompare() {
	web := &model.Pod{PodID: model.PodID{Namespace: "shop", Name: "web"}, Node: "node1", IPs: []netip.Addr{netip.MustParseAddr("10.0.1.2")}}
	isolated := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "isolated"},
		Tier: model.TierNetworkPolicy, Subject: model.PodSelector{Namespace: "shop"}, Isolates: [2]bool{model.Ingress: true}}
	isolated.Rules[model.Ingress] = []model.Rule{{Action: model.ActionAccept, AnyPort: true, Peers: []model.Peer{
		{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: netip.MustParsePrefix("192.0.2.0/24")}}}}}
	s := model.MakeSnapshot(nil, nil, []*model.Pod{web}, []*model.Policy{isolated})
	state, unsupported := compile.Once(compile.Input{Snapshot: s, Node: "node1",
		Endpoints: map[model.EndpointID]compile.Endpoint{"web-eth0": {Pod: web.PodID, IPs: web.IPs}}})

	maps, err := mapsim.Encode(state)
	if err != nil {
		fmt.Println(err)
	}
	node := &cells.Node{Snapshot: s, State: state, Maps: maps, Reported: unsupported}
	for _, l := range aclsim.Encode(state) {
		node.Lists = append(node.Lists, l)
	}
	r, err := cells.Compare(context.Background(), node)
	fmt.Println("cells:", r.Cells, "differ:", r.Differ, err)

	maps.Prefixes[netip.MustParsePrefix("192.0.2.0/24")] = uint32(model.World)
	r, err = cells.Compare(context.Background(), node)
	fmt.Println("cells:", r.Cells, "differ:", r.Differ, err)
	first := r.Differences[0]
	fmt.Println(first.Pod, first.Direction, "from", first.Remote)
	for _, said := range first.Says {
		fmt.Println(" ", said.By, "says", said.Verdict)
	}
	// Output:
	// cells: 36 differ: 0 <nil>
	// cells: 36 differ: 6 <nil>
	// shop/web ingress from 192.0.2.0
	//   evaluate says allow
	//   tables says allow
	//   maps says deny
	//   HNS 9.5 says allow
	//   HNS 13.3, 15.5 says allow
}
