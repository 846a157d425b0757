// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
)

// returnTable is the routing table for packets from pods to other nodes across tunnels, and
// returnPriority that of the rules that select it.
const (
	returnTable    = 7300
	returnPriority = 7300
)

// route is the content of one of our routes.
type route struct {
	table  int
	prefix netip.Prefix
	// index is the interface; 0 for an unreachable route.
	index  int
	via    netip.Addr
	source netip.Addr
	// node is the node to which a route of returns leads, or whose pods have the prefix; "" is this one.
	node string
}

// wantedRoutes lists the routes of a plan. tunnel is the index of the tunnel device, 0 without
// one.
func wantedRoutes(p *fabric.Plan, uplink Uplink, tunnel int) []route {
	var all []route
	for _, h := range p.Hops {
		r := route{table: unix.RT_TABLE_MAIN, prefix: h.Prefix, index: uplink.Index, via: h.Underlay, node: h.Node}
		if h.Via == fabric.VXLAN {
			if tunnel == 0 {
				continue
			}
			r.index, r.via = tunnel, h.Gateway()
			// Nodes send from their underlay address on every route, because policies for nodes
			// and address blocks refer to it.
			for _, s := range p.Tunnel.Sources {
				if s.Is6() == h.Prefix.Addr().Is6() {
					r.source = s
				}
			}
		}
		all = append(all, r)
	}
	for _, c := range p.Own {
		all = append(all, route{table: unix.RT_TABLE_MAIN, prefix: c})
	}
	if tunnel != 0 {
		for _, h := range p.Returns {
			all = append(all, route{table: returnTable, prefix: h.Prefix, index: tunnel, node: h.Node})
		}
	}
	return all
}

func (r route) netlink() *netlink.Route {
	n := &netlink.Route{Dst: netipx.PrefixIPNet(r.prefix), Table: r.table, Protocol: link.RouteProtocol, LinkIndex: r.index}
	switch {
	case r.index == 0:
		n.Type = unix.RTN_UNREACHABLE
	case r.via.IsValid():
		n.Gw, n.Flags = r.via.AsSlice(), int(netlink.FLAG_ONLINK)
	default:
		n.Scope = netlink.SCOPE_LINK
	}
	if r.source.IsValid() {
		n.Src = r.source.AsSlice()
	}
	return n
}

// is reports whether a route of the system equals this one.
func (r route) is(n netlink.Route) bool {
	via, _ := netip.AddrFromSlice(n.Gw)
	source, _ := netip.AddrFromSlice(n.Src)
	if r.index == 0 {
		return n.Type == unix.RTN_UNREACHABLE
	}
	return n.Type == unix.RTN_UNICAST && n.LinkIndex == r.index && via.Unmap() == r.via && source.Unmap() == r.source
}

// isOurs reports whether a route belongs to the fabric. Routes to pods of this node have
// neither a gateway nor their own table.
func isOurs(n netlink.Route) bool {
	return n.Protocol == link.RouteProtocol && (n.Table == returnTable || len(n.Gw) > 0 || n.Type == unix.RTN_UNREACHABLE)
}

