// SPDX-License-Identifier: Apache-2.0

package hostfabric_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hostfabric"
	"github.com/isthmus-net/isthmus/windows/hostroute"
)

var ctx = context.Background()

// lab is a host with the component. Its file survives restarts.
type lab struct {
	t    *testing.T
	host *host
	cfg  hostfabric.Config
	*hostfabric.HostFabric
	now time.Time
}

func newLab(t *testing.T, mode fabric.Mode) *lab {
	h := newHost()
	l := &lab{t: t, host: h, now: time.Now(), cfg: hostfabric.Config{Mode: mode, PodCIDRs: prefixes("10.0.1.0/24", "fd00:1::/64"),
		Gateways: addresses("10.0.1.2", "fd00:1::2"), File: filepath.Join(t.TempDir(), "forwarding.json"), Stack: h}}
	l.restart()
	return l
}

// restart starts a new agent.
func (l *lab) restart() {
	l.HostFabric = hostfabric.New(l.cfg, dataplane.Host{Log: slog.New(slog.DiscardHandler), Step: func(string) {}, Repaired: func(string) {}})
}

// state returns the State of node1 with peers.
func state(peers ...model.Route) *model.State {
	return &model.State{Node: "node1", Fabric: model.FabricState{NodeAddresses: addresses("192.168.0.1", "fd00:ffff::1"), Routes: peers}}
}

func peer(i int, ranges ...string) model.Route {
	return model.Route{Node: fmt.Sprint("node", i), OS: model.Linux, Addresses: addresses(fmt.Sprintf("192.168.0.%d", i), fmt.Sprintf("fd00:ffff::%d", i)), PodCIDRs: prefixes(ranges...)}
}

func (l *lab) apply(s *model.State) {
	l.t.Helper()
	if _, err := l.Apply(ctx, s); err != nil {
		l.t.Fatal(err)
	}
}

// later lets one audit interval pass.
func (l *lab) later() {
	l.t.Helper()
	l.now = l.now.Add(10 * time.Second)
	if err := l.Sync(ctx, l.now); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) repairs() uint64 {
	var c dataplane.Counters
	if err := l.Count(&c); err != nil {
		l.t.Fatal(err)
	}
	return c.Repairs
}

