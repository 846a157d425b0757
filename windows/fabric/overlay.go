// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// wantedRoutes returns, for an overlay network, the routes to pods of other nodes, and what cannot be
// reached. Linux nodes send to pods from their own addresses through the tunnel, so the routes include
// those addresses. The result depends on the arguments only. It is sorted by prefix, first pods, then
// nodes. It omits IPv6, which overlay networks do not support.
func wantedRoutes(c Config, s *model.State) (routes []hns.RemoteSubnetRoute, problems []string) {
	self := fabric.Self{Name: s.Node, PodCIDRs: c.PodCIDRs, Addresses: c.NodeAddresses, MTU: underlayMTU}
	for _, a := range c.NodeAddresses {
		if a.Is4() {
			self.Underlay = append(self.Underlay, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	peers := make([]model.Route, 0, len(s.Fabric.Routes))
	for _, r := range s.Fabric.Routes {
		r.PodCIDRs = slices.DeleteFunc(slices.Clone(r.PodCIDRs), func(p netip.Prefix) bool { return p.Addr().Is6() })
		r.Addresses = slices.DeleteFunc(slices.Clone(r.Addresses), netip.Addr.Is6)
		peers = append(peers, r)
	}
	plan := fabric.Make(fabric.Config{Mode: fabric.VXLAN, VNI: c.VNI, Port: fabric.WindowsPort}, self, peers)
	for _, h := range slices.Concat(plan.Hops, plan.Returns) {
		routes = append(routes, hns.RemoteSubnetRoute{DestinationPrefix: h.Prefix.String(), IsolationID: uint16(c.VNI),
			ProviderAddress: h.Underlay.String(), DrMacAddress: strings.ToUpper(strings.ReplaceAll(h.VTEP.String(), ":", "-"))})
	}
	return routes, plan.Problems
}

// sameRoute compares a requested route with that of HNS, which may spell addresses differently.
func sameRoute(a, b hns.RemoteSubnetRoute) bool {
	return a.DestinationPrefix == b.DestinationPrefix && a.IsolationID == b.IsolationID && a.ProviderAddress == b.ProviderAddress &&
		strings.EqualFold(a.DrMacAddress, b.DrMacAddress)
}

// routeChanges compares the routes of a network with the desired ones. Duplicates and unreadable routes are
// stale.
func routeChanges(n *hns.Network, want []hns.RemoteSubnetRoute) (stale []hns.Policy, missing []hns.RemoteSubnetRoute) {
	missing = slices.Clone(want)
	for _, p := range n.Policies {
		if !p.Is(hns.TypeRemoteSubnetRoute) {
			continue
		}
		var have hns.RemoteSubnetRoute
		i := -1
		if p.Decode(&have) == nil {
			i = slices.IndexFunc(missing, func(r hns.RemoteSubnetRoute) bool { return sameRoute(r, have) })
		}
		if i < 0 {
			stale = append(stale, p)
			continue
		}
		missing = slices.Delete(missing, i, i+1)
	}
	return stale, missing
}

// applyRoutes makes the routes of an overlay network those of the State. A failed route does not affect
// other routes and policy; the agent retries it when it is idle.
func (b *Backend) applyRoutes(ctx context.Context, n *hns.Network, s *model.State) error {
	if b.config.Mode != Overlay {
		return nil
	}
	b.checkTunnel(n)
	want, problems := wantedRoutes(b.config, s)
	for i, p := range problems {
		problems[i] = "overlay: " + p
		if !slices.Contains(b.unreachable, problems[i]) {
			b.log.Warn("pods of another node cannot be reached", "problem", p)
		}
	}
	b.unreachable = problems
	stale, missing := routeChanges(n, want)
	var errs []error
	for _, p := range stale {
		b.config.Step("remove route")
		if _, err := b.hns.ModifyNetwork(ctx, n.ID, hns.Remove, p); err != nil && !errors.Is(err, hns.ErrGone) {
			errs = append(errs, fmt.Errorf("remove route %s: %w", p.Settings, err))
		}
	}
	for _, r := range missing {
		b.config.Step("add route")
		answer, err := b.hns.ModifyNetwork(ctx, n.ID, hns.Add, hns.MakePolicy(hns.TypeRemoteSubnetRoute, r))
		if err == nil && !holds(&answer, r) {
			err = errors.New("hns accepted it but did not store it")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("add route to %s by node %s: %w", r.DestinationPrefix, r.ProviderAddress, err))
		}
	}
	return errors.Join(errs...)
}

func holds(n *hns.Network, want hns.RemoteSubnetRoute) bool {
	return slices.ContainsFunc(n.Policies, func(p hns.Policy) bool {
		var have hns.RemoteSubnetRoute
		return p.Is(hns.TypeRemoteSubnetRoute) && json.Unmarshal(p.Settings, &have) == nil && sameRoute(have, want)
	})
}

// retryRoutes retries the routes that the last Apply could not write.
func (b *Backend) retryRoutes(ctx context.Context) error {
	if b.routesDue == nil {
		return nil
	}
	n, err := b.findNetwork(ctx)
	if err != nil || n == nil {
		return err // without a network the audit triggers an Apply
	}
	if err := b.applyRoutes(ctx, n, b.routesDue); err != nil {
		return err
	}
	b.routesDue = nil
	return nil
}

// NodeInfo implements dataplane.Announcer. HNS chooses address and MAC of the tunnel endpoint of an overlay
// network. They are known once the network has found its adapter.
func (b *Backend) NodeInfo() model.NodeInfo { return b.nodeInfo }

// announce updates the NodeInfo from the network.
func (b *Backend) announce(n *hns.Network) {
	if b.config.Mode != Overlay {
		b.nodeInfo = model.NodeInfo{Fabric: string(fabric.Routes)}
		return
	}
	said := model.NodeInfo{Fabric: string(fabric.VXLAN)}
	if address, ok := tunnelAddress(n); ok {
		said.Tunnel = address
		if mac, err := model.ParseMAC(tunnelMAC(n)); err == nil {
			said.VTEP = mac
		}
	}
	b.nodeInfo = said
}

// awaitTunnel rereads the tunnel endpoint of an overlay network that had none at the last read.
func (b *Backend) awaitTunnel(ctx context.Context) error {
	if b.config.Mode != Overlay || b.nodeInfo.VTEP != (model.MAC{}) {
		return nil
	}
	_, err := b.findNetwork(ctx)
	return err
}
