// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hostroute"
)

// host is a routing table that loses its routes when HNS makes a network.
type host struct{ routes []hostroute.Route }

func (h *host) Routes() ([]hostroute.Route, error) { return slices.Clone(h.routes), nil }

func (h *host) Add(r hostroute.Route) error {
	h.routes = append(h.routes, r)
	return nil
}

// TestMetadataRoute creates the first network of a host, and checks that the route to the metadata
// service is restored as soon as the host has its address again.
func TestMetadataRoute(t *testing.T) {
	metadata := hostroute.Route{Destination: netip.MustParsePrefix("169.254.169.254/32"), NextHop: netip.MustParseAddr("192.168.0.254"), Interface: 3, Metric: 30}
	link := hostroute.Route{Destination: netip.MustParsePrefix("192.168.0.0/24"), NextHop: netip.IPv4Unspecified(), Interface: 3}
	h := &host{routes: []hostroute.Route{metadata, link}}
	c := bridgeConfig()
	c.HostRoutes = hostroute.Keep(h, filepath.Join(t.TempDir(), "routes.json"), []netip.Prefix{metadata.Destination})
	c.Step = func(step string) {
		if step == "create network" {
			h.routes = nil
		}
	}
	n := newNode(t, hns.Server2022, c)
	if !strings.Contains(n.log.String(), "not restored yet") {
		t.Errorf("nothing is said of the route that is missing:\n%s", &n.log)
	}
	// An error of Idle would delay the components by half a minute.
	if _, err := n.backend.Idle(ctx); err != nil || !strings.Contains(strings.Join(n.backend.Faults(), "\n"), "routes of the host are not restored yet") {
		t.Errorf("%v, faults %q", err, n.backend.Faults())
	}
	link.Interface = 11
	h.routes = []hostroute.Route{link}
	n.start() // the agent may have been restarted meanwhile
	if _, err := n.backend.Idle(ctx); err != nil {
		t.Fatal(err)
	}
	metadata.Interface = 11
	if !slices.Equal(h.routes, []hostroute.Route{link, metadata}) {
		t.Errorf("the host has the routes %v", h.routes)
	}
	if all := n.backend.Faults(); len(all) > 0 {
		t.Errorf("faults %q", all)
	}
}

// stack is an IP stack whose uplink has the node's addresses and this MTU.
type stack struct {
	host
	mtu int
}

func (*stack) Remove(hostroute.Route) error { return nil }

func (*stack) SetForwarding(uint32, hostroute.Family, bool) error { return nil }

func (s *stack) Interfaces() ([]hostroute.Interface, error) {
	return []hostroute.Interface{{Index: 3, Name: "vEthernet (Ethernet)", MTU: s.mtu, Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.0.1/24")}},
		{Index: 4, Name: "Storage", MTU: 1400, Addresses: []netip.Prefix{netip.MustParsePrefix("172.16.0.1/24")}}}, nil
}

// TestMTU checks the MTU in results of ADD: that of the uplink, on overlay networks the one that HNS gives pods.
func TestMTU(t *testing.T) {
	for _, c := range []struct {
		mode                  windows.Mode
		uplink, before, after int // the results before and after the first State
	}{{windows.L2Bridge, 1500, 1500, 1500}, {windows.L2Bridge, 9000, 1500, 9000}, {windows.L2Bridge, 1460, 1500, 1460}, {windows.Overlay, 9000, 1450, 1450}} {
		config := bridgeConfig()
		config.Stack, config.ForwardingFile = &stack{mtu: c.uplink}, filepath.Join(t.TempDir(), "forwarding.json")
		if c.mode == windows.Overlay {
			config.Mode, config.VNI = windows.Overlay, 4096
		}
		n := newNode(t, hns.Server2022, config)
		add := func(spec dataplane.EndpointSpec, want int) {
			t.Helper()
			if a, err := n.backend.AddEndpoint(ctx, spec); err != nil || a.MTU != want {
				t.Errorf("%s, MTU of the uplink %d: %d, want %d; %v", c.mode, c.uplink, a.MTU, want, err)
			}
		}
		specs := []dataplane.EndpointSpec{n.spec("c1", "10.0.1.7"), n.spec("c2", "10.0.1.8")}
		add(specs[0], c.before)
		n.apply(clusterState(specs))
		add(specs[1], c.after)
	}
}