func (l *lab) wantRoutes(want ...string) {
	l.t.Helper()
	if got := l.host.pods(); !slices.Equal(got, want) {
		l.t.Errorf("routes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func (l *lab) wantFact(want string) {
	l.t.Helper()
	if !slices.Contains(l.Facts(), want) {
		l.t.Errorf("facts %q, want %q", l.Facts(), want)
	}
}

func (l *lab) wantProblem(parts ...string) {
	l.t.Helper()
	for _, p := range parts {
		if !strings.Contains(strings.Join(l.Problems(), "\n"), p) {
			l.t.Errorf("problems %q, want %q", l.Problems(), p)
		}
	}
	if len(parts) == 0 && len(l.Problems()) > 0 {
		l.t.Errorf("problems %q", l.Problems())
	}
}

const (
	route2   = "10.0.2.0/24 by 192.168.0.2 on 9"
	route2v6 = "fd00:2::/64 by fd00:ffff::2 on 9"
	route3   = "10.0.3.0/24 by 192.168.0.3 on 9"
	allFlags = "IPv4 vEthernet (Ethernet), IPv4 vEthernet (isthmus_ep), IPv6 vEthernet (Ethernet), IPv6 vEthernet (isthmus_ep)"
)

// TestRoutesFollowNodes checks routes while nodes join and leave. Forwarding is on only for the two
// interfaces of pod traffic, and nothing is written without need.
func TestRoutesFollowNodes(t *testing.T) {
	l := newLab(t, fabric.Auto)
	l.apply(state(peer(2, "10.0.2.0/24", "fd00:2::/64"), peer(3, "10.0.3.0/24")))
	l.wantRoutes(route2, route3, route2v6)
	l.wantFact("fabric routes: 3 of 3 in force, forwarding on")
	l.wantFact(`uplink MTU: 1500 on "vEthernet (Ethernet)"; HNS itself chooses that of pods`)
	l.wantProblem()
	if got := l.host.forwarding(); got != allFlags {
		t.Errorf("forwarding on %s", got)
	}
	writes := len(l.host.writes)
	l.later()
	l.restart()
	s := state(peer(2, "10.0.2.0/24", "fd00:2::/64"), peer(3, "10.0.3.0/24"))
	l.apply(s)
	l.apply(s)
	l.later()
	if found, err := l.Audit(ctx, s); err != nil || len(found) > 0 || len(l.host.writes) != writes || l.repairs() != 0 {
		t.Errorf("audit %v, %v; writes %q, %d repairs", found, err, l.host.writes[writes:], l.repairs())
	}
	l.apply(state(peer(3, "10.0.3.0/24")))
	l.wantRoutes(route3)
	if l.repairs() != 0 {
		t.Error("a change of nodes counts as a repair")
	}
}

// TestAudit checks that a deleted route and disabled forwarding are found, repaired within one
// interval, and counted. So is a stray route of ours.
func TestAudit(t *testing.T) {
	l := newLab(t, fabric.Auto)
	s := state(peer(2, "10.0.2.0/24"), peer(3, "10.0.3.0/24"))
	l.apply(s)
	l.host.routes = slices.DeleteFunc(l.host.routes, func(r hostroute.Route) bool { return r.Destination.String() == "10.0.2.0/24" })
	l.host.named(gateway).Forwarding[hostroute.IPv4] = false
	l.host.route("10.0.9.0/24", "192.168.0.9", uplinkIndex, hostfabric.Metric, hostroute.NetMgmt)
	found, err := l.Audit(ctx, s)
	if text := fmt.Sprint(found); err != nil || len(found) != 3 || !strings.Contains(text, "missing: 10.0.2.0/24") || !strings.Contains(text, "stray: 10.0.9.0/24") ||
		!strings.Contains(text, "IPv4 forwarding of interface \"vEthernet (isthmus_ep)\" is off") {
		t.Errorf("audit %v, %v", found, err)
	}
	if err := l.Sync(ctx, l.now); err != nil { // immediately, because the audit found a difference
		t.Fatal(err)
	}
	l.wantRoutes(route2, route3)
	l.wantFact("fabric routes: 2 of 2 in force, forwarding on")
	if l.repairs() != 3 || l.host.forwarding() != allFlags {
		t.Errorf("%d repairs, forwarding on %s", l.repairs(), l.host.forwarding())
	}
	l.host.named(uplink).Forwarding[hostroute.IPv6] = false
	l.later()
	if l.repairs() != 4 || l.host.forwarding() != allFlags {
		t.Errorf("%d repairs, forwarding on %s", l.repairs(), l.host.forwarding())
	}
}

// TestForeignRoutes checks that a route of another program stays and is reported, unless it leads
// to the same node.
func TestForeignRoutes(t *testing.T) {
	l := newLab(t, fabric.Auto)
	l.host.route("10.0.2.0/24", "192.168.0.77", uplinkIndex, 1, hostroute.NetMgmt)
	l.host.route("10.0.3.0/24", "192.168.0.3", uplinkIndex, 256, 10006) // route -p add
	l.apply(state(peer(2, "10.0.2.0/24"), peer(3, "10.0.3.0/24")))
	l.wantRoutes("10.0.2.0/24 by 192.168.0.77 on 9", route3)
	l.wantFact("fabric routes: 1 of 2 in force, forwarding on")
	l.wantProblem("route to 10.0.2.0/24 by 192.168.0.77 on interface 9 belongs to another process and stays: pods of node node2")
	if len(l.Problems()) != 1 {
		t.Errorf("problems %q", l.Problems())
	}
	l.host.routes = slices.DeleteFunc(l.host.routes, func(r hostroute.Route) bool { return r.NextHop.String() == "192.168.0.77" })
	l.later()
	l.wantRoutes(route2, route3)
	l.wantProblem()
}

// TestNextHopBeyondTheSegment checks that auto reports such a node, that routes ignores it, and
// that neither adds a route.
func TestNextHopBeyondTheSegment(t *testing.T) {
	far := peer(5, "10.0.5.0/24")
	far.Addresses = addresses("198.51.100.5")
	l := newLab(t, fabric.Auto)
	l.apply(state(peer(2, "10.0.2.0/24"), far))
	l.wantRoutes(route2)
	l.wantProblem("pod range 10.0.5.0/24 of node node5 cannot be reached: 198.51.100.5 is on no segment of this node")
	l = newLab(t, fabric.Routes)
	l.apply(state(peer(2, "10.0.2.0/24"), far))
	l.wantRoutes(route2)
	l.wantProblem()
}

// TestSeveralUplinks checks that a node with addresses on two segments uses the one that has the
// next hop, and forwards on both.
func TestSeveralUplinks(t *testing.T) {
	l := newLab(t, fabric.Auto)
	near := peer(3, "10.0.3.0/24")
	near.Addresses = addresses("172.16.0.3")
	s := state(peer(2, "10.0.2.0/24"), near)
	s.Fabric.NodeAddresses = append(s.Fabric.NodeAddresses, addresses("172.16.0.1")...)
	l.apply(s)
	l.wantRoutes(route2, "10.0.3.0/24 by 172.16.0.3 on 15")
	if got := l.host.forwarding(); !strings.Contains(got, "IPv4 "+second) || strings.Contains(got, "Loopback") {
		t.Errorf("forwarding on %s", got)
	}
}

// TestInterfacesComeLater checks the time in which HNS rebinds the adapter. First no interface has
// the node's addresses, then another one. Installed routes stay meanwhile only if their interface
// stays.
func TestInterfacesComeLater(t *testing.T) {
	l := newLab(t, fabric.Auto)
	was := *l.host.named(uplink)
	ep := *l.host.named(gateway)
	l.host.named(uplink).Addresses, l.host.named(gateway).Addresses = nil, nil
	l.apply(state(peer(2, "10.0.2.0/24")))
	l.wantRoutes()
	l.wantProblem("no interface of this host has an address of its Node object", "no interface of this host has 10.0.1.2, the next hop of its pods")
	l.wantFact("fabric routes: 0 of 0 in force, forwarding off")
	was.Index = 21
	*l.host.named(uplink), *l.host.named(gateway) = was, ep
	l.later()
	l.wantRoutes("10.0.2.0/24 by 192.168.0.2 on 21")
	l.wantProblem()
}

// TestUninstall checks that our routes are removed, and that forwarding is as before the first
// agent.
func TestUninstall(t *testing.T) {
	l := newLab(t, fabric.Auto)
	l.host.named(uplink).Forwarding[hostroute.IPv4] = true
	l.host.route("10.99.0.0/16", "192.168.0.9", uplinkIndex, 5, hostroute.NetMgmt)
	l.apply(state(peer(2, "10.0.2.0/24", "fd00:2::/64")))
	l.restart()
	l.apply(state(peer(2, "10.0.2.0/24", "fd00:2::/64")))
	if got := l.host.forwarding(); got != allFlags {
		t.Errorf("forwarding on %s", got)
	}
	for range 2 { // nothing left is not an error
		if err := hostfabric.Remove(l.host, l.cfg.File); err != nil {
			t.Fatal(err)
		}
	}
	l.wantRoutes("10.99.0.0/16 by 192.168.0.9 on 9")
	if got := l.host.forwarding(); got != "IPv4 "+uplink {
		t.Errorf("forwarding on %s", got)
	}
	if _, err := os.Stat(l.cfg.File); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
}

// TestNone checks the mode none: the routes of an agent with another mode are removed.
func TestNone(t *testing.T) {
	l := newLab(t, fabric.Auto)
	l.apply(state(peer(2, "10.0.2.0/24")))
	l.cfg.Mode = fabric.None
	l.restart()
	l.host.named(second).Forwarding[hostroute.IPv4] = true
	l.apply(state(peer(2, "10.0.2.0/24")))
	l.wantRoutes()
	l.wantProblem()
	l.wantFact("fabric routes: left to others (--fabric=none)")
	if got := l.host.forwarding(); got != "IPv4 "+second {
		t.Errorf("forwarding on %s", got)
	}
}

// TestOverlay checks that the host gets no routes, and that an MTU without room for the header is
// reported.
func TestOverlay(t *testing.T) {
	l := newLab(t, fabric.Auto)
	l.cfg.Overlay, l.cfg.Gateways = true, nil
	l.restart()
	l.apply(state(peer(2, "10.0.2.0/24")))
	l.wantRoutes()
	l.wantProblem()
	if len(l.host.writes) > 0 {
		t.Errorf("writes %q", l.host.writes)
	}
	l.host.named(uplink).MTU = 1460
	l.later()
	l.wantProblem(`warning: fabric: MTU 1460 of interface "vEthernet (Ethernet)" is too small: HNS gives pods of overlay networks 1450 bytes and adds 50 of VXLAN: set it to 1500`)
}

// TestFailures checks that a failure is a problem that names the object, and that it is retried.
// The installed routes stay.
func TestFailures(t *testing.T) {
	for name, c := range map[string]struct {
		fail func(*host)
		want string
	}{
		"refused":    {func(h *host) { h.refuses = errBusy }, "add the route to 10.0.3.0/24 by 192.168.0.3 on interface 9: busy"},
		"lost":       {func(h *host) { h.lies = true }, "Windows accepted the route to 10.0.3.0/24 by 192.168.0.3 on interface 9 but does not list it"},
		"unreadable": {func(h *host) { h.unreadable = errBusy }, "read the host's routes: busy"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, fabric.Auto)
			l.apply(state(peer(2, "10.0.2.0/24")))
			c.fail(l.host)
			l.apply(state(peer(2, "10.0.2.0/24"), peer(3, "10.0.3.0/24")))
			l.wantRoutes(route2)
			l.wantProblem(c.want)
			l.host.refuses, l.host.unreadable, l.host.lies = nil, nil, false
			l.later()
			l.wantRoutes(route2, route3)
			l.wantProblem()
			if l.repairs() != 0 {
				t.Error("a retry counts as a repair")
			}
		})
	}
}

