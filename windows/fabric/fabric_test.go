// SPDX-License-Identifier: Apache-2.0

package fabric_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/fabric"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// store is an HNS with one network.
type store struct {
	network hns.Network
	fails   error
}

func (s *store) ModifyNetwork(_ context.Context, _ string, r hns.RequestType, policies ...hns.Policy) (hns.Network, error) {
	if s.fails != nil {
		return hns.Network{}, s.fails
	}
	for _, p := range policies {
		if r == hns.Add {
			s.network.Policies = append(s.network.Policies, p)
			continue
		}
		s.network.Policies = slices.DeleteFunc(s.network.Policies, func(o hns.Policy) bool { return string(o.Settings) == string(p.Settings) })
	}
	return s.network, nil
}

var (
	ctx     = context.Background()
	address = netip.MustParseAddr("192.168.0.1")
	state   = &model.State{Node: "node1", Fabric: model.FabricState{Routes: []model.Route{{Node: "node2", OS: model.Linux,
		Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.2")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}}}}}
)

// component returns the component for a store. tunnel is true if the network already has its tunnel
// endpoint.
func component(s *store, overlay, tunnel bool) *fabric.Fabric {
	if tunnel {
		s.network.Policies = []hns.Policy{hns.MakePolicy(hns.TypeProviderAddress, hns.ProviderAddress{ProviderAddress: address.String()}),
			hns.MakePolicy(hns.TypeDrMacAddress, hns.DrMacAddress{Address: "00-15-5D-00-00-01"})}
	}
	var f *fabric.Fabric
	f = fabric.New(fabric.Config{Overlay: overlay, VNI: 4096, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")},
		NodeAddresses: []netip.Addr{address}, MTU: 1500, Find: func(context.Context) (*hns.Network, error) {
			f.Observe(&s.network)
			return &s.network, nil
		}}, s, dataplane.Host{Log: slog.New(slog.DiscardHandler), Step: func(string) {}})
	f.Observe(&s.network)
	return f
}

// TestRoutesAreRetried checks that a failed route is a problem, not an error, until Sync has
// written it. The audit finds a route that another process removed.
func TestRoutesAreRetried(t *testing.T) {
	s := &store{fails: errors.New("busy")}
	f := component(s, true, true)
	if _, err := f.Apply(ctx, state); err != nil {
		t.Errorf("Apply returns %v", err)
	}
	if p := f.Problems(); len(p) != 1 || !strings.Contains(p[0], "could not be written") {
		t.Errorf("problems %q", p)
	}
	if err := f.Sync(ctx, time.Now()); err == nil {
		t.Error("Sync does not say that the route still cannot be written")
	}
	s.fails = nil
	if err := f.Sync(ctx, time.Now()); err != nil || len(f.Problems()) > 0 {
		t.Errorf("after the retry: %v, %q", err, f.Problems())
	}
	if found, err := f.Audit(ctx, state); err != nil || len(found) > 0 {
		t.Errorf("the audit finds %v, %v", found, err)
	}
	s.network.Policies = s.network.Policies[:2]
	if found, err := f.Audit(ctx, state); err != nil || len(found) == 0 || !strings.HasPrefix(found[0].Detail, "missing: ") {
		t.Errorf("the audit finds %v, %v", found, err)
	}
}

// TestTunnelComesLater checks that a missing tunnel endpoint of a new network is a problem, and
// that it is announced once HNS has it.
func TestTunnelComesLater(t *testing.T) {
	s := &store{}
	f := component(s, true, false)
	if f.CheckTunnel(&s.network); len(f.Problems()) != 1 || f.NodeInfo().Tunnel.IsValid() {
		t.Errorf("problems %q, announces %+v", f.Problems(), f.NodeInfo())
	}
	g := component(s, true, true) // HNS has it now
	if err := f.Sync(ctx, time.Now()); err != nil || f.NodeInfo() != g.NodeInfo() || f.NodeInfo().Tunnel != address || !fabric.HasTunnel(&s.network) {
		t.Errorf("announces %+v, %v", f.NodeInfo(), err)
	}
	if f.CheckTunnel(&s.network); len(f.Problems()) > 0 {
		t.Errorf("problems %q", f.Problems())
	}
}

// TestBridgeHasNoRoutes checks that an L2Bridge network gets no routes and has no tunnel.
func TestBridgeHasNoRoutes(t *testing.T) {
	s := &store{}
	f := component(s, false, false)
	_, err := f.Apply(ctx, state)
	if err != nil || len(s.network.Policies) > 0 || len(f.Problems()) > 0 || f.NodeInfo().Fabric != "routes" {
		t.Errorf("%v, policies %v, problems %q, announces %+v", err, s.network.Policies, f.Problems(), f.NodeInfo())
	}
}
