// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