// TestUnwritableFile checks that forwarding is not turned on if that cannot be recorded, because an
// uninstallation could not turn it off.
func TestUnwritableFile(t *testing.T) {
	l := newLab(t, fabric.Auto)
	if err := os.Mkdir(l.cfg.File+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	l.apply(state(peer(2, "10.0.2.0/24")))
	l.wantProblem("note forwarding flags: ")
	if got := l.host.forwarding(); got != "" {
		t.Errorf("forwarding on %s", got)
	}
	l.wantFact("fabric routes: 1 of 1 in force, forwarding off")
}

// TestDamagedFile checks that a file that a power cut has damaged is reported, also later, and does not keep forwarding off. What it
// noted ended with the host. An uninstallation reports it, and can be repeated.
func TestDamagedFile(t *testing.T) {
	for _, text := range []string{"", "{", "\x00\x00"} {
		l := newLab(t, fabric.Auto)
		damage := func() {
			if err := os.WriteFile(l.cfg.File, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		damage()
		l.apply(state(peer(2, "10.0.2.0/24")))
		for range 2 {
			l.wantProblem(l.cfg.File + " is damaged, and is now " + l.cfg.File + ".broken")
			if got := l.host.forwarding(); got != allFlags {
				t.Errorf("forwarding on %q", got)
			}
			l.later()
		}
		if l.repairs() != 0 {
			t.Error("a repair is counted")
		}
		l.restart()
		l.apply(state(peer(2, "10.0.2.0/24")))
		l.wantProblem()
		damage()
		if err := hostfabric.Remove(l.host, l.cfg.File); err == nil || !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("uninstall: %v", err)
		}
		l.wantRoutes()
		if err := hostfabric.Remove(l.host, l.cfg.File); err != nil {
			t.Errorf("uninstall again: %v", err)
		}
		if left, err := filepath.Glob(l.cfg.File + "*"); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
}