// routes reconciles the fabric's routes. If another process has a route to the same range, it
// stays, and ours is not added. Such a node may have no tunnel of ours, so there is no route of
// returns through the tunnel either.
func (c *changes) routes(want []route) {
	type key struct {
		table  int
		prefix netip.Prefix
	}
	have, foreign := make(map[key][]netlink.Route), make(map[key]netlink.Route)
	for _, family := range families {
		for _, table := range []int{unix.RT_TABLE_MAIN, returnTable} {
			found, err := link.Whole(func() ([]netlink.Route, error) {
				return netlink.RouteListFiltered(family, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
			})
			if err != nil {
				c.fail(fmt.Errorf("list routes: %w", err))
				return // without a list, no route may be judged
			}
			for _, r := range found {
				p, ok := prefixOf(r.Dst)
				k := key{table, p}
				switch {
				case ok && isOurs(r):
					have[k] = append(have[k], r)
				case ok:
					foreign[k] = r
				}
			}
		}
	}
	type peer struct {
		node string
		v6   bool
	}
	others := make(map[peer]bool) // nodes whose pods are reached by routes of another process
	for _, r := range want {
		k := key{r.table, r.prefix}
		if r.table == returnTable && others[peer{r.node, isIPv6(r.prefix)}] {
			continue
		}
		if f, ok := foreign[k]; ok && f.Protocol != link.RouteProtocol {
			c.foreign[r.prefix], others[peer{r.node, isIPv6(r.prefix)}] = true, true
			c.fail(fmt.Errorf("route to %s by interface %d, protocol %s, belongs to another process and stays: pods there may be unreachable; remove it or give the node another range", r.prefix, f.LinkIndex, f.Protocol))
			continue
		}
		ours := have[k]
		delete(have, k)
		if i := slices.IndexFunc(ours, r.is); i >= 0 {
			ours = slices.Delete(ours, i, i+1)
		} else {
			ours = c.setRoute(r, ours)
		}
		c.dropRoutes(ours)
	}
	for _, ours := range have {
		c.dropRoutes(ours)
	}
}

// setRoute sets a route in place of the current ones, and returns those that remain: the kernel
// replaces only one. IPv6 rejects a next hop that an older route directs to another device, so
// that route must go first.
func (c *changes) setRoute(r route, ours []netlink.Route) (left []netlink.Route) {
	err := netlink.RouteReplace(r.netlink())
	if errors.Is(err, unix.EINVAL) && len(ours) > 0 {
		c.dropRoutes(ours)
		ours, err = nil, netlink.RouteReplace(r.netlink())
	}
	c.do(fmt.Sprintf("set route to %s", r.prefix), err)
	return ours[min(1, len(ours)):]
}

func (c *changes) dropRoutes(all []netlink.Route) {
	for _, r := range all {
		err := netlink.RouteDel(&r)
		if errors.Is(err, unix.ESRCH) {
			err = nil // it disappeared with its interface
		}
		c.do(fmt.Sprintf("remove route to %s", r.Dst), err)
	}
}

// rules makes packets of the node's pods use the table of returns first.
func (c *changes) rules(sources []netip.Prefix) {
	for _, family := range families {
		have, err := link.Whole(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
		if err != nil {
			c.fail(fmt.Errorf("list routing rules: %w", err))
			continue
		}
		missing := make(map[netip.Prefix]bool)
		for _, s := range sources {
			if s.Addr().Is6() == (family == netlink.FAMILY_V6) {
				missing[s] = true
			}
		}
		for _, r := range have {
			if r.Protocol != uint8(link.RouteProtocol) {
				continue
			}
			src, _ := prefixOf(r.Src)
			if missing[src] && r.Table == returnTable && r.Priority == returnPriority {
				delete(missing, src)
				continue
			}
			c.do(fmt.Sprintf("remove routing rule for %s", src), netlink.RuleDel(&r))
		}
		for s := range missing {
			r := netlink.NewRule()
			r.Family, r.Src, r.Table, r.Priority, r.Protocol = family, netipx.PrefixIPNet(s), returnTable, returnPriority, uint8(link.RouteProtocol)
			c.do(fmt.Sprintf("set routing rule for %s", s), netlink.RuleAdd(r))
		}
	}
}

// hopsByTunnel returns the hops, to pods and to nodes, that need neighbours.
func hopsByTunnel(p *fabric.Plan) []fabric.Hop {
	hops := slices.Clone(p.Returns)
	for _, h := range p.Hops {
		if h.Via == fabric.VXLAN {
			hops = append(hops, h)
		}
	}
	return hops
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	return netipx.FromStdIPNet(n)
}

func macOf(hw net.HardwareAddr) model.MAC {
	if len(hw) != 6 {
		return model.MAC{}
	}
	return model.MAC(hw)
}
