// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"
)

// RouteProtocol marks the routes that Isthmus adds (rtm_protocol; not assigned in
// linux/rtnetlink.h).
const RouteProtocol netlink.RouteProtocol = 73

// Configure sets the addresses, routes and neighbours of both ends of a pair, and sets them up,
// the pod's end last. When it returns, both ends send. It neither changes nor awaits the pod's end of another CNI plugin.
func Configure(s PairSpec, p Pair) error {
	if err := ConfigureHost(s, p); err != nil || s.Taken != nil {
		return err
	}
	if err := configurePod(s, p); err != nil {
		return err
	}
	return awaitHost(p)
}

// ConfigureHost configures the host end.
func ConfigureHost(s PairSpec, p Pair) error {
	if err := WriteSysctls(HostSysctls(p.Name)); err != nil {
		return err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	if !p.fresh {
		if err := hostMTU(h, s, p); err != nil {
			return err
		}
	}
	if err := h.LinkSetUp(byIndex(p.Index)); err != nil {
		return fmt.Errorf("set %s up: %w", p.Name, err)
	}
	for _, ip := range s.IPs {
		if err := h.NeighSet(permanent(p.Index, ip, p.PodMAC)); err != nil {
			return fmt.Errorf("set neighbour %s of %s: %w", ip, p.Name, err)
		}
		r := &netlink.Route{LinkIndex: p.Index, Scope: netlink.SCOPE_LINK, Protocol: RouteProtocol, Dst: netipx.AddrIPNet(ip)}
		for _, src := range s.Sources {
			if src.Is6() == ip.Is6() {
				r.Src = src.AsSlice()
			}
		}
		if err := h.RouteReplace(r); err != nil {
			return fmt.Errorf("set route to %s by %s: %w", ip, p.Name, err)
		}
	}
	return nil
}

// byIndex returns a link that only has an index.
func byIndex(index int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

// hostMTU corrects the MTU of a pair that existed already.
func hostMTU(h *netlink.Handle, s PairSpec, p Pair) error {
	l, err := h.LinkByIndex(p.Index)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", p.Name, err)
	}
	if l.Attrs().MTU == s.MTU {
		return nil
	}
	if err := h.LinkSetMTU(l, s.MTU); err != nil {
		return fmt.Errorf("set MTU %d of %s: %w", s.MTU, p.Name, err)
	}
	return nil
}

// loopback is the index of lo, in every namespace.
const loopback = 1

func configurePod(s PairSpec, p Pair) error {
	ns, err := OpenNetNS(s.NetNS)
	if err != nil {
		return err
	}
	defer ns.Close()
	var h *netlink.Handle
	err = inNetNS(ns, func() (err error) {
		if err := WriteSysctls(podSysctls(s.IfName, s.IPs)); err != nil {
			return err
		}
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return fmt.Errorf("enter network namespace %s: %w", s.NetNS, err)
	}
	defer h.Close()
	l, err := h.LinkByName(s.IfName)
	if err != nil {
		return fmt.Errorf("find interface %s in %s: %w", s.IfName, s.NetNS, err)
	}
	if l.Attrs().MTU != s.MTU {
		if err := h.LinkSetMTU(l, s.MTU); err != nil {
			return fmt.Errorf("set MTU %d of %s in %s: %w", s.MTU, s.IfName, s.NetNS, err)
		}
	}
	for _, ip := range s.IPs {
		// No duplicate address detection: no other interface is on this link.
		addr := &netlink.Addr{IPNet: netipx.AddrIPNet(ip), Flags: unix.IFA_F_NODAD}
		if err := h.AddrReplace(l, addr); err != nil {
			return fmt.Errorf("set address %s of %s in %s: %w", ip, s.IfName, s.NetNS, err)
		}
	}
	if err := h.LinkSetUp(byIndex(loopback)); err != nil {
		return fmt.Errorf("set lo up in %s: %w", s.NetNS, err)
	}
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up in %s: %w", s.IfName, s.NetNS, err)
	}
	for _, ip := range s.IPs {
		if err := podRoutes(h, l.Attrs().Index, ip, p.HostMAC); err != nil {
			return fmt.Errorf("set routes of %s in %s: %w", ip, s.NetNS, err)
		}
	}
	return awaitLocal(h, s)
}

// awaitLocal waits until the pod accepts packets to its addresses. For IPv6 the kernel
// completes the last step in a worker, which may be delayed.
func awaitLocal(h *netlink.Handle, s PairSpec) error {
	for _, ip := range s.IPs {
		err := await(func() (bool, error) {
			routes, err := h.RouteGet(ip.AsSlice())
			return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL, err
		})
		if err != nil {
			return fmt.Errorf("address %s of %s in %s is not usable: %w", ip, s.IfName, s.NetNS, err)
		}
	}
	return nil
}

// awaitHost waits until the node sends packets to the pod. Until a worker of the kernel has seen that both ends are up, the kernel
// drops them (noop_qdisc). Since Linux 6.8, reading the interface does the work of the worker (rtnl_getlink).
func awaitHost(p Pair) error {
	var state netlink.LinkOperState
	err := await(func() (bool, error) {
		l, err := netlink.LinkByIndex(p.Index)
		if err != nil {
			return false, err
		}
		state = l.Attrs().OperState
		return state == netlink.OperUp, nil
	})
	if err != nil {
		return fmt.Errorf("interface %s does not send, its state is %s: %w", p.Name, state, err)
	}
	return nil
}

// await repeats a check until it succeeds. Its error says how long it waited, and includes that of the last check.
func await(check func() (done bool, err error)) error {
	const patience, longest = 2 * time.Second, time.Millisecond
	pause := longest / 16
	for began := time.Now(); ; time.Sleep(pause) {
		done, err := check()
		if done {
			return nil
		}
		if time.Since(began) > patience {
			return errors.Join(fmt.Errorf("waited %v: %w", patience, os.ErrDeadlineExceeded), err)
		}
		pause = min(2*pause, longest)
	}
}

// podRoutes routes all packets of one IP version to the host end of the pair.
func podRoutes(h *netlink.Handle, index int, ip netip.Addr, hostMAC net.HardwareAddr) error {
	gateway := GatewayFor(ip)
	if err := h.NeighSet(permanent(index, gateway, hostMAC)); err != nil {
		return fmt.Errorf("neighbour %s: %w", gateway, err)
	}
	anywhere := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if ip.Is6() {
		anywhere = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	} else {
		direct := &netlink.Route{LinkIndex: index, Scope: netlink.SCOPE_LINK, Dst: netipx.AddrIPNet(gateway)}
		if err := h.RouteReplace(direct); err != nil {
			return fmt.Errorf("route to %s: %w", gateway, err)
		}
	}
	def := &netlink.Route{LinkIndex: index, Gw: gateway.AsSlice(), Dst: netipx.PrefixIPNet(anywhere)}
	if err := h.RouteReplace(def); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	return nil
}

// GatewayFor returns the next hop of a pod with an address of that IP version.
func GatewayFor(ip netip.Addr) netip.Addr {
	if ip.Is6() {
		return Gateway6
	}
	return Gateway4
}

func permanent(index int, ip netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	family := netlink.FAMILY_V4
	if ip.Is6() {
		family = netlink.FAMILY_V6
	}
	return &netlink.Neigh{LinkIndex: index, Family: family, State: netlink.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: mac}
}

// Check compares a pair with its spec and describes the differences, except those of bandwidth limits. inPod are those of
// the pod's end, which the pod may have made.
func Check(s PairSpec, p Pair) (problems, inPod []string) {
	host, err := netlink.LinkByName(p.Name)
	if err != nil {
		return []string{fmt.Sprintf("interface %s is missing", p.Name)}, nil
	}
	if host.Attrs().Flags&net.FlagUp == 0 {
		problems = append(problems, fmt.Sprintf("interface %s is down", p.Name))
	}
	problems = append(problems, CheckSysctls(HostSysctls(p.Name))...)
	for _, ip := range s.IPs {
		routes, err := netlink.RouteGetWithOptions(ip.AsSlice(), &netlink.RouteGetOptions{})
		if err != nil || len(routes) != 1 || routes[0].LinkIndex != host.Attrs().Index {
			problems = append(problems, fmt.Sprintf("route to %s by %s is missing", ip, p.Name))
		}
	}
	inPod, err = checkPod(s, host.Attrs().HardwareAddr)
	if err != nil {
		problems = append(problems, err.Error())
	}
	return problems, inPod
}

// checkPod describes differences of the pod's end. An error means that the pod has no such end: only a new pair helps.
func checkPod(s PairSpec, hostMAC net.HardwareAddr) (problems []string, err error) {
	ns, err := OpenNetNS(s.NetNS)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("enter network namespace %s: %w", s.NetNS, err)
	}
	defer h.Close()
	l, err := h.LinkByName(s.IfName)
	if err != nil {
		return nil, fmt.Errorf("interface %s in %s is missing", s.IfName, s.NetNS)
	}
	if l.Attrs().Flags&net.FlagUp == 0 {
		problems = append(problems, fmt.Sprintf("interface %s in %s is down: recreate the pod, or run there: ip link set %s up", s.IfName, s.NetNS, s.IfName))
	}
	addrs, err := Whole(func() ([]netlink.Addr, error) { return h.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return append(problems, fmt.Sprintf("list addresses of %s in %s: %v", s.IfName, s.NetNS, err)), nil
	}
	for _, ip := range s.IPs {
		found := false
		for _, a := range addrs {
			found = found || a.IP.Equal(ip.AsSlice())
		}
		if !found {
			problems = append(problems, fmt.Sprintf("address %s of %s in %s is missing: recreate the pod, or run there: ip address add %s dev %s",
				ip, s.IfName, s.NetNS, ip, s.IfName))
		}
	}
	if s.Taken != nil {
		return problems, nil // the pod has the routes of the other plugin
	}
	return append(problems, checkPodRoutes(h, l, s, hostMAC)...), nil
}
