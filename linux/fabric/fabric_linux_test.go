// SPDX-License-Identifier: Apache-2.0

package fabric_test

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/dataplane"
	plan "github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/fabric"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/netns"
)

// host is a node with the uplink eth0 on the segment 192.168.9.0/24. Its pods are in 10.1.0.0/24.
type host struct {
	*fabric.Fabric
	t        *testing.T
	ns       *netns.NS
	clock    time.Time
	repaired []string
}

var (
	near = model.Route{Node: "near", OS: model.Linux, Addresses: addrs("192.168.9.2", "fd99::2"), PodCIDRs: prefixes("10.2.0.0/24", "fd02::/64")}
	far  = model.Route{Node: "far", OS: model.Linux, Addresses: addrs("192.168.77.3", "fd77::3"), PodCIDRs: prefixes("10.3.0.0/24", "fd03::/64")}
)

func newHost(t *testing.T, mode plan.Mode) *host {
	t.Helper()
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	h := &host{t: t, ns: netns.ForTest(t), clock: time.Now()}
	segment := netns.ForTest(t)
	if err := netns.Connect(netns.End{NS: h.ns, Name: "eth0"}, netns.End{NS: segment, Name: "eth0"}); err != nil {
		t.Fatal(err)
	}
	h.do(func() error { return netns.AddAddresses("eth0", prefixes("192.168.9.1/24", "fd99::1/64")...) })
	if err := segment.Do(func() error { return netns.AddAddresses("eth0", prefixes("192.168.9.2/24", "fd99::2/64")...) }); err != nil {
		t.Fatal(err)
	}
	cfg := plan.Defaults()
	cfg.Mode = mode
	h.Fabric = fabric.New(cfg, "eth0", dataplane.Host{Log: slog.New(slog.DiscardHandler), Step: func(string) {},
		Repaired: func(what string) { h.repaired = append(h.repaired, what) }})
	return h
}

// do calls f in the namespace of the node.
func (h *host) do(f func() error) {
	h.t.Helper()
	if err := h.ns.Do(f); err != nil {
		h.t.Fatal(err)
	}
}

// apply applies a State with the other nodes.
func (h *host) apply(others ...model.Route) {
	h.t.Helper()
	s := &model.State{Node: "self"}
	s.Fabric.PodCIDRs, s.Fabric.NodeAddresses, s.Fabric.Routes = prefixes("10.1.0.0/24", "fd01::/64"), addrs("192.168.9.1", "fd99::1"), others
	h.do(func() error {
		_, err := h.Apply(h.t.Context(), s)
		return err
	})
}

// audit lets the time of the next comparison pass.
func (h *host) audit() {
	h.t.Helper()
	h.clock = h.clock.Add(time.Minute)
	h.do(func() error { return h.Sync(h.t.Context(), h.clock) })
}

// routes returns the routes of Isthmus in the main table, without those of its own pods.
func (h *host) routes() (all []string) {
	h.t.Helper()
	h.do(func() error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			list, err := link.Whole(func() ([]netlink.Route, error) {
				return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN, Protocol: link.RouteProtocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
			})
			if err != nil {
				return err
			}
			for _, r := range list {
				if r.Type == unix.RTN_UNREACHABLE {
					continue
				}
				device, err := netlink.LinkByIndex(r.LinkIndex)
				if err != nil {
					return err
				}
				all = append(all, fmt.Sprintf("%s via %s %s", r.Dst, r.Gw, device.Attrs().Name))
			}
		}
		return nil
	})
	slices.Sort(all)
	return all
}

