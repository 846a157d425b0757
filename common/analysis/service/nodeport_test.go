// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/model"
)

// A node port leads to the Service on the addresses of nodes only. With externalTrafficPolicy Local, clients outside the
// cluster reach the pods of the node, and all others every pod.
func TestNodePort(t *testing.T) {
	addr := netip.MustParseAddr
	pod := func(name, node, ip string) *model.Pod {
		return &model.Pod{PodID: model.PodID{Namespace: "shop", Name: name}, Node: node, IPs: []netip.Addr{addr(ip)}}
	}
	s := model.MakeSnapshot(nil, []*model.Node{{Name: "n1", Addresses: []netip.Addr{addr("172.30.0.11")}}, {Name: "n2", Addresses: []netip.Addr{addr("172.30.0.12")}}},
		[]*model.Pod{pod("a", "n1", "10.0.1.2"), pod("b", "n2", "10.0.2.2")}, nil)
	port := model.ServicePort{Protocol: model.TCP, Port: 80, Target: 8080, Node: 30080}
	front := &model.Service{Namespace: "shop", Name: "front", Selects: true, Pods: model.MakeSelector(), Ports: []model.ServicePort{port}}
	all := service.New(s, []*model.Service{front}, nil)
	for _, c := range []struct {
		to       string
		protocol model.Protocol
		port     uint16
		leads    bool
	}{
		{"172.30.0.11", model.TCP, 30080, true},
		{"172.30.0.12", model.TCP, 30080, true},
		{"172.30.0.11", model.UDP, 30080, false},
		{"172.30.0.11", model.TCP, 80, false},
		{"172.30.0.11", model.ICMP, 0, false},
		{"10.0.1.2", model.TCP, 30080, false},
		{"192.0.2.1", model.TCP, 30080, false},
	} {
		if to, at := all.AtNode(addr(c.to), c.protocol, c.port); (to == front) != c.leads || to != nil && at != port {
			t.Errorf("%s %s %d: %v %v", c.to, c.protocol, c.port, to, at)
		}
	}
	backends, err := all.Backends(front, port)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		local        bool
		node, client string
		want         string
	}{
		{false, "172.30.0.11", "192.0.2.1", "[shop/a shop/b]"},
		{true, "172.30.0.11", "192.0.2.1", "[shop/a]"},
		{true, "172.30.0.12", "192.0.2.1", "[shop/b]"},
		{true, "172.30.0.11", "10.0.2.2", "[shop/a shop/b]"},
		{true, "172.30.0.11", "172.30.0.12", "[shop/a shop/b]"},
	} {
		front.KeepsClients = c.local
		var names []string
		for _, b := range all.ByNode(front, addr(c.node), addr(c.client), backends) {
			names = append(names, b.Name)
		}
		if got := fmt.Sprint(names); got != c.want {
			t.Errorf("local %v, %s by %s: %s, want %s", c.local, c.client, c.node, got, c.want)
		}
	}
}
