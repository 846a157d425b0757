// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// HNS writes the routes of a network. hns.Client describes the behaviour.
type HNS interface {
	ModifyNetwork(ctx context.Context, id string, r hns.RequestType, policies ...hns.Policy) (hns.Network, error)
}

// Config describes an overlay network.
type Config struct {
	// Overlay is false for an L2Bridge network, which has no routes of its own.
	Overlay bool
	// Mode is that of an L2Bridge network's host: None if other programs connect its pods.
	Mode          fabric.Mode
	VNI           uint32
	PodCIDRs      []netip.Prefix
	NodeAddresses []netip.Addr
	// MTU is that of the underlay, in bytes.
	MTU int
	// Find reads the network from HNS; nil if it does not exist. It must call Observe.
	Find func(context.Context) (*hns.Network, error)
}

// Fabric keeps the routes of an overlay network to pods of other nodes.
type Fabric struct {
	cfg  Config
	hns  HNS
	host dataplane.Host
	// network is the network as last read, nodeInfo the part of it that other nodes need.
	network  *hns.Network
	nodeInfo model.NodeInfo
	// due is the State whose routes could not all be written.
	due *model.State
	// unreachable are the problems of unreachable nodes, tunnel that of the tunnel endpoint.
	unreachable []string
	tunnel      string
}

var (
	_ dataplane.Component = (*Fabric)(nil)
	_ dataplane.Auditor   = (*Fabric)(nil)
)

// New returns the component. It calls no method of HNS.
func New(cfg Config, client HNS, host dataplane.Host) *Fabric {
	return &Fabric{cfg: cfg, hns: client, host: host}
}

// Apply implements dataplane.Component. It writes to the network that was observed last. A failed route
// does not affect policy: it is a problem, and Sync retries it.
func (f *Fabric) Apply(ctx context.Context, s *model.State) ([]model.Unsupported, error) {
	f.due = nil
	if err := f.applyRoutes(ctx, f.network, s); err != nil {
		f.host.Log.Warn("write routes to other nodes; retrying", "error", err)
		f.due = s
	}
	return nil, nil
}

// Sync implements dataplane.Component. It writes routes that could not be written, and reads the tunnel
// endpoint that a new network did not have yet.
func (f *Fabric) Sync(ctx context.Context, _ time.Time) error {
	return errors.Join(f.retryRoutes(ctx), f.awaitTunnel(ctx))
}

// Audit implements dataplane.Auditor. It returns routes that are missing from the network that was observed
// last, or stray.
func (f *Fabric) Audit(_ context.Context, s *model.State) (found []dataplane.Drift, _ error) {
	if !f.cfg.Overlay {
		return nil, nil
	}
	want, _ := wantedRoutes(f.cfg, s)
	stale, missing := routeChanges(f.network, want)
	for _, p := range stale {
		found = append(found, dataplane.Drift{Object: "route", Detail: fmt.Sprintf("stray: %s", p.Settings)})
	}
	for _, r := range missing {
		found = append(found, dataplane.Drift{Object: "route", Detail: "missing: " + r.DestinationPrefix})
	}
	return found, nil
}

// Problems implements dataplane.Component.
func (f *Fabric) Problems() []string {
	all := slices.Clone(f.unreachable)
	if f.tunnel != "" {
		all = append(all, f.tunnel)
	}
	if f.due != nil {
		all = append(all, "some routes to other nodes could not be written: the agent retries, see its log")
	}
	return all
}

// PathModes returns nil: HNS does not report how it forwards.
func (f *Fabric) PathModes() []dataplane.PathMode { return nil }

// Close does nothing: the routes stay.
func (f *Fabric) Close() error { return nil }

// wantedRoutes returns, for an overlay network, the routes to pods of other nodes, and what cannot be
// reached. Linux nodes send to pods from their own addresses through the tunnel, so the routes include
// those addresses. The result depends on the arguments only. It is sorted by prefix, first pods, then
// nodes. It omits IPv6, which overlay networks do not support.
func wantedRoutes(c Config, s *model.State) (routes []hns.RemoteSubnetRoute, problems []string) {
	self := fabric.Self{Name: s.Node, PodCIDRs: c.PodCIDRs, Addresses: c.NodeAddresses, MTU: c.MTU}
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
	return hns.NormalAddresses(a.DestinationPrefix) == hns.NormalAddresses(b.DestinationPrefix) && a.IsolationID == b.IsolationID &&
		hns.NormalAddresses(a.ProviderAddress) == hns.NormalAddresses(b.ProviderAddress) && strings.EqualFold(a.DrMacAddress, b.DrMacAddress)
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
func (f *Fabric) applyRoutes(ctx context.Context, n *hns.Network, s *model.State) error {
	if !f.cfg.Overlay {
		return nil
	}
	f.CheckTunnel(n)
	want, problems := wantedRoutes(f.cfg, s)
	for i, p := range problems {
		problems[i] = "overlay: " + p
		if !slices.Contains(f.unreachable, problems[i]) {
			f.host.Log.Warn("pods of another node cannot be reached", "problem", p)
		}
	}
	f.unreachable = problems
	stale, missing := routeChanges(n, want)
	var errs []error
	for _, p := range stale {
		f.host.Step("remove route")
		if _, err := f.hns.ModifyNetwork(ctx, n.ID, hns.Remove, p); err != nil && !errors.Is(err, hns.ErrGone) {
			errs = append(errs, fmt.Errorf("remove route %s: %w", p.Settings, err))
		}
	}
	for _, r := range missing {
		f.host.Step("add route")
		answer, err := f.hns.ModifyNetwork(ctx, n.ID, hns.Add, hns.MakePolicy(hns.TypeRemoteSubnetRoute, r))
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
func (f *Fabric) retryRoutes(ctx context.Context) error {
	if f.due == nil {
		return nil
	}
	n, err := f.cfg.Find(ctx)
	if err != nil || n == nil {
		return err // without a network the audit triggers an Apply
	}
	if err := f.applyRoutes(ctx, n, f.due); err != nil {
		return err
	}
	f.due = nil
	return nil
}
