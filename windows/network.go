// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/windows/fabric"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// findNetwork returns the network, or nil if HNS does not have it.
func (b *Backend) findNetwork(ctx context.Context) (*hns.Network, error) {
	list, err := listed(func() ([]hns.Network, error) { return b.hns.Networks(ctx) })
	if err != nil {
		return nil, fmt.Errorf("list hns networks: %w", remedied(err))
	}
	for i, n := range list {
		if strings.EqualFold(n.Name, b.config.Network) {
			b.mu.Lock()
			b.network = n.ID
			b.mu.Unlock()
			b.fabric.Observe(&list[i])
			return &list[i], nil
		}
	}
	return nil, nil
}

// ensureNetwork creates or adopts the network, and in L2Bridge the host's endpoint on it. It also returns
// the endpoints on the network. With an error about the host's endpoint it returns both, for policy needs no next hop.
func (b *Backend) ensureNetwork(ctx context.Context) (*hns.Network, []hns.Endpoint, error) {
	n, err := b.findNetwork(ctx)
	if err != nil {
		return nil, nil, err
	}
	if n == nil {
		if n, err = b.makeNetwork(ctx); err != nil {
			return nil, nil, err
		}
	}
	if err := refusal(b.config.NetworkMismatches(n)); err != nil {
		return nil, nil, err
	}
	list, err := b.listEndpoints(ctx, n.ID)
	if err != nil {
		return nil, nil, err
	}
	if b.config.Mode == L2Bridge {
		all, err := b.ensureHostEndpoint(ctx, n, list)
		if err != nil {
			return n, list, err
		}
		list = all
	}
	b.observePrepared(list)
	return n, list, nil
}

func (b *Backend) makeNetwork(ctx context.Context) (*hns.Network, error) {
	if err := b.config.HostRoutes.Remember(); err != nil {
		b.log.Warn("routes of the host may be lost while the network is created", "error", err)
	}
	b.config.Step("create network")
	_, err := b.hns.CreateNetwork(ctx, b.config.wantedNetwork())
	if err != nil && !errors.Is(err, hns.ErrConflict) {
		return nil, fmt.Errorf("create hns network %q on adapter %q: %w", b.config.Network, b.config.Adapter, withoutAdapter(err))
	}
	// After a conflict another component has created it. In both cases read it.
	n, err := b.findNetwork(ctx)
	if err != nil {
		return nil, err
	}
	if n == nil {
		return nil, fmt.Errorf("create hns network %q: HNS reports that it exists but does not list it; restart the hns service", b.config.Network)
	}
	return n, nil
}

func (c Config) wantedNetwork() hns.Network {
	n := hns.Network{Name: c.Network, Type: hns.L2Bridge, Flags: hns.NonPersistent, SchemaVersion: hns.Schema2}
	if c.Adapter != "" {
		n.Policies = append(n.Policies, hns.MakePolicy(hns.TypeNetAdapterName, hns.NetAdapterName{NetworkAdapterName: c.Adapter}))
	}
	ipam := hns.Ipam{Type: "Static"}
	for _, p := range c.PodCIDRs {
		s := hns.Subnet{IPAddressPrefix: p.String(), Routes: []hns.Route{{NextHop: gateway(p).String(), DestinationPrefix: defaultRoute(p)}}}
		if c.Mode == Overlay {
			s.Policies = []hns.Policy{hns.MakePolicy(hns.TypeVSID, hns.IsolationID{IsolationID: c.VNI})}
		}
		ipam.Subnets = append(ipam.Subnets, s)
	}
	n.Ipams = []hns.Ipam{ipam}
	if c.Mode == Overlay {
		n.Type = hns.Overlay
		// Allows the host to reach its own pods.
		n.Policies = append(n.Policies, hns.MakePolicy(hns.TypeHostRoute, struct{}{}))
	}
	return n
}

func defaultRoute(p netip.Prefix) string {
	if p.Addr().Is6() {
		return "::/0"
	}
	return "0.0.0.0/0"
}

