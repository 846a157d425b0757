// SPDX-License-Identifier: Apache-2.0

package ends_test

import (
	"fmt"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/analysis/ends"
	"github.com/isthmus-net/isthmus/common/model"
)

// The ends of a flow as a user names them: a pod and a node, and a port by its name on the destination pod.
func Example() {
	api := &model.Pod{PodID: model.PodID{Namespace: "shop", Name: "api"}, Node: "node1", IPs: []netip.Addr{netip.MustParseAddr("10.0.1.2")},
		Ports: []model.NamedPort{{Name: "http", Protocol: model.TCP, Port: 8080}}}
	s := model.MakeSnapshot(nil, []*model.Node{{Name: "node1", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.11")}}},
		[]*model.Pod{api, {PodID: model.PodID{Namespace: "shop", Name: "new"}}}, nil)
	for _, text := range []string{"shop/api", "node:node1", "192.0.2.7", "shop/ap", "shop/api@10.0.1.3", "shop/new"} {
		fmt.Println(ends.Addresses(s, text))
	}
	fmt.Println(ends.Port("http", model.TCP, api))
	fmt.Println(ends.Port("dns", model.UDP, api))
	// Output:
	// [10.0.1.2] <nil>
	// [172.30.0.11] <nil>
	// [192.0.2.7] <nil>
	// [] no pod shop/ap: namespace shop has api
	// [] pod shop/api does not have the address "10.0.1.3", it has [10.0.1.2]
	// [] pod shop/new has no address yet: its status.podIP is not set
	// 8080 <nil>
	// 0 "dns": pod shop/api has no UDP port of that name: give a number from 1 to 65535
}
