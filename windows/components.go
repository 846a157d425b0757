// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"fmt"
	"slices"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/fabric"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hostfabric"
	"github.com/isthmus-net/isthmus/windows/kubeproxy"
)

var (
	_ dataplane.SocketLister      = (*Backend)(nil)
	_ dataplane.ServicePortLister = (*Backend)(nil)
)

// makeComponents creates the components of a node. Host ports and bandwidth limits are not among them: they
// are policies of the endpoint itself, which packages hostport and bandwidth encode and AddEndpoint writes.
func (b *Backend) makeComponents() {
	host := dataplane.Host{Log: b.log, Step: b.config.Step, Repaired: func(string) {}} // the agent counts repairs of objects of HNS
	b.fabric = fabric.New(fabric.Config{Overlay: b.config.Mode == Overlay, Mode: b.config.Fabric, VNI: b.config.VNI, PodCIDRs: b.config.PodCIDRs,
		NodeAddresses: b.config.NodeAddresses, MTU: underlayMTU, Find: b.findNetwork}, b.hns, host)
	b.components = dataplane.Components{b.fabric, b.deny, kubeproxy.New(b.hns, b.version.Supports(hns.DirectServerReturn), b.nodeAddresses, b.log)}
	if b.config.Stack == nil {
		return
	}
	cfg := hostfabric.Config{Mode: b.config.Fabric, Overlay: b.config.Mode == Overlay, PodCIDRs: b.config.PodCIDRs,
		File: b.config.ForwardingFile, Stack: b.config.Stack}
	if b.config.Mode == L2Bridge {
		for _, p := range b.config.PodCIDRs {
			cfg.Gateways = append(cfg.Gateways, hostAddress(p))
		}
	}
	b.hostFabric = hostfabric.New(cfg, host)
	b.components = append(b.components, b.hostFabric)
}

// applyComponents applies a State to the components.
func (b *Backend) applyComponents(ctx context.Context, s *model.State) ([]model.Unsupported, error) {
	defer b.noteModes()
	return b.components.Apply(ctx, s, b.Features())
}

// preceding returns the ACLs that precede those of policy.
func (b *Backend) preceding() []hns.ACL { return slices.Concat(b.deny.ACLs(), b.fabric.ACLs()) }

// precedingOf returns the ACLs that precede a list. An endpoint that is denied everything needs none.
func (b *Backend) precedingOf(list []hns.ACL) []hns.ACL {
	if acl.Equal(list, acl.DenyAll()) {
		return nil
	}
	return b.preceding()
}

// Listening implements dataplane.SocketLister. Without the function of the Config there are no sockets.
func (b *Backend) Listening() ([]model.HostPort, error) {
	if b.config.Listening == nil {
		return nil, nil
	}
	return b.config.Listening()
}

// ServicePorts implements dataplane.ServicePortLister. Whether HNS gives a connection to a load balancer or to a port mapping is not
// documented.
func (b *Backend) ServicePorts(ctx context.Context) ([]model.HostPort, error) {
	list, err := b.hns.LoadBalancers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the load balancers of Services: %w", err)
	}
	return kubeproxy.NodePorts(list, b.nodeAddresses()), nil
}

// noteModes records the modes and descriptions of the components, for Counters.
func (b *Backend) noteModes() {
	modes, facts := b.components.PathModes(), slices.Concat(b.components.Facts(), []string{b.natFact()}, b.preparedFacts())
	b.mu.Lock()
	defer b.mu.Unlock()
	b.modes, b.facts = modes, facts
}

// NodeInfo implements dataplane.Announcer.
func (b *Backend) NodeInfo() model.NodeInfo { return b.fabric.NodeInfo() }
