// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// mappings lists the port mappings of all endpoints.
func (n *node) mappings() []hns.PortMapping {
	n.t.Helper()
	list, err := n.fake.AllEndpoints(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	var all []hns.PortMapping
	for _, e := range list {
		for _, p := range e.Policies {
			var m hns.PortMapping
			if !p.Is(hns.TypePortMapping) {
				continue
			}
			if err := p.Decode(&m); err != nil {
				n.t.Fatal(err)
			}
			all = append(all, m)
		}
	}
	return all
}

func TestHostPorts(t *testing.T) {
	dual := bridgeConfig()
	dual.PodCIDRs = append(slices.Clone(dual.PodCIDRs), netip.MustParsePrefix("fd00:1::/64"))
	n := newNode(t, hns.Server2022, dual)
	if !n.backend.Features().HostPorts {
		t.Error("the node does not say that it has host ports")
	}
	spec := n.spec("c1", "10.0.1.7")
	spec.IPs = append(spec.IPs, netip.MustParseAddr("fd00:1::7"))
	spec.HostPorts = []model.HostPort{
		{Number: 8080, Protocol: model.TCP, Port: 80},
		{Number: 5353, Protocol: model.UDP, Port: 53, Address: netip.MustParseAddr("192.168.0.1")},
	}
	want := []hns.PortMapping{
		{Protocol: 6, InternalPort: 80, ExternalPort: 8080},
		{Protocol: 6, InternalPort: 80, ExternalPort: 8080, Flags: hns.PortMappingIPv6},
		{Protocol: 17, InternalPort: 53, ExternalPort: 5353, VIP: "192.168.0.1"},
	}
	for range 2 { // ADD may be repeated
		n.add(spec)
		if got := n.mappings(); !slices.Equal(got, want) {
			t.Errorf("got %+v\nwant %+v", got, want)
		}
	}
	taken := n.spec("c2", "10.0.1.8")
	taken.HostPorts = spec.HostPorts[:1]
	if _, err := n.backend.AddEndpoint(ctx, taken); err == nil || !strings.Contains(err.Error(), "host port") || !strings.Contains(err.Error(), "0x803b0013") {
		t.Errorf("a host port that another pod has: %v", err)
	}
	sctp := n.spec("c3", "10.0.1.9")
	sctp.HostPorts = []model.HostPort{{Number: 9, Protocol: model.SCTP, Port: 9}}
	if _, err := n.backend.AddEndpoint(ctx, sctp); err == nil || !strings.Contains(err.Error(), "NodePort") {
		t.Errorf("SCTP: %v", err)
	}
	if err := n.backend.DeleteEndpoint(ctx, spec.ID); err != nil {
		t.Fatal(err)
	}
	if got := n.mappings(); len(got) != 0 {
		t.Errorf("left behind: %+v", got)
	}
}

// TestHostPortElsewhere checks that a pod gets no port of an address that is not one of the node. HNS would take connections of the
// node and its pods to it: to a Service such as the API server or DNS, to another pod, or to a host.
func TestHostPortElsewhere(t *testing.T) {
	c := dualConfig()
	c.HostAddresses.Read = func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("203.0.113.7")}, nil }
	n := newNode(t, hns.Server2022, c)
	spec := n.spec("c1", "10.0.1.7")
	spec.IPs = append(spec.IPs, netip.MustParseAddr("fd00:1::7"))
	for address, own := range map[string]bool{"10.96.0.10": false, "10.0.1.8": false, "10.0.1.7": false, "192.168.0.2": false, "198.51.100.1": false, "127.0.0.1": false,
		"fd00:ffff::2": false, "::1": false, "192.168.0.1": true, "203.0.113.7": true, "fd00:ffff::1": true, "0.0.0.0": true, "::": true} {
		h := model.HostPort{Number: 53, Protocol: model.UDP, Port: 53, Address: netip.MustParseAddr(address)}
		spec.HostPorts = []model.HostPort{h}
		want := fmt.Sprintf("host port %s: it is not an address of the node", h)
		_, err := n.backend.AddEndpoint(ctx, spec)
		if own != (err == nil) || !own && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
		if got := n.mappings(); own != (len(got) == 1) {
			t.Errorf("%s: mappings %+v", address, got)
		}
		if err := n.backend.DeleteEndpoint(ctx, spec.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHostPortOfAService checks which ports of load balancers a host port could take connections of: those of NodePorts, and those at
// addresses of the node. One that comes later is reported.
func TestHostPortOfAService(t *testing.T) {
	n := newNode(t, hns.Server2022, dualConfig())
	port := func(number uint16) []hns.BalancerPort { return []hns.BalancerPort{{Protocol: 6, External: number}} }
	n.fake.Balancers = []hns.LoadBalancer{
		{FrontendVIPs: []string{"10.96.0.1"}, Flags: hns.DSRFlag, Ports: port(443)},
		{Ports: port(30080)}, {Flags: hns.BalancerIPv6, Ports: []hns.BalancerPort{{Protocol: 17, External: 30081}}},
		{FrontendVIPs: []string{"203.0.113.5", "192.168.0.1"}, Ports: port(80)}, {FrontendVIPs: []string{""}, Ports: port(30082)},
		{FrontendVIPs: []string{"fd00:ffff::1", "x"}, Flags: hns.BalancerIPv6, Ports: port(81)},
	}
	got, err := n.backend.ServicePorts(ctx)
	want := "[TCP 0.0.0.0:30080 UDP [::]:30081 TCP 192.168.0.1:80 TCP 0.0.0.0:30082 TCP [fd00:ffff::1]:81]"
	if err != nil || fmt.Sprint(got) != want {
		t.Errorf("got %v, %v\nwant %s", got, err, want)
	}
	spec := n.spec("c1", "10.0.1.7")
	spec.HostPorts = []model.HostPort{{Number: 30080, Protocol: model.TCP, Port: 80}, {Number: 443, Protocol: model.TCP, Port: 443}}
	n.add(spec)
	balanced := func() (found []string) {
		for _, f := range n.backend.Faults() {
			if strings.Contains(f, "host port") {
				found = append(found, f)
			}
		}
		return found
	}
	if _, err := n.backend.Idle(ctx); err != nil {
		t.Fatal(err)
	}
	text := "host port TCP 30080 of pod x/c1 is also TCP 0.0.0.0:30080 of a Service, and which of them gets connections is up to HNS: give the pod another hostPort"
	if found := balanced(); len(found) != 1 || found[0] != text {
		t.Errorf("faults %q, want %q", found, text)
	}
	if err := n.backend.DeleteEndpoint(ctx, spec.ID); err != nil {
		t.Fatal(err)
	}
	if found := balanced(); len(found) > 0 {
		t.Errorf("without the pod: %q", found)
	}
	n.failing(func(op, _ string) bool { return op == "LoadBalancers" }, hns.CodeAccessDenied)
	if _, err := n.backend.ServicePorts(ctx); err == nil {
		t.Error("unknown ports count as none")
	}
}

// TestHostPortsAreRepaired removes a mapping from a pod that is then added again.
func TestHostPortsAreRepaired(t *testing.T) {
	n := newNode(t, hns.Server2019, bridgeConfig())
	spec := n.spec("c1", "10.0.1.7")
	spec.HostPorts = []model.HostPort{{Number: 8080, Protocol: model.TCP, Port: 80}, {Number: 8081, Protocol: model.TCP, Port: 81}}
	n.add(spec)
	list, err := n.fake.AllEndpoints(ctx)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(e hns.Endpoint) bool {
		return slices.ContainsFunc(e.Policies, func(p hns.Policy) bool { return p.Is(hns.TypePortMapping) })
	})
	gone := slices.IndexFunc(list[i].Policies, func(p hns.Policy) bool { return p.Is(hns.TypePortMapping) })
	if _, err := n.fake.ModifyEndpoint(ctx, list[i].ID, hns.Remove, list[i].Policies[gone]); err != nil {
		t.Fatal(err)
	}
	if got := n.mappings(); len(got) != 1 {
		t.Fatalf("the test took nothing away: %+v", got)
	}
	n.add(spec)
	if got := n.mappings(); len(got) != 2 {
		t.Errorf("%d mappings, want 2: %+v", len(got), got)
	}
}
