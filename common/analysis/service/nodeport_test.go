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

// With internalTrafficPolicy Local, a client in the cluster reaches by a cluster IP the backends on its own node, also those
// on the host network; by other addresses, and from elsewhere, all. Of a node port, too, such a backend is on its node.
func TestOwnNode(t *testing.T) {
	addr := netip.MustParseAddr
	host := func(name, node string) *model.Pod {
		return &model.Pod{PodID: model.PodID{Namespace: "shop", Name: name}, Node: node, HostNetwork: true}
	}
	client := &model.Pod{PodID: model.PodID{Namespace: "shop", Name: "client"}, Node: "n1", IPs: []netip.Addr{addr("10.0.1.2")}, Labels: model.MakeLabels(map[string]string{"client": "yes"})}
	back := &model.Pod{PodID: model.PodID{Namespace: "shop", Name: "b"}, Node: "n2", IPs: []netip.Addr{addr("10.0.2.2")}}
	s := model.MakeSnapshot(nil, []*model.Node{{Name: "n1", Addresses: []netip.Addr{addr("172.30.0.11")}}, {Name: "n2", Addresses: []netip.Addr{addr("172.30.0.12")}}},
		[]*model.Pod{client, back, host("h1", "n1"), host("h2", "n2")}, nil)
	port := model.ServicePort{Protocol: model.TCP, Port: 80, Target: 8080}
	front := &model.Service{Namespace: "shop", Name: "front", Selects: true, Pods: model.MakeSelector(model.Requirement{Key: "client", Operator: model.DoesNotExist}), Ports: []model.ServicePort{port},
		OwnNode: true, KeepsClients: true, Addresses: []netip.Addr{addr("10.96.0.1"), addr("198.51.100.1")}, ClusterIPs: 1}
	all := service.New(s, []*model.Service{front}, nil)
	backends, err := all.Backends(front, port)
	if err != nil {
		t.Fatal(err)
	}
	names := func(list []service.Backend) string {
		var names []string
		for _, b := range list {
			names = append(names, b.Name)
		}
		return fmt.Sprint(names)
	}
	for _, c := range []struct {
		to     netip.Addr
		client string
		want   string
	}{
		{netip.Addr{}, "10.0.1.2", "[shop/h1]"},
		{addr("10.96.0.1"), "10.0.1.2", "[shop/h1]"},
		{addr("10.96.0.1"), "172.30.0.12", "[shop/b shop/h2]"},
		{addr("198.51.100.1"), "10.0.1.2", "[shop/b shop/h1 shop/h2]"},
		{addr("10.96.0.1"), "192.0.2.1", "[shop/b shop/h1 shop/h2]"},
	} {
		if got := names(all.ByClient(front, c.to, addr(c.client), backends)); got != c.want {
			t.Errorf("%s to %s: %s, want %s", c.client, c.to, got, c.want)
		}
	}
	if got := names(all.ByNode(front, addr("172.30.0.12"), addr("192.0.2.1"), backends)); got != "[shop/b shop/h2]" {
		t.Errorf("by a node port of n2: %s", got)
	}
}
