// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/netns"
)

// plugin makes the interface of a pod as another CNI plugin does, unless it exists. It runs in
// the namespace of the node.
type plugin func(l *lab, pod string, n byte) error

var plugins = map[string]plugin{"routed": routedPlugin, "bridged": bridgedPlugin}

const (
	bridgeName = "cni0"
	gateway4   = "10.1.0.1"
	gateway6   = "fd01::1"
)

// connect makes a veth pair whose host end is veth-POD, and reports whether it is new.
func (l *lab) connect(pod, bridge string) (bool, error) {
	if _, err := netlink.LinkByName("veth-" + pod); err == nil {
		return false, nil
	}
	return true, netns.Connect(netns.End{NS: l.node, Name: "veth-" + pod, Bridge: bridge, Index: l.index}, netns.End{NS: l.pods[pod], Name: "eth0"})
}

// gateways gives a pod its addresses and default routes.
func (l *lab) gateways(pod string, n byte) error {
	return l.pods[pod].Do(func() error {
		ips := podIPs(n)
		if err := netns.AddAddresses("eth0", netip.PrefixFrom(ips[0], 24), netip.PrefixFrom(ips[1], 64)); err != nil {
			return err
		}
		return errors.Join(route("0.0.0.0/0", gateway4), route("::/0", gateway6))
	})
}

// routedPlugin does what the plugin ptp does: the node has the gateway's address at each host
// end, and a route to each pod. The pod reaches other pods by the gateway.
func routedPlugin(l *lab, pod string, n byte) error {
	made, err := l.connect(pod, "")
	if err != nil || !made {
		return err
	}
	if err := errors.Join(netns.Forward(), addresses("veth-"+pod, gateway4+"/32", gateway6+"/128")); err != nil {
		return err
	}
	for _, ip := range podIPs(n) {
		veth, err := netlink.LinkByName("veth-" + pod)
		if err != nil {
			return err
		}
		to := &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: veth.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK}); err != nil {
			return fmt.Errorf("route to %s: %w", ip, err)
		}
	}
	if err := l.gateways(pod, n); err != nil {
		return err
	}
	return l.pods[pod].Do(func() error { return onlyByGateway(n) })
}

// onlyByGateway replaces the routes to the segment by routes through the gateway.
func onlyByGateway(n byte) error {
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	ips := podIPs(n)
	for i, gw := range []string{gateway4, gateway6} {
		bits := ips[i].BitLen()
		host := &net.IPNet{IP: net.ParseIP(gw), Mask: net.CIDRMask(bits, bits)}
		segment := netip.PrefixFrom(ips[i], []int{24, 64}[i]).Masked()
		to := &net.IPNet{IP: segment.Addr().AsSlice(), Mask: net.CIDRMask(segment.Bits(), bits)}
		direct := &netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: host, Scope: netlink.SCOPE_LINK, Src: ips[i].AsSlice()}
		if err := netlink.RouteReplace(direct); err != nil {
			return fmt.Errorf("route to the gateway: %w", err)
		}
		old, err := link.Whole(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Dst: to}, netlink.RT_FILTER_DST)
		})
		if err != nil {
			return err
		}
		for _, r := range old {
			if err := netlink.RouteDel(&r); err != nil {
				return fmt.Errorf("remove route %v: %w", r, err)
			}
		}
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: to, Gw: net.ParseIP(gw), Src: ips[i].AsSlice()}); err != nil {
			return fmt.Errorf("route by the gateway: %w", err)
		}
	}
	return nil
}

// bridgedPlugin does what the plugin bridge does.
func bridgedPlugin(l *lab, pod string, n byte) error {
	if _, err := netlink.LinkByName(bridgeName); err != nil {
		if err := errors.Join(netns.Forward(), netns.Bridge(bridgeName), addresses(bridgeName, gateway4+"/24", gateway6+"/64")); err != nil {
			return err
		}
		if err := l.setBridgeMAC("02:00:00:00:c0:01"); err != nil { // or it would change with every port
			return err
		}
	}
	made, err := l.connect(pod, bridgeName)
	if err != nil || !made {
		return err
	}
	port, err := netlink.LinkByName("veth-" + pod)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetHairpin(port, true); err != nil {
		return err
	}
	return l.gateways(pod, n)
}

// setBridgeMAC changes the MAC of the bridge, in the namespace of the node.
func (l *lab) setBridgeMAC(mac string) error {
	bridge, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	hw, err := net.ParseMAC(mac)
	if err != nil {
		return err
	}
	return netlink.LinkSetHardwareAddr(bridge, hw)
}

// gatewayMAC returns the address to which a pod sends what is not for its segment.
func (l *lab) gatewayMAC(pod string) net.HardwareAddr {
	l.t.Helper()
	name := "veth-" + pod
	if l.bridged() {
		name = bridgeName
	}
	return l.macIn(l.node, name)
}

// bridged reports whether the pods are on a bridge.
func (l *lab) bridged() bool {
	return l.node.Do(func() error { _, err := netlink.LinkByName(bridgeName); return err }) == nil
}
