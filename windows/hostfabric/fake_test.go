// SPDX-License-Identifier: Apache-2.0

package hostfabric_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/windows/hostroute"
)

// host is the IP stack of a Windows host. It refuses the same routes as Windows: a second one with
// the same destination, next hop and interface, and one whose next hop is on no segment of the
// interface.
type host struct {
	routes     []hostroute.Route
	interfaces []hostroute.Interface
	writes     []string
	// refuses makes every write fail, and unreadable every read; lies makes writes succeed without
	// effect.
	refuses, unreadable error
	lies                bool
}

var errBusy = errors.New("busy")

// Aliases and indices of the host's interfaces.
const (
	uplink, gateway, second    = "vEthernet (Ethernet)", "vEthernet (isthmus_ep)", "vEthernet (Storage)"
	uplinkIndex, gatewayIndex  = 9, 12
	secondIndex, loopbackIndex = 15, 1
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

func addresses(texts ...string) (all []netip.Addr) {
	for _, t := range texts {
		all = append(all, netip.MustParseAddr(t))
	}
	return all
}

// newHost returns the host of node1 as HNS leaves it: with the routes of its links, and forwarding
// off.
func newHost() *host {
	h := &host{interfaces: []hostroute.Interface{
		{Index: loopbackIndex, Name: "Loopback Pseudo-Interface 1", MTU: 65535, Addresses: prefixes("127.0.0.1/8", "::1/128")},
		{Index: uplinkIndex, Name: uplink, MTU: 1500, Addresses: prefixes("192.168.0.1/24", "fd00:ffff::1/64", "fe80::1/64")},
		{Index: gatewayIndex, Name: gateway, MTU: 1500, Addresses: prefixes("10.0.1.2/24", "fd00:1::2/64", "fe80::2/64")},
		{Index: secondIndex, Name: second, MTU: 9000, Addresses: prefixes("172.16.0.1/24")},
	}}
	h.route("0.0.0.0/0", "192.168.0.254", uplinkIndex, 25, hostroute.NetMgmt)
	for _, l := range []struct {
		to    string
		index uint32
	}{{"192.168.0.0/24", uplinkIndex}, {"10.0.1.0/24", gatewayIndex}, {"172.16.0.0/24", secondIndex}} {
		h.route(l.to, "0.0.0.0", l.index, 256, 2)
	}
	return h
}

// route adds a route as another program would.
func (h *host) route(to, hop string, index, metric, protocol uint32) {
	h.routes = append(h.routes, hostroute.Route{Destination: netip.MustParsePrefix(to), NextHop: netip.MustParseAddr(hop), Interface: index, Metric: metric, Protocol: protocol})
}

func (h *host) named(name string) *hostroute.Interface {
	i := slices.IndexFunc(h.interfaces, func(i hostroute.Interface) bool { return i.Name == name })
	return &h.interfaces[i]
}

// pods returns the routes with a next hop as text, without the default route.
func (h *host) pods() []string {
	var all []string
	for _, r := range h.routes {
		if r.Destination.Bits() > 0 && !r.NextHop.IsUnspecified() {
			all = append(all, fmt.Sprintf("%s by %s on %d", r.Destination, r.NextHop, r.Interface))
		}
	}
	slices.Sort(all)
	return all
}

// forwarding returns the interfaces that forward, as text.
func (h *host) forwarding() string {
	var all []string
	for _, i := range h.interfaces {
		for f, on := range i.Forwarding {
			if on {
				all = append(all, fmt.Sprintf("%s %s", hostroute.Family(f), i.Name))
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func (h *host) Routes() ([]hostroute.Route, error) { return slices.Clone(h.routes), h.unreadable }

func (h *host) Interfaces() ([]hostroute.Interface, error) {
	return slices.Clone(h.interfaces), h.unreadable
}

func (h *host) Add(r hostroute.Route) error {
	h.writes = append(h.writes, "add "+r.Destination.String())
	if h.refuses != nil || h.lies {
		return h.refuses
	}
	i := slices.IndexFunc(h.interfaces, func(i hostroute.Interface) bool { return i.Index == r.Interface })
	if i < 0 || !slices.ContainsFunc(h.interfaces[i].Addresses, func(p netip.Prefix) bool { return p.Masked().Contains(r.NextHop) }) {
		return fmt.Errorf("no segment of interface %d contains %s", r.Interface, r.NextHop)
	}
	if slices.ContainsFunc(h.routes, func(o hostroute.Route) bool {
		return o.Destination == r.Destination && o.NextHop == r.NextHop && o.Interface == r.Interface
	}) {
		return nil
	}
	r.Protocol = hostroute.NetMgmt
	h.routes = append(h.routes, r)
	return nil
}

func (h *host) Remove(r hostroute.Route) error {
	h.writes = append(h.writes, "remove "+r.Destination.String())
	if h.refuses != nil || h.lies {
		return h.refuses
	}
	h.routes = slices.DeleteFunc(h.routes, func(o hostroute.Route) bool {
		return o.Destination == r.Destination && o.NextHop == r.NextHop && o.Interface == r.Interface
	})
	return nil
}

func (h *host) SetForwarding(index uint32, f hostroute.Family, on bool) error {
	h.writes = append(h.writes, fmt.Sprintf("forwarding %d %s %t", index, f, on))
	if h.refuses != nil || h.lies {
		return h.refuses
	}
	for i := range h.interfaces {
		if h.interfaces[i].Index == index {
			h.interfaces[i].Forwarding[f] = on
			return nil
		}
	}
	return fmt.Errorf("no interface %d", index)
}
