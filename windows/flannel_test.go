// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// flannelNetwork makes the network of flanneld.exe, host-gw or vxlan, with the host's endpoint or the route to another node,
// and the endpoint of a pod. It returns the IDs of the network and of these.
func flannelNetwork(t *testing.T, fake *hnstest.Fake, c windows.Config) (network string, left []string) {
	t.Helper()
	subnet := hns.Subnet{IPAddressPrefix: "10.0.1.0/24", Routes: []hns.Route{{NextHop: "10.0.1.1", DestinationPrefix: "0.0.0.0/0"}}}
	want := hns.Network{Name: "cbr0", Type: hns.L2Bridge, Flags: hns.NonPersistent, SchemaVersion: hns.Schema2,
		Policies: []hns.Policy{hns.MakePolicy(hns.TypeNetAdapterName, hns.NetAdapterName{NetworkAdapterName: "Ethernet"})}}
	if c.Mode == windows.Overlay {
		want.Type = hns.Overlay
		want.Policies = append(want.Policies, hns.MakePolicy(hns.TypeHostRoute, struct{}{}))
		subnet.Policies = []hns.Policy{hns.MakePolicy(hns.TypeVSID, hns.IsolationID{IsolationID: 4096})}
	}
	want.Ipams = []hns.Ipam{{Type: "Static", Subnets: []hns.Subnet{subnet}}}
	made, err := fake.CreateNetwork(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 { // HNS completes an overlay network later
		if _, err := fake.Networks(ctx); err != nil {
			t.Fatal(err)
		}
	}
	endpoint := func(name, ip, namespace string) {
		e, err := fake.CreateEndpoint(ctx, hns.Endpoint{Name: name, HostComputeNetwork: made.ID, SchemaVersion: hns.Schema2,
			IPConfigurations: []hns.IPConfig{{IPAddress: ip, PrefixLength: 24}}})
		if err == nil {
			err = fake.AttachEndpoint(ctx, namespace, e.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, e.ID)
	}
	if c.Mode == windows.L2Bridge {
		endpoint("cbr0_ep", "10.0.1.2", hns.HostNamespace)
	}
	endpoint("4f1c_cbr0", "10.0.1.9", fake.AddNamespace())
	return made.ID, left
}

// An agent of mode full takes the network of flannel if it has its name, and type, range and VNI are those of the node. Network,
// host's endpoint and the endpoints of pods stay, so that the host keeps its connections. Otherwise it refuses the network and changes
// nothing.
func TestNetworkOfFlannel(t *testing.T) {
	for name, c := range map[string]windows.Config{"host-gw": bridgeConfig(), "vxlan": overlayConfig()} {
		t.Run(name, func(t *testing.T) {
			c.Network = "cbr0"
			fake := hnstest.NewFake(hns.Server2022)
			network, left := flannelNetwork(t, fake, c)
			other := map[string]func(*windows.Config){
				"want": func(c *windows.Config) { c.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")} },
				"type": func(c *windows.Config) {
					*c = map[windows.Mode]windows.Config{windows.L2Bridge: overlayConfig(), windows.Overlay: bridgeConfig()}[c.Mode]
					c.Network = "cbr0"
				},
			}
			if c.Mode == windows.Overlay {
				other["has vni 4096, want 4097"] = func(c *windows.Config) { c.VNI = 4097 }
			}
			before := fake.Dump()
			for text, change := range other {
				refused := c
				change(&refused)
				if _, err := windows.New(ctx, refused, fake, discard); err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), `hns network "cbr0"`) || fake.Dump() != before {
					t.Errorf("another %s: %v\n%s", text, err, fake.Dump())
				}
			}
			n := &node{t: t, fake: fake, config: c}
			n.start()
			n.add(n.spec("c1", "10.0.1.20"))
			networks, err := fake.Networks(ctx)
			if err != nil || len(networks) != 1 || networks[0].ID != network {
				t.Errorf("networks %+v, %v, want only %s", networks, err, network)
			}
			list, err := fake.Endpoints(ctx, network)
			for _, id := range left {
				if !slices.ContainsFunc(list, func(e hns.Endpoint) bool { return e.ID == id }) {
					t.Errorf("endpoint %s is gone: %v\n%s", id, err, fake.Dump())
				}
			}
		})
	}
}

// The host's endpoint is the next hop of pods. One with another address is refused, and stays.
func TestHostEndpointOfFlannel(t *testing.T) {
	c := bridgeConfig()
	c.Network = "cbr0"
	fake := hnstest.NewFake(hns.Server2022)
	network, left := flannelNetwork(t, fake, c)
	if err := fake.DeleteEndpoint(ctx, left[0]); err != nil {
		t.Fatal(err)
	}
	_, err := fake.CreateEndpoint(ctx, hns.Endpoint{Name: "cbr0_ep", HostComputeNetwork: network, SchemaVersion: hns.Schema2,
		IPConfigurations: []hns.IPConfig{{IPAddress: "10.0.1.254", PrefixLength: 24}}})
	if err != nil {
		t.Fatal(err)
	}
	before := fake.Dump()
	if _, err := windows.New(ctx, c, fake, discard); err == nil || !strings.Contains(err.Error(), `endpoint "cbr0_ep" of the host`) || !strings.Contains(err.Error(), "10.0.1.254, want 10.0.1.2:") || fake.Dump() != before {
		t.Errorf("a host endpoint with another address: %v\n%s", err, fake.Dump())
	}
}
