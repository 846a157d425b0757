// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
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
		{Number: 5353, Protocol: model.UDP, Port: 53, Address: netip.MustParseAddr("192.0.2.1")},
	}
	want := []hns.PortMapping{
		{Protocol: 6, InternalPort: 80, ExternalPort: 8080},
		{Protocol: 6, InternalPort: 80, ExternalPort: 8080, Flags: hns.PortMappingIPv6},
		{Protocol: 17, InternalPort: 53, ExternalPort: 5353, VIP: "192.0.2.1"},
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
