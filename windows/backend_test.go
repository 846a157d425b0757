// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/world"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// TestApplyIsTheState applies random States in every profile and mode, and evaluates every probe
// with HNS.
func TestApplyIsTheState(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 2
	}
	cells := 0
	for _, profile := range hns.Profiles() {
		for _, c := range []windows.Config{bridgeConfig(), overlayConfig(), dualConfig()} {
			ipv6 := len(c.PodCIDRs) > 1
			if ipv6 && !profile.Supports(hns.DualStack) {
				continue
			}
			for seed := range seeds {
				t.Run(fmt.Sprintf("hns%s/%s/ipv6=%t/%d", profile, c.Mode, ipv6, seed), func(t *testing.T) {
					n := newNode(t, profile, c)
					n.fake.UpdateReplacesAll = seed%2 == 1
					shape := world.Shape{Pods: 8, Policies: 4, Tiers: seed%3 > 0, IPv6: ipv6}
					s := snapshot(seed, shape)
					state := stateOf(s, nil)
					addrs, ports := world.Probes(s)
					n.addAll(state)
					n.apply(state)
					cells += n.compare(state, addrs, ports)

					n.fake.ForgetCalls()
					n.apply(state)
					n.start()
					n.apply(stateOf(s, nil))
					if w := n.count("ModifyEndpoint") + n.count("ModifyNetwork"); w > 0 {
						t.Errorf("%d writes although nothing changed", w)
					}

					mutated := world.Mutate(seed, s, shape, 4)
					next := stateOf(onlyAttached(mutated, state), state)
					n.apply(next)
					addrs, ports = world.Probes(mutated)
					cells += n.compare(next, addrs, ports)
				})
			}
		}
	}
	t.Logf("cells=%d", cells)
}

// TestPolicyBeforePacket checks that nothing passes between creation and the first Apply, and that
// an endpoint that the State does not name stays closed.
func TestPolicyBeforePacket(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	spec := n.spec("c1", "10.0.1.7")
	closed := func(when string) {
		t.Helper()
		for _, reading := range hns.Readings() {
			for _, d := range model.Directions {
				for _, remote := range []string{"192.168.0.1", "10.0.1.2", "10.0.1.8", "8.8.8.8", "fd00::1"} {
					if n.send(spec.ID, d, netip.MustParseAddr(remote), model.TCP, 80, reading) {
						t.Errorf("%s: %s %s passes (%s)", when, d, remote, reading)
					}
				}
			}
		}
	}
	n.fake.After(func(op, _ string) error {
		if op == "CreateEndpoint" && !strings.Contains(n.fake.Dump(), "Block") {
			t.Error("the endpoint has no ACLs when it is made")
		}
		return nil
	})
	n.add(spec)
	n.fake.After(nil)
	closed("after the attachment")
	n.apply(&model.State{})
	closed("after a State that does not name it")
}

// TestNodeReachesItsPods checks the addresses of the node, including the host's address on the
// pods' network, which the State does not contain.
func TestNodeReachesItsPods(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	deny := &model.Row{Cells: []model.Decision{{}}}
	table := &model.Table{ID: model.TableID{1}, Sides: [2]model.Side{{Default: deny}, {Default: deny}}}
	n.apply(&model.State{Policy: model.PolicyState{Endpoints: map[model.EndpointID]model.EndpointState{spec.ID: {IPs: spec.IPs, Table: table.ID}}, Tables: map[model.TableID]*model.Table{table.ID: table}}})
	for remote, want := range map[string]bool{"192.168.0.1": true, "10.0.1.2": true, "192.168.0.2": false, "10.0.1.3": false} {
		if got := n.send(spec.ID, model.Ingress, netip.MustParseAddr(remote), model.TCP, 80, hns.Reading{}); got != want {
			t.Errorf("from %s: %t", remote, got)
		}
		if n.send(spec.ID, model.Egress, netip.MustParseAddr(remote), model.TCP, 80, hns.Reading{}) {
			t.Errorf("to %s: passes", remote)
		}
	}
}

