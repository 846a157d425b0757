// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/link"
)

// loopback is the index of lo in every namespace.
const loopback = 1

// metric6 is the priority of the kernel's IPv6 route to the subnet of an address
// (IP6_RT_PRIO_ADDRCONF in linux/ipv6_route.h). IPv4 has 0.
const metric6 = 256

// routePod lets the node reach a pod by its own interface. It works for a port of a bridge, too. Pods send to the
// MAC of the bridge, so the interface gets that MAC first.
func (h *Host) routePod(p *Plan, pod *Pod, port netlink.Link) error {
	mac, err := net.ParseMAC(pod.MAC)
	if err != nil {
		return fmt.Errorf("MAC of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if err := h.setMAC(port, p.Bridge.MAC); err != nil {
		return err
	}
	s := link.PairSpec{ID: pod.Record.ID(), MTU: pod.MTU, IPs: pod.Record.IPs}
	for _, a := range p.Bridge.Addresses {
		s.Sources = append(s.Sources, a.Addr())
	}
	return link.ConfigureHost(s, link.Pair{Name: pod.Port, Index: pod.Index, PodMAC: mac})
}

// unroutePod lets the node reach a pod by the bridge again.
func (h *Host) unroutePod(p *Plan, pod *Pod, port netlink.Link) error {
	mac, err := net.ParseMAC(pod.MAC)
	if err != nil {
		return err
	}
	for _, ip := range pod.Record.IPs {
		// The bridge knows the pod before the route leads there, so that no packet waits.
		if err := h.h.NeighSet(neighbour(p.Bridge.Index, ip, mac, netlink.NUD_STALE)); err != nil {
			return fmt.Errorf("set neighbour %s of %s: %w", ip, p.Bridge.Name, err)
		}
		r := &netlink.Route{LinkIndex: pod.Index, Scope: netlink.SCOPE_LINK, Protocol: link.RouteProtocol, Dst: netipx.AddrIPNet(ip)}
		if err := h.h.RouteDel(r); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove route to %s by %s: %w", ip, pod.Port, err)
		}
		if err := h.h.NeighDel(neighbour(pod.Index, ip, mac, netlink.NUD_PERMANENT)); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove neighbour %s of %s: %w", ip, pod.Port, err)
		}
	}
	for path, was := range pod.Sysctls {
		if err := setSysctl(path, was); err != nil {
			return err
		}
	}
	return h.setMAC(port, pod.HostMAC)
}

func neighbour(index int, ip netip.Addr, mac net.HardwareAddr, state int) *netlink.Neigh {
	family := netlink.FAMILY_V4
	if ip.Is6() {
		family = netlink.FAMILY_V6
	}
	return &netlink.Neigh{LinkIndex: index, Family: family, State: state, IP: ip.AsSlice(), HardwareAddr: mac}
}

// byGateway routes all packets of a pod to its gateway, by a permanent neighbour entry.
func (h *Host) byGateway(p *Plan, pod *Pod) error {
	return h.inPod(p, pod, func(in *netlink.Handle, mac net.HardwareAddr, own netip.Prefix, gateway netip.Addr) error {
		if err := in.NeighSet(neighbour(pod.PeerIndex, gateway, mac, netlink.NUD_PERMANENT)); err != nil {
			return fmt.Errorf("neighbour %s: %w", gateway, err)
		}
		direct := &netlink.Route{LinkIndex: pod.PeerIndex, Scope: netlink.SCOPE_LINK, Dst: netipx.AddrIPNet(gateway)}
		if err := in.RouteReplace(direct); err != nil {
			return fmt.Errorf("route to %s: %w", gateway, err)
		}
		r := subnet(pod, own)
		r.Gw, r.Flags, r.Scope = gateway.AsSlice(), int(netlink.FLAG_ONLINK), netlink.SCOPE_UNIVERSE
		return in.RouteReplace(r)
	})
}

