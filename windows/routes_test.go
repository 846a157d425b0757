// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// routes returns the routes of the network.
func (n *node) routes() []string {
	n.t.Helper()
	networks, err := n.fake.Networks(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	var all []string
	for _, p := range networks[0].Policies {
		var r hns.RemoteSubnetRoute
		if p.Is(hns.TypeRemoteSubnetRoute) && p.Decode(&r) == nil {
			all = append(all, fmt.Sprintf("%s %d %s %s", r.DestinationPrefix, r.IsolationID, r.ProviderAddress, r.DrMacAddress))
		}
	}
	slices.Sort(all)
	return all
}

func (n *node) wantRoutes(want ...string) {
	n.t.Helper()
	if got := n.routes(); !slices.Equal(got, want) {
		n.t.Errorf("routes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func peer(i int, os model.OS, mac string, ranges ...string) model.Route {
	r := model.Route{Node: fmt.Sprint("peer", i), OS: os, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 0, byte(i)})}}
	for _, p := range ranges {
		r.PodCIDRs = append(r.PodCIDRs, netip.MustParsePrefix(p))
	}
	if mac != "" {
		r.VTEP, _ = model.ParseMAC(mac)
	}
	return r
}

// TestRoutesFollowTheNodes checks routes while nodes join, move, change their ranges and leave.
// Changes by other processes are repaired, and nothing is written without need.
func TestRoutesFollowTheNodes(t *testing.T) {
	for _, profile := range hns.Profiles() {
		n := newNode(t, profile, overlayConfig())
		s := &model.State{Node: "node1", Fabric: model.FabricState{Routes: []model.Route{
			peer(2, model.Linux, "4e:5b:11:20:aa:01", "10.0.2.0/24", "fd00:2::/64"),
			peer(3, model.Windows, "00:15:5d:7a:11:03", "10.0.3.0/24"),
			peer(4, model.Windows, "", "10.0.4.0/24"), // a node that does not announce its tunnel address
		}}}
		n.apply(s)
		two, three := "10.0.2.0/24 4096 192.168.0.2 4E-5B-11-20-AA-01", "10.0.3.0/24 4096 192.168.0.3 00-15-5D-7A-11-03"
		// A Linux node speaks to pods by its own address through the tunnel.
		n.wantRoutes(two, three, "192.168.0.2/32 4096 192.168.0.2 4E-5B-11-20-AA-01")
		if !strings.Contains(n.log.String(), "peer4") {
			t.Errorf("the node that cannot be reached is not named:\n%s", n.log.String())
		}
		writes := n.count("ModifyNetwork")
		n.start() // a new agent finds no differences
		n.apply(s)
		if n.count("ModifyNetwork") != writes {
			t.Error("routes that were right were written again")
		}
		s.Fabric.Routes[2] = peer(4, model.Windows, "00:15:5d:7a:11:04", "10.0.4.0/24")
		s.Fabric.Routes[1] = peer(3, model.Windows, "00:15:5d:7a:11:33", "10.0.3.0/24", "10.0.33.0/24")
		s.Fabric.Routes = s.Fabric.Routes[1:]
		n.apply(s)
		n.wantRoutes("10.0.3.0/24 4096 192.168.0.3 00-15-5D-7A-11-33", "10.0.33.0/24 4096 192.168.0.3 00-15-5D-7A-11-33", "10.0.4.0/24 4096 192.168.0.4 00-15-5D-7A-11-04")
		good := n.routes()
		n.damageRoutes()
		if found, err := n.backend.Audit(ctx, s); err != nil || len(found) != 2 {
			t.Errorf("audit finds %v, %v", found, err)
		}
		n.apply(s)
		n.wantRoutes(good...)
	}
}

// damageRoutes removes a route and adds a stray one.
func (n *node) damageRoutes() {
	n.t.Helper()
	networks, err := n.fake.Networks(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, p := range networks[0].Policies {
		if !p.Is(hns.TypeRemoteSubnetRoute) {
			continue
		}
		if _, err := n.fake.ModifyNetwork(ctx, networks[0].ID, hns.Remove, p); err != nil {
			n.t.Fatal(err)
		}
		break
	}
	stray := hns.RemoteSubnetRoute{DestinationPrefix: "10.9.0.0/16", IsolationID: 4096, ProviderAddress: "192.168.0.9", DrMacAddress: "02-00-00-00-00-09"}
	if _, err := n.fake.ModifyNetwork(ctx, networks[0].ID, hns.Add, hns.MakePolicy(hns.TypeRemoteSubnetRoute, stray)); err != nil {
		n.t.Fatal(err)
	}
}

// TestRouteThatFails checks that a failed route does not prevent Apply, and is retried.
func TestRouteThatFails(t *testing.T) {
	n := newNode(t, hns.Server2022, overlayConfig())
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	s := peerState(spec, "10.0.3.3")
	s.Node, s.Fabric.Routes = "node1", []model.Route{peer(3, model.Windows, "00:15:5d:7a:11:03", "10.0.3.0/24")}
	fails := 1
	n.fake.Before(func(op, _ string) error {
		if op == "ModifyNetwork" && fails > 0 {
			fails--
			return hns.NewError(op, hns.CodeInvalidPolicy, "injected")
		}
		return nil
	})
	n.apply(s)
	n.wantRoutes()
	if !n.passes(spec.ID, "10.0.3.3") {
		t.Error("policy waits for a route")
	}
	if _, err := n.backend.Idle(ctx); err != nil {
		t.Fatal(err)
	}
	n.wantRoutes("10.0.3.0/24 4096 192.168.0.3 00-15-5D-7A-11-03")
}

// TestNodeInfo checks that the announcement is published as soon as HNS has the values.
func TestNodeInfo(t *testing.T) {
	c := overlayConfig()
	c.NetworkWait = time.Nanosecond
	n := &node{t: t, fake: hnstest.NewFake(hns.Server2022), config: c}
	n.fake.Blackout(math.MaxInt, "") // the clock of Windows is coarse: it may ask often
	n.fake.ManagementIP, n.fake.ManagementMAC = "192.168.0.77", "00-15-5D-7A-11-77"
	n.start()
	if said := n.backend.NodeInfo(); said != (model.NodeInfo{Fabric: "vxlan"}) {
		t.Errorf("announces %+v before the network has found its adapter", said)
	}
	n.fake.Blackout(4, "")
	for range 5 {
		if _, err := n.backend.Idle(ctx); err != nil {
			t.Fatal(err)
		}
	}
	want := model.NodeInfo{Fabric: "vxlan", VTEP: model.MAC{0x00, 0x15, 0x5d, 0x7a, 0x11, 0x77}, Tunnel: netip.MustParseAddr("192.168.0.77")}
	if said := n.backend.NodeInfo(); said != want {
		t.Errorf("announces %+v, want %+v", said, want)
	}
	if said := newNode(t, hns.Server2022, bridgeConfig()).backend.NodeInfo(); said != (model.NodeInfo{Fabric: "routes"}) {
		t.Errorf("l2bridge announces %+v", said)
	}
}
