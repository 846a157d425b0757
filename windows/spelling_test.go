// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/world"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// TestSpellingOfHNS runs the life of pods on an HNS that spells addresses in another way than the agent does. Everything is written
// once, packets get their verdicts, and nothing is found different later, by the same agent or the next one.
func TestSpellingOfHNS(t *testing.T) {
	derived := dualConfig()
	derived.OutboundNATExceptions, derived.NATDelay = nil, 1
	derived.ServiceCIDRs = append(derived.ServiceCIDRs, netip.MustParsePrefix("fd00:96::/112"))
	for name, c := range map[string]windows.Config{"bridge": bridgeConfig(), "overlay": overlayConfig(), "dual": dualConfig(), "derived": derived} {
		for _, v := range hns.Profiles() {
			ipv6 := len(c.PodCIDRs) > 1
			if ipv6 && !v.Supports(hns.DualStack) {
				continue
			}
			t.Run(fmt.Sprint(name, v), func(t *testing.T) {
				n := &node{t: t, fake: hnstest.NewFake(v), config: c}
				n.fake.Respell, n.fake.Reorder, n.fake.UpdateReplacesAll = true, true, true
				n.start()
				for seed := range uint64(2) {
					n.spelled(seed, world.Shape{Pods: 8, Policies: 4, Tiers: seed%2 > 0, IPv6: ipv6})
				}
			})
		}
	}
}

// spelled adds the pods of a cluster, changes the cluster, and removes them.
func (n *node) spelled(seed uint64, shape world.Shape) {
	n.t.Helper()
	s := snapshot(seed, shape)
	state := stateOf(s, nil)
	specs := make(map[model.EndpointID]dataplane.EndpointSpec)
	for id, e := range state.Policy.Endpoints {
		container, ifName, _ := strings.Cut(string(id), ":")
		specs[id] = dataplane.EndpointSpec{ID: id, ContainerID: container, IfName: ifName, Pod: e.Pod, NetNS: n.fake.AddNamespace(), IPs: e.IPs}
	}
	for range 2 {
		state.Fabric = model.FabricState{PodCIDRs: n.config.PodCIDRs, NodeAddresses: n.config.NodeAddresses,
			Routes: []model.Route{peer(2, model.Linux, "02:00:00:00:00:02", "10.0.2.0/24")}}
		for round := range 3 {
			if round == 1 {
				n.fake.ForgetCalls()
			} else if round == 2 {
				n.start()
			}
			for _, spec := range specs {
				n.add(spec)
			}
			n.apply(state)
			if n.config.NATDelay > 0 {
				n.idle()
			}
		}
		n.settled(state, len(specs))
		addrs, ports := world.Probes(s)
		n.compare(state, addrs, ports)
		s = onlyAttached(world.Mutate(seed, s, shape, 4), state)
		state = stateOf(s, state)
	}
	for id := range specs {
		if err := n.backend.DeleteEndpoint(ctx, id); err != nil {
			n.t.Error(err)
		}
	}
	n.apply(&model.State{})
}

// settled checks that HNS has pods as the State says, and that nothing was written since ForgetCalls.
func (n *node) settled(s *model.State, pods int) {
	n.t.Helper()
	installed, err := n.backend.Endpoints(ctx)
	if err != nil || len(installed) != pods {
		n.t.Errorf("%d endpoints, %v, want %d", len(installed), err, pods)
	}
	for _, i := range installed {
		if len(i.Problems) > 0 {
			n.t.Errorf("%s: %v", i.ID, i.Problems)
		}
	}
	if drifts, err := n.backend.Audit(ctx, s); err != nil || len(drifts) > 0 {
		n.t.Errorf("drifts %v, %v", drifts, err)
	}
	for _, call := range n.fake.Calls() {
		if strings.HasPrefix(call.Op, "Modify") || strings.HasPrefix(call.Op, "Create") {
			n.t.Errorf("written although nothing changed: %s %s", call.Op, call.Request)
		}
	}
}

// TestSpelledGateway: a network with another gateway than Isthmus has is refused, also if HNS spells its default route in another way.
func TestSpelledGateway(t *testing.T) {
	fake := hnstest.NewFake(hns.Server2022)
	fake.Respell = true
	var m hns.Ipam
	for prefix, gateway := range map[string]string{"10.0.1.0/24": "10.0.1.1", "fd00:1::/64": "fd00:1::fe"} {
		m.Subnets = append(m.Subnets, hns.Subnet{IPAddressPrefix: prefix,
			Routes: []hns.Route{{NextHop: gateway, DestinationPrefix: map[bool]string{true: "::/0", false: "0.0.0.0/0"}[strings.Contains(prefix, ":")]}}})
	}
	if _, err := fake.CreateNetwork(ctx, hns.Network{Name: "isthmus", Type: hns.L2Bridge, SchemaVersion: hns.Schema2, Ipams: []hns.Ipam{m}}); err != nil {
		t.Fatal(err)
	}
	if _, err := windows.New(ctx, dualConfig(), fake, discard); err == nil || !strings.Contains(err.Error(), "want fd00:1::1: ") {
		t.Errorf("%v\n%s", err, fake.Dump())
	}
}