func (h *host) wantRoutes(when string, want ...string) {
	h.t.Helper()
	if got := h.routes(); !slices.Equal(got, want) {
		h.t.Errorf("%s: routes\n%s\nwant\n%s", when, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func (h *host) wantProblem(when, part string) {
	h.t.Helper()
	if got := h.Problems(); part == "" && len(got) > 0 || part != "" && !strings.Contains(strings.Join(got, "\n"), part) {
		h.t.Errorf("%s: problems %q, want %q", when, got, part)
	}
}

// TestReconcile adds and removes nodes on the segment and behind a router. Another process removes a route,
// and the device of the tunnels: the next comparison repairs both.
func TestReconcile(t *testing.T) {
	h := newHost(t, plan.Auto)
	h.apply(near, far)
	both := []string{"10.2.0.0/24 via 192.168.9.2 eth0", "10.3.0.0/24 via 10.3.0.0 isthmus-vxlan", "fd02::/64 via fd99::2 eth0", "fd03::/64 via fd03:: isthmus-vxlan"}
	h.wantRoutes("with both nodes", both...)
	h.wantProblem("with both nodes", "")
	h.audit()
	if len(h.repaired) > 0 {
		t.Errorf("an audit without a change repaired %q", h.repaired)
	}
	h.do(func() error {
		if err := netlink.RouteDel(&netlink.Route{Dst: ipNet("10.2.0.0/24")}); err != nil {
			return err
		}
		return netns.Remove("isthmus-vxlan")
	})
	h.audit()
	h.wantRoutes("after repair", both...)
	if len(h.repaired) == 0 {
		t.Error("the repairs were not counted")
	}
	h.apply(near)
	h.wantRoutes("without the far node", "10.2.0.0/24 via 192.168.9.2 eth0", "fd02::/64 via fd99::2 eth0")
	h.apply()
	h.wantRoutes("alone")
}

// TestForeignRoute checks that a route of another process stays, is reported, and is replaced once it is gone.
func TestForeignRoute(t *testing.T) {
	h := newHost(t, plan.Routes)
	foreign := &netlink.Route{Dst: ipNet("10.2.0.0/24"), Gw: netip.MustParseAddr("192.168.9.3").AsSlice()}
	h.do(func() error { return netlink.RouteAdd(foreign) })
	h.apply(near)
	h.wantRoutes("beside a foreign route", "fd02::/64 via fd99::2 eth0")
	h.wantProblem("beside a foreign route", "10.2.0.0/24")
	h.do(func() error { return netlink.RouteDel(foreign) })
	h.audit()
	h.wantRoutes("without it", "10.2.0.0/24 via 192.168.9.2 eth0", "fd02::/64 via fd99::2 eth0")
	h.wantProblem("without it", "")
}

// TestOverlap checks that neither of two nodes with overlapping ranges gets a route to them.
// TestForeignTunnel checks that replies to a node take no tunnel of Isthmus while another process has the route to its
// pods: the node may have no such tunnel.
func TestForeignTunnel(t *testing.T) {
	h := newHost(t, plan.VXLAN)
	h.do(func() error {
		if err := netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "flannel.1"}, VxlanId: 1, Port: 8472, SrcAddr: []byte{192, 168, 9, 1}}); err != nil {
			return err
		}
		l, err := netlink.LinkByName("flannel.1")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet("10.3.0.0/24"), Gw: []byte{10, 3, 0, 0}, Flags: int(netlink.FLAG_ONLINK)})
	})
	h.apply(far)
	h.wantRoutes("beside a foreign tunnel", "fd03::/64 via fd03:: isthmus-vxlan")
	h.wantProblem("beside a foreign tunnel", "10.3.0.0/24")
	h.wantReturns("beside a foreign tunnel", "fd77::3/128")
	h.audit()
	h.wantReturns("after an audit", "fd77::3/128")
	h.do(func() error { return netns.Remove("flannel.1") })
	h.audit()
	h.wantRoutes("without it", "10.3.0.0/24 via 10.3.0.0 isthmus-vxlan", "fd03::/64 via fd03:: isthmus-vxlan")
	h.wantReturns("without it", "192.168.77.3/32", "fd77::3/128")
}

// wantReturns compares the destinations in the table of returns.
func (h *host) wantReturns(when string, want ...string) {
	h.t.Helper()
	var got []string
	h.do(func() error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			list, err := link.Whole(func() ([]netlink.Route, error) {
				return netlink.RouteListFiltered(family, &netlink.Route{Table: 7300}, netlink.RT_FILTER_TABLE)
			})
			if err != nil {
				return err
			}
			for _, r := range list {
				got = append(got, r.Dst.String())
			}
		}
		return nil
	})
	slices.Sort(got)
	if !slices.Equal(got, want) {
		h.t.Errorf("%s: routes of returns %q, want %q", when, got, want)
	}
}

func TestOverlap(t *testing.T) {
	h := newHost(t, plan.Auto)
	thief := far
	thief.PodCIDRs = prefixes("10.2.0.0/16", "fd03::/64")
	h.apply(near, thief)
	h.wantRoutes("with overlapping ranges", "fd02::/64 via fd99::2 eth0", "fd03::/64 via fd03:: isthmus-vxlan")
	h.wantProblem("with overlapping ranges", "10.2.0.0/16")
}

// TestMissingUplink checks that a missing uplink is a problem, and that its return ends the problem.
func TestMissingUplink(t *testing.T) {
	h := newHost(t, plan.Routes)
	h.apply(near)
	h.rename("eth0", "away")
	h.audit()
	h.wantProblem("without the uplink", "eth0")
	h.rename("away", "eth0")
	h.audit()
	h.wantProblem("with the uplink", "")
	h.wantRoutes("with the uplink", "10.2.0.0/24 via 192.168.9.2 eth0", "fd02::/64 via fd99::2 eth0")
}

// rename gives an interface another name. A running interface can be renamed since Linux 6.2; this also works
// before, and removes its IPv6 addresses and its routes.
func (h *host) rename(from, to string) {
	h.t.Helper()
	h.do(func() error {
		l, err := netlink.LinkByName(from)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetDown(l); err != nil {
			return err
		}
		if err := netlink.LinkSetName(l, to); err != nil {
			return err
		}
		return netns.AddAddresses(to, prefixes("192.168.9.1/24", "fd99::1/64")...)
	})
}

func ipNet(text string) *net.IPNet { return netipx.PrefixIPNet(netip.MustParsePrefix(text)) }

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}