// TestConfig checks the values one by one.
func TestConfig(t *testing.T) {
	for name, change := range map[string]func(*windows.Config){
		"mode":            func(c *windows.Config) { c.Mode = "nat" },
		"network name":    func(c *windows.Config) { c.Network = "a b" },
		"no range":        func(c *windows.Config) { c.PodCIDRs = nil },
		"host bits":       func(c *windows.Config) { c.PodCIDRs[0] = netip.MustParsePrefix("10.0.1.7/24") },
		"tiny range":      func(c *windows.Config) { c.PodCIDRs[0] = netip.MustParsePrefix("10.0.1.0/30") },
		"two IPv4 ranges": func(c *windows.Config) { c.PodCIDRs = append(c.PodCIDRs, netip.MustParsePrefix("10.0.2.0/24")) },
		"IPv6 on overlay": func(c *windows.Config) {
			c.Mode, c.VNI = windows.Overlay, 4096
			c.PodCIDRs = append(c.PodCIDRs, netip.MustParsePrefix("fd00:1::/64"))
		},
		"vni":                   func(c *windows.Config) { c.Mode, c.VNI = windows.Overlay, 1 },
		"vni of 17 bits":        func(c *windows.Config) { c.Mode, c.VNI = windows.Overlay, 65536 },
		"overlay without node":  func(c *windows.Config) { c.Mode, c.VNI, c.NodeAddresses = windows.Overlay, 4096, nil },
		"node address":          func(c *windows.Config) { c.NodeAddresses[0] = netip.MustParseAddr("127.0.0.1") },
		"exception's host bits": func(c *windows.Config) { c.OutboundNATExceptions[0] = netip.MustParsePrefix("10.0.0.1/8") },
		"call deadline":         func(c *windows.Config) { c.CallDeadline = -1 },
		"network wait":          func(c *windows.Config) { c.NetworkWait = -1 },
		"rules":                 func(c *windows.Config) { c.MaxRules = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			c := bridgeConfig()
			c.PodCIDRs, c.NodeAddresses, c.OutboundNATExceptions = slices.Clone(c.PodCIDRs), slices.Clone(c.NodeAddresses), slices.Clone(c.OutboundNATExceptions)
			change(&c)
			if _, err := windows.New(ctx, c, hnstest.NewFake(hns.Server2022), discard); err == nil {
				t.Error("was taken")
			}
		})
	}
	for _, v := range []hns.Version{{Major: 9, Minor: 1}, hns.Server2019} {
		c := bridgeConfig()
		c.PodCIDRs = append(slices.Clone(c.PodCIDRs), netip.MustParsePrefix("fd00:1::/64"))
		if _, err := windows.New(ctx, c, hnstest.NewFake(v), discard); err == nil || !strings.Contains(err.Error(), "hns") {
			t.Errorf("hns %s with IPv6: %v", v, err)
		}
	}
}

// TestNetwork checks that the network is created once, adopted afterwards, and never replaced.
func TestNetwork(t *testing.T) {
	for _, c := range []windows.Config{bridgeConfig(), overlayConfig()} {
		n := newNode(t, hns.Server2022, c)
		first := n.fake.Dump()
		n.start()
		n.start()
		if n.fake.Dump() != first || n.count("CreateNetwork") != 1 {
			t.Errorf("%s: starting again changes something:\n%s", c.Mode, n.fake.Dump())
		}
		t.Log("\n" + first)
		other := c
		other.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.9.0/24")}
		if _, err := windows.New(ctx, other, n.fake, discard); err == nil || !strings.Contains(err.Error(), "subnets") {
			t.Errorf("another range: %v", err)
		}
		other = bridgeConfig()
		if c.Mode == windows.L2Bridge {
			other = overlayConfig()
		}
		if _, err := windows.New(ctx, other, n.fake, discard); err == nil || !strings.Contains(err.Error(), "type") {
			t.Errorf("another mode: %v", err)
		}
	}
	vni := overlayConfig()
	n := newNode(t, hns.Server2022, vni)
	vni.VNI = 5000
	if _, err := windows.New(ctx, vni, n.fake, discard); err == nil || !strings.Contains(err.Error(), "vni") {
		t.Errorf("another vni: %v", err)
	}
	adapter := bridgeConfig()
	adapter.Adapter = "eth9"
	if _, err := windows.New(ctx, adapter, hnstest.NewFake(hns.Server2022), discard); !errors.Is(err, hns.ErrRefused) || !strings.Contains(err.Error(), "eth9") {
		t.Errorf("an adapter that is not there: %v", err)
	}
}

// TestTunnelAppearsLate checks that the backend waits for the tunnel, but not forever.
func TestTunnelAppearsLate(t *testing.T) {
	for late, warned := range map[int]bool{3: false, 1000: true} {
		n := &node{t: t, fake: hnstest.NewFake(hns.Server2022), config: overlayConfig()}
		n.fake.Late = late
		n.config.NetworkWait = 200 * time.Millisecond
		if !warned { // enough on a busy machine
			n.config.NetworkWait = 4 * time.Second
		}
		n.start()
		if got := strings.Contains(n.log.String(), "no tunnel address"); got != warned {
			t.Errorf("late by %d: warned %t", late, got)
		}
	}
}

// TestNetworkVanishes checks that Apply and AddEndpoint create the network again after HNS has lost
// everything.
func TestNetworkVanishes(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	list, _ := n.fake.Networks(ctx)
	if err := n.fake.DeleteNetwork(ctx, list[0].ID); err != nil {
		t.Fatal(err)
	}
	if found, err := n.backend.Endpoints(ctx); err != nil || len(found) > 0 {
		t.Errorf("%v, %v", found, err)
	}
	if err := n.backend.DeleteEndpoint(ctx, spec.ID); err != nil {
		t.Error(err)
	}
	n.add(spec)
	n.apply(&model.State{})
	if found, err := n.backend.Endpoints(ctx); err != nil || len(found) != 1 || len(found[0].Problems) > 0 {
		t.Errorf("%v, %v", found, err)
	}
}