// onLink lets a pod reach its subnet directly again.
func (h *Host) onLink(p *Plan, pod *Pod) error {
	return h.inPod(p, pod, func(in *netlink.Handle, mac net.HardwareAddr, own netip.Prefix, gateway netip.Addr) error {
		r := subnet(pod, own)
		r.Protocol = unix.RTPROT_KERNEL
		if err := in.RouteReplace(r); err != nil {
			return err
		}
		direct := &netlink.Route{LinkIndex: pod.PeerIndex, Scope: netlink.SCOPE_LINK, Dst: netipx.AddrIPNet(gateway)}
		if err := in.RouteDel(direct); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("route to %s: %w", gateway, err)
		}
		return in.NeighSet(neighbour(pod.PeerIndex, gateway, mac, netlink.NUD_STALE))
	})
}

// subnet returns the route of a pod to the subnet of one of its addresses, with the priority of the kernel's.
func subnet(pod *Pod, own netip.Prefix) *netlink.Route {
	r := &netlink.Route{LinkIndex: pod.PeerIndex, Dst: netipx.PrefixIPNet(own.Masked()), Scope: netlink.SCOPE_LINK}
	if own.Addr().Is6() {
		r.Priority = metric6
	} else {
		r.Src = own.Addr().AsSlice()
	}
	return r
}

// inPod calls f for each address of a pod, with the MAC and the address of the bridge.
func (h *Host) inPod(p *Plan, pod *Pod, f func(in *netlink.Handle, mac net.HardwareAddr, own netip.Prefix, gateway netip.Addr) error) error {
	mac, err := net.ParseMAC(p.Bridge.MAC)
	if err != nil {
		return fmt.Errorf("MAC of %s: %w", p.Bridge.Name, err)
	}
	in, err := handleAt(pod.NetNS)
	if err != nil {
		return err
	}
	defer in.Close()
	for _, own := range pod.Addresses {
		gateway, ok := p.Bridge.Gateway(own.Addr())
		if !ok {
			return fmt.Errorf("address %s has no gateway on %s", own, p.Bridge.Name)
		}
		if err := f(in, mac, own, gateway); err != nil {
			return fmt.Errorf("set routes of %s in %s: %w", own.Addr(), pod.NetNS, err)
		}
	}
	return nil
}

// addGateways keeps the addresses of the bridge on lo, for connections that are open.
func (h *Host) addGateways(p *Plan) error {
	if h.restarted(p) {
		return nil
	}
	for _, a := range p.Bridge.Addresses {
		addr := &netlink.Addr{IPNet: netipx.AddrIPNet(a.Addr()), Flags: unix.IFA_F_NODAD}
		if err := h.h.AddrReplace(byIndex(loopback), addr); err != nil {
			return fmt.Errorf("add address %s: %w", a.Addr(), err)
		}
	}
	return nil
}

func (h *Host) dropGateways(p *Plan) error {
	for _, a := range p.Bridge.Addresses {
		err := h.h.AddrDel(byIndex(loopback), &netlink.Addr{IPNet: netipx.AddrIPNet(a.Addr())})
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address %s from lo: %w", a.Addr(), err)
		}
	}
	return nil
}

// setRoute gives the route to another node a protocol, which says who owns it. A route that is gone or leads
// elsewhere stays.
func (h *Host) setRoute(r Route, protocol int) error {
	found, err := link.Whole(func() ([]netlink.Route, error) {
		return h.h.RouteListFiltered(familyOf(r.Prefix.Addr()), &netlink.Route{Dst: netipx.PrefixIPNet(r.Prefix), Table: unix.RT_TABLE_MAIN},
			netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("list routes to %s: %w", r.Prefix, err)
	}
	for _, now := range found {
		via, _ := netip.AddrFromSlice(now.Gw)
		if via.Unmap() != r.Via || now.LinkIndex != r.Index || int(now.Protocol) == protocol {
			continue
		}
		now.Protocol = netlink.RouteProtocol(protocol)
		if err := h.h.RouteReplace(&now); err != nil {
			return fmt.Errorf("replace route to %s: %w", r.Prefix, err)
		}
		return nil
	}
	return nil
}

func familyOf(a netip.Addr) int {
	if a.Is6() {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}
