// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/model"
)

// called is a cluster of two nodes. Pods with the label client are no backends. shop/front has backends on both nodes, one of
// them on the host network, and every kind of address; shop/other shares one of them.
func called() (all *service.Services, front *model.Service) {
	s, list := calledObjects()
	return service.New(s, list, nil), list[0]
}

func calledObjects() (*model.Snapshot, []*model.Service) {
	addr := netip.MustParseAddr
	pod := func(name, node string, client bool, ips ...string) *model.Pod {
		p := &model.Pod{PodID: model.PodID{Namespace: "shop", Name: name}, Node: node, HostNetwork: len(ips) == 0}
		if client {
			p.Labels = model.MakeLabels(map[string]string{"client": "yes"})
		}
		for _, ip := range ips {
			p.IPs = append(p.IPs, addr(ip))
		}
		return p
	}
	s := model.MakeSnapshot(nil, []*model.Node{
		{Name: "n1", Addresses: []netip.Addr{addr("172.30.0.11"), addr("fd00:30::11")}}, {Name: "n2", Addresses: []netip.Addr{addr("172.30.0.12")}}},
		[]*model.Pod{pod("c1", "n1", true, "fd00:1::2", "10.0.1.2"), pod("c2", "n2", true, "10.0.2.2"), pod("a", "n1", false, "10.0.1.3", "fd00:1::3"),
			pod("b", "n2", false, "fd00:2::3", "10.0.2.3"), pod("h", "n2", false)}, nil)
	backends := model.MakeSelector(model.Requirement{Key: "client", Operator: model.DoesNotExist})
	front := &model.Service{Namespace: "shop", Name: "front", Selects: true, Pods: backends, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80, Target: 8080, Node: 30080}},
		Addresses: []netip.Addr{addr("10.96.0.1"), addr("198.51.100.1"), addr("172.30.0.12")}, ClusterIPs: 1}
	other := &model.Service{Namespace: "shop", Name: "other", Selects: true, Pods: backends, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 443, Target: 8443}},
		Addresses: []netip.Addr{addr("10.96.0.2"), addr("198.51.100.1")}, ClusterIPs: 1}
	return s, []*model.Service{front, other}
}

// A port of a node leads to the Service with that node port, or to one whose load balancer has the address of the node.
func TestAtNode(t *testing.T) {
	all, front := called()
	for _, c := range []struct {
		to       string
		protocol model.Protocol
		port     uint16
		nodePort uint16
		leads    bool
	}{
		{"172.30.0.11", model.TCP, 30080, 30080, true},
		{"172.30.0.12", model.TCP, 30080, 30080, true},
		{"172.30.0.12", model.TCP, 80, 0, true},
		{"172.30.0.11", model.TCP, 80, 0, false},
		{"172.30.0.11", model.UDP, 30080, 0, false},
		{"172.30.0.11", model.ICMP, 0, 0, false},
		{"10.0.1.2", model.TCP, 30080, 0, false},
		{"192.0.2.1", model.TCP, 30080, 0, false},
	} {
		to, at := all.AtNode(netip.MustParseAddr(c.to), c.protocol, c.port)
		if (to.Service == front) != c.leads || to.NodePort != c.nodePort || to.Service != nil && at != front.Ports[0] {
			t.Errorf("%s %s %d: %v %v", c.to, c.protocol, c.port, to, at)
		}
	}
}

// Services that share an address differ by their ports.
func TestSharedAddress(t *testing.T) {
	all, _ := called()
	tcp, udp := model.TCP, model.UDP
	for _, c := range []struct {
		to, port string
		protocol *model.Protocol
		want     string
	}{
		{"198.51.100.1", "80", nil, "front"},
		{"198.51.100.1", "443", &tcp, "other"},
		{"198.51.100.1", "443", &udp, "no Service with the address 198.51.100.1 has this port: it belongs to shop/front, shop/other"},
		{"198.51.100.1", "", nil, "198.51.100.1 is an address of several Services, shop/front, shop/other: give the port and its protocol"},
		{"10.96.0.1", "99", nil, "front"},
		{"172.30.0.12", "80", nil, "none"},
	} {
		s, err := all.Called(netip.MustParseAddr(c.to), c.port, c.protocol)
		got := "none"
		if s != nil {
			got = s.Name
		}
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s %s: %s, want %s", c.to, c.port, got, c.want)
		}
	}
}