// ensureHostEndpoint attaches the host to the network, as the next hop of pods. It returns the list
// including the host's endpoint.
func (b *Backend) ensureHostEndpoint(ctx context.Context, n *hns.Network, list []hns.Endpoint) ([]hns.Endpoint, error) {
	host := findNamed(list, b.config.HostEndpoint())
	if host == nil {
		want := hns.Endpoint{Name: b.config.HostEndpoint(), HostComputeNetwork: n.ID, SchemaVersion: hns.Schema2}
		for _, p := range b.config.PodCIDRs {
			want.IPConfigurations = append(want.IPConfigurations, hns.IPConfig{IPAddress: hostAddress(p).String(), PrefixLength: uint8(p.Bits())})
		}
		b.config.Step("create host endpoint")
		made, err := b.hns.CreateEndpoint(ctx, want)
		if err != nil {
			return nil, fmt.Errorf("create the host's endpoint %s on network %q: %w", hostAddress(b.config.PodCIDRs[0]), n.Name, err)
		}
		list = append(list, made)
		host = &made
	}
	if err := refusal(b.config.HostMismatches(list)); err != nil {
		return nil, err
	}
	if b.host == host.ID {
		return list, nil
	}
	b.config.Step("attach host endpoint")
	err := b.hns.AttachEndpoint(ctx, hns.HostNamespace, host.ID)
	if err != nil && !errors.Is(err, hns.ErrConflict) {
		return nil, fmt.Errorf("attach the host to network %q: %w", n.Name, err)
	}
	b.host = host.ID
	return list, nil
}

// waitForTunnel waits until a new overlay network has its tunnel address. HNS finds it after binding the
// adapter to the new vSwitch. After a timeout pods can be attached, but other nodes do not reach them yet.
func (b *Backend) waitForTunnel(ctx context.Context, n *hns.Network) error {
	if b.config.Mode != Overlay {
		return nil
	}
	deadline := time.Now().Add(b.config.NetworkWait)
	defer func() { b.fabric.CheckTunnel(n) }()
	for {
		if fabric.HasTunnel(n) {
			return nil
		}
		if time.Now().After(deadline) {
			b.log.Warn("the overlay network has no tunnel address yet", "network", n.Name, "waited", b.config.NetworkWait)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the tunnel address of network %q: %w", n.Name, ctx.Err())
		case <-time.After(min(500*time.Millisecond, b.config.NetworkWait/4)):
		}
		again, err := b.findNetwork(ctx)
		if err != nil {
			return err
		}
		if again != nil {
			n = again
		}
	}
}

// restoreRoutes restores the routes that the host lost when its adapter was bound to the vSwitch. The
// adapter gets its address back only after a while: each Idle retries, and Faults has the reason meanwhile.
func (b *Backend) restoreRoutes() {
	added, err := b.config.HostRoutes.Restore()
	for _, r := range added {
		b.log.Info("restored a route of the host", "destination", r.Destination, "next hop", r.NextHop, "interface", r.Interface)
	}
	was := b.routeFault
	if b.routeFault = ""; err != nil {
		b.routeFault = fmt.Sprintf("routes of the host are not restored yet: %v", err)
	}
	if err != nil && was == "" {
		b.log.Info("routes of the host are not restored yet", "error", err)
	}
}

// listAttempts is how often a listing is repeated if an object is removed in the middle of it.
const listAttempts = 4

// listed repeats a listing if an object vanishes before it is opened.
func listed[T any](list func() ([]T, error)) (found []T, err error) {
	for range listAttempts {
		found, err = list()
		if !errors.Is(err, hns.ErrGone) || hns.Code(err) == hns.CodeNetworkNotFound {
			break
		}
	}
	return found, err
}

// listEndpoints lists the endpoints of a network; none if the network is gone.
func (b *Backend) listEndpoints(ctx context.Context, network string) ([]hns.Endpoint, error) {
	list, err := listed(func() ([]hns.Endpoint, error) { return b.hns.Endpoints(ctx, network) })
	if hns.Code(err) == hns.CodeNetworkNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list endpoints of network %q: %w", b.config.Network, err)
	}
	return list, nil
}

func findNamed(list []hns.Endpoint, name string) *hns.Endpoint {
	for i := range list {
		if list[i].Name == name && !list[i].Remote() {
			return &list[i]
		}
	}
	return nil
}