// text lists connections: the backend, what the client's policy decides about if that is another address, and the client that
// the backend sees if that is another one.
func text(list []service.Connection, err error) string {
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, c := range list {
		one := strings.TrimPrefix(c.Backend.Name, "shop/")
		if c.Egress.Dst != c.Ingress.Dst || c.Egress.Port != c.Ingress.Port {
			one += fmt.Sprintf(">%s:%d", c.Egress.Dst, c.Egress.Port)
		}
		if c.Egress.Src != c.Ingress.Src {
			one += fmt.Sprintf("<%s(%s)", c.Ingress.Src, c.Hidden)
		}
		all = append(all, one)
	}
	return strings.Join(all, " ")
}

// Connections follow the traffic policies of the Service, and what the policies of both ends see depends on the node that
// forwards.
func TestConnections(t *testing.T) {
	all, front := called()
	for _, c := range []struct {
		local, own bool
		to         string
		nodePort   uint16
		client     string
		want       string
	}{
		// By a cluster IP, or by name.
		{false, false, "", 0, "10.0.1.2", "a b h"},
		{false, true, "", 0, "10.0.1.2", "a"},
		{false, true, "10.96.0.1", 0, "10.0.2.2", "b h"},
		{false, true, "10.96.0.1", 0, "172.30.0.12", "b h"},
		{false, true, "10.96.0.1", 0, "192.0.2.1", "a b h"},
		{true, false, "10.96.0.1", 0, "10.0.1.2", "a b h"},
		// By an address outside, the node of the client forwards.
		{false, true, "198.51.100.1", 0, "10.0.1.2", "a b<172.30.0.11(n1) h<172.30.0.11(n1)"},
		{true, true, "198.51.100.1", 0, "10.0.1.2", "a b h"},
		{false, false, "198.51.100.1", 0, "172.30.0.11", "a b h"},
		{true, false, "198.51.100.1", 0, "192.0.2.1", "a b h"},
		{false, false, "198.51.100.1", 0, "192.0.2.1", "a b h"},
		// A load balancer with the address of a node.
		{false, false, "172.30.0.12", 0, "192.0.2.1", "a<172.30.0.12(n2) b h"},
		{true, false, "172.30.0.12", 0, "192.0.2.1", "b h"},
		{true, false, "172.30.0.12", 0, "172.30.0.11", "a b h"},
		{false, false, "172.30.0.12", 0, "10.0.1.2", "a b<172.30.0.11(n1) h<172.30.0.11(n1)"},
		// By a node port, the node that is called forwards.
		{false, false, "172.30.0.12", 30080, "192.0.2.1", "a>172.30.0.12:30080<172.30.0.12(n2) b>172.30.0.12:30080 h>172.30.0.12:30080"},
		{true, false, "172.30.0.12", 30080, "172.30.0.11", "b>172.30.0.12:30080 h>172.30.0.12:30080"},
		{true, false, "172.30.0.12", 30080, "172.30.0.12", "a b h"},
		{false, false, "172.30.0.12", 30080, "10.0.2.2", "a<172.30.0.12(n2) b h"},
		{true, false, "172.30.0.12", 30080, "10.0.1.2", "a>172.30.0.12:30080 b>172.30.0.12:30080 h>172.30.0.12:30080"},
	} {
		front.KeepsClients, front.OwnNode = c.local, c.own
		call := service.Call{Service: front, NodePort: c.nodePort}
		if c.to != "" {
			call.To = netip.MustParseAddr(c.to)
		}
		if got := text(all.Connections(call, front.Ports[0], []netip.Addr{netip.MustParseAddr(c.client)})); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// A call stays in the family of the address: that of a Service by its name is the one of its cluster IP.
func TestConnectionsOfOneFamily(t *testing.T) {
	all, front := called()
	addr := netip.MustParseAddr
	both := []netip.Addr{addr("fd00:1::2"), addr("10.0.1.2")}
	for _, c := range []struct {
		cluster []string
		from    []netip.Addr
		want    string
	}{
		{[]string{"10.96.0.1"}, both, "10.0.1.3 10.0.2.3 172.30.0.12"},
		{[]string{"fd00:96::1"}, both, "fd00:1::3 fd00:2::3"},
		{[]string{"10.96.0.1", "fd00:96::1"}, both[:1], "fd00:1::3 fd00:2::3"},
		{[]string{"10.96.0.1"}, both[:1], "no backend of Service shop/front: the client or every backend has no IPv4 address"},
		{nil, both[:1], "fd00:1::3 fd00:2::3"},
		{nil, []netip.Addr{addr("192.0.2.1")}, "10.0.1.3 10.0.2.3 172.30.0.12"},
		{nil, both, "fd00:1::3 fd00:2::3 172.30.0.12"},
	} {
		front.Addresses, front.ClusterIPs = nil, len(c.cluster)
		for _, a := range c.cluster {
			front.Addresses = append(front.Addresses, addr(a))
		}
		var got []string
		list, err := all.Connections(service.Call{Service: front}, front.Ports[0], c.from)
		for _, one := range list {
			got = append(got, one.Ingress.Dst.String())
		}
		if err != nil {
			got = []string{err.Error()}
		}
		if front.NoIPv6 = true; len(c.cluster) == 0 && len(c.from) == 2 { // only the IP families differ
			if four := text(all.Connections(service.Call{Service: front}, front.Ports[0], c.from)); four != "a b h" {
				t.Errorf("IPv4 from %v: %s", c.from, four)
			}
			if _, err := all.Connections(service.Call{Service: front}, front.Ports[0], c.from[:1]); err == nil {
				t.Error("a client reaches a Service of the other family")
			}
		}
		front.NoIPv6 = false
		if strings.Join(got, " ") != c.want {
			t.Errorf("%v from %v: %s, want %s", c.cluster, c.from, got, c.want)
		}
	}
}

// With a traffic policy Local, a node without a backend forwards nothing.
func TestNoBackendOnTheNode(t *testing.T) {
	all, front := called()
	front.Pods = model.MakeSelector(model.Requirement{Key: "client", Operator: model.Exists})
	front.KeepsClients, front.OwnNode = true, true
	port := front.Ports[0]
	local := service.New(model.MakeSnapshot(nil, []*model.Node{{Name: "n1", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.11")}}},
		[]*model.Pod{pod("x", "10.0.0.9", "x")}, nil), []*model.Service{front}, []*model.EndpointSlice{{Namespace: "shop", Service: "front",
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7")}, Ports: []model.NamedPort{{Protocol: model.TCP, Port: 8080}}}})
	from := []netip.Addr{netip.MustParseAddr("10.0.0.9")}
	if got, want := text(local.Connections(service.Call{Service: front}, port, from)), "no backend of Service shop/front: internalTrafficPolicy is Local, and none is on the node of the client"; got != want {
		t.Errorf("by name: %s", got)
	}
	at := service.Call{Service: front, To: netip.MustParseAddr("172.30.0.11"), NodePort: 30080}
	from = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	if got, want := text(local.Connections(at, port, from)), "no backend of Service shop/front: externalTrafficPolicy is Local, and none is on this node"; got != want {
		t.Errorf("by the node: %s", got)
	}
	if got, want := text(all.Connections(service.Call{Service: front}, port, []netip.Addr{netip.MustParseAddr("172.30.0.12")})), "c2"; got != want {
		t.Errorf("on a node with one: %s", got)
	}
}

// The source ranges of a load balancer hold for its addresses, and for families that they have.
func TestSourceRanges(t *testing.T) {
	all, front := called()
	addr := netip.MustParseAddr
	front.ExternalIPs = 1 // 198.51.100.1, and 172.30.0.12 is that of the load balancer
	front.Addresses = append(front.Addresses, addr("2001:db8::12"))
	front.Sources = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("10.0.2.0/24")}
	refused := func(client string) string {
		return "no backend of Service shop/front for " + client + ": loadBalancerSourceRanges does not have this client"
	}
	for _, c := range []struct {
		to       string
		nodePort uint16
		client   string
		want     string
	}{
		{"172.30.0.12", 0, "203.0.113.9", "a<172.30.0.12(n2) b h"},
		{"172.30.0.12", 0, "192.0.2.1", refused("192.0.2.1")},
		{"172.30.0.12", 0, "10.0.1.2", refused("10.0.1.2")},
		{"172.30.0.12", 0, "10.0.2.2", "a<172.30.0.12(n2) b h"},
		{"172.30.0.12", 30080, "192.0.2.1", "a>172.30.0.12:30080<172.30.0.12(n2) b>172.30.0.12:30080 h>172.30.0.12:30080"},
		{"198.51.100.1", 0, "192.0.2.1", "a b h"},
		{"10.96.0.1", 0, "192.0.2.1", "a b h"},
		{"", 0, "192.0.2.1", "a b h"},
		{"2001:db8::12", 0, "2001:db8::1", "a b"},
	} {
		to, _ := netip.ParseAddr(c.to)
		if got := text(all.Connections(service.Call{Service: front, To: to, NodePort: c.nodePort}, front.Ports[0], []netip.Addr{addr(c.client)})); got != c.want {
			t.Errorf("%s:%d from %s: %s, want %s", c.to, c.nodePort, c.client, got, c.want)
		}
	}
}

// Linux nodes cannot look up translated SCTP: they drop requests of clients that they masquerade, and answers to clients on the node of
// the backend, or that call a port of their node. test/apiserver sends these packets.
func TestTranslatedSCTP(t *testing.T) {
	all, front := called()
	for _, c := range []struct {
		protocol model.Protocol
		local    bool
		to       string
		nodePort uint16
		client   string
		want     string
	}{
		{model.SCTP, false, "10.96.0.1", 0, "10.0.1.2", "a:answers b: h:"},
		{model.TCP, false, "10.96.0.1", 0, "10.0.1.2", "a: b: h:"},
		{model.SCTP, false, "10.96.0.1", 0, "172.30.0.11", "a: b: h:"},
		{model.SCTP, false, "172.30.0.11", 30080, "10.0.1.2", "a:requests,answers b:answers h:answers"},
		{model.SCTP, true, "172.30.0.11", 30080, "10.0.1.2", "a:answers b:answers h:answers"},
		{model.SCTP, false, "172.30.0.12", 30080, "10.0.1.2", "a: b:requests h:"},
		{model.SCTP, false, "172.30.0.12", 30080, "10.0.2.2", "a:answers b:requests,answers h:"},
		{model.SCTP, false, "172.30.0.11", 30080, "192.0.2.1", "a:requests b: h:"},
		{model.SCTP, true, "172.30.0.11", 30080, "192.0.2.1", "a:"},
		{model.SCTP, false, "172.30.0.11", 30080, "172.30.0.11", "a: b: h:"},
		{model.SCTP, false, "172.30.0.11", 30080, "172.30.0.12", "a:requests b: h:"},
		{model.SCTP, false, "198.51.100.1", 0, "192.0.2.1", "a: b: h:"},
	} {
		front.Ports[0].Protocol, front.KeepsClients = c.protocol, c.local
		found, err := all.Connections(service.Call{Service: front, To: netip.MustParseAddr(c.to), NodePort: c.nodePort}, front.Ports[0], []netip.Addr{netip.MustParseAddr(c.client)})
		var got []string
		for _, one := range found {
			dropped := map[[2]bool]string{{true, false}: "requests", {false, true}: "answers", {true, true}: "requests,answers"}[[2]bool{one.DropsRequests, one.DropsAnswers}]
			got = append(got, strings.TrimPrefix(one.Backend.Name, "shop/")+":"+dropped)
		}
		if text := strings.Join(got, " "); err != nil || text != c.want {
			t.Errorf("%s to %s:%d, local %t, from %s: %s, %v, want %s", c.protocol, c.to, c.nodePort, c.local, c.client, text, err, c.want)
		}
	}
}

// Endpoints that drain get connections while none is ready, with a traffic policy Local while none on the node is.
func TestDraining(t *testing.T) {
	s, list := calledObjects()
	front, addr := list[0], netip.MustParseAddr
	slice := &model.EndpointSlice{Namespace: "shop", Service: "front", Ports: []model.NamedPort{{Protocol: model.TCP, Port: 8080}},
		Draining: []netip.Addr{addr("10.0.2.3"), addr("10.0.1.3")}}
	for _, c := range []struct {
		ready []netip.Addr
		own   bool
		want  string
	}{
		{nil, false, "a b"},
		{[]netip.Addr{addr("10.0.1.3")}, false, "a"},
		{[]netip.Addr{addr("10.0.2.3")}, true, "a"},
		{[]netip.Addr{addr("10.0.1.3")}, true, "a"},
	} {
		slice.Addresses, front.OwnNode = c.ready, c.own
		one := service.New(s, list, []*model.EndpointSlice{slice})
		if got := text(one.Connections(service.Call{Service: front}, front.Ports[0], []netip.Addr{addr("10.0.1.2")})); got != c.want {
			t.Errorf("ready %v, own node %t: %s, want %s", c.ready, c.own, got, c.want)
		}
	}
}
