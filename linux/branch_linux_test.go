// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/test/netns"
)

// trunk connects the node with the outside, as the interface of a node that carries VLANs.
const trunk = "eth1"

// branch makes the interface of a pod with an uplink of its own, as the VPC CNI plugin does for security groups of pods. The
// uplink is VLAN n of the trunk. A route table of its own, chosen by interface, has the only route to the pod.
func branch(l *lab, pod string, n byte) error {
	if _, err := netlink.LinkByName("veth-" + pod); err == nil {
		return nil
	}
	if err := routedPlugin(l, pod, n); err != nil {
		return err
	}
	vlan := fmt.Sprintf("vlan.eth.%d", n)
	if err := l.vlan(vlan, n); err != nil {
		return err
	}
	for i, ip := range podIPs(n) {
		format := []string{"10.2.%d.%d", "fd02:%x::%d"}[i]
		near, far := net.ParseIP(fmt.Sprintf(format, n, 1)), net.ParseIP(fmt.Sprintf(format, n, 2))
		to := netlink.NewIPNet(ip.AsSlice())
		if err := l.node.Do(func() error { return moveRoutes(to, far, "veth-"+pod, vlan, 100+int(n)) }); err != nil {
			return err
		}
		if err := l.outside.Do(func() error { return addRoute(netlink.Route{Dst: to, Gw: near}, vlan) }); err != nil {
			return err
		}
	}
	return nil
}

// moveRoutes moves the route of a pod to a table, which has a default route by the uplink of the pod. Packets of either interface use it.
func moveRoutes(pod *net.IPNet, router net.IP, own, uplink string, table int) error {
	device, err := netlink.LinkByName(own)
	if err != nil {
		return err
	}
	if err := netlink.RouteDel(&netlink.Route{Dst: pod, LinkIndex: device.Attrs().Index, Scope: netlink.SCOPE_NOWHERE}); err != nil {
		return fmt.Errorf("remove the route of %s: %w", own, err)
	}
	errs := []error{addRoute(netlink.Route{Dst: pod, Table: table}, own), addRoute(netlink.Route{Gw: router, Table: table}, uplink)}
	for _, name := range []string{uplink, own} {
		rule := netlink.NewRule()
		rule.IifName, rule.Table, rule.Priority, rule.Family = name, table, 10, nl.GetIPFamily(pod.IP)
		if err := netlink.RuleAdd(rule); err != nil {
			errs = append(errs, fmt.Errorf("add a rule for %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// addRoute adds a route by a device. Without a destination it is the default route.
func addRoute(r netlink.Route, device string) error {
	d, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	r.LinkIndex = d.Attrs().Index
	if r.Gw == nil {
		r.Scope = netlink.SCOPE_LINK
	}
	if err := netlink.RouteAdd(&r); err != nil {
		return fmt.Errorf("add a route by %s: %w", device, err)
	}
	return nil
}

// vlan makes an interface of a name with a VLAN of the trunk on the node and outside, with addresses. On a kernel without VLANs
// it is a veth pair.
func (l *lab) vlan(name string, n byte) error {
	for i, ns := range []*netns.NS{l.node, l.outside} {
		err := ns.Do(func() error {
			parent, err := netlink.LinkByName(trunk)
			if err != nil {
				return err
			}
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.ParentIndex = name, parent.Attrs().Index
			device := &netlink.Vlan{LinkAttrs: attrs, VlanId: int(n), VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
			return errors.Join(netlink.LinkSetUp(parent), netlink.LinkAdd(device))
		})
		if errors.Is(err, unix.EOPNOTSUPP) && i == 0 {
			l.t.Log("this kernel has no VLANs: the uplink of a pod is a veth pair")
			err = netns.Connect(netns.End{NS: l.node, Name: name}, netns.End{NS: l.outside, Name: name})
			if err == nil {
				break
			}
		}
		if err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
	}
	for i, ns := range []*netns.NS{l.node, l.outside} {
		err := ns.Do(func() error {
			device, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			return errors.Join(netlink.LinkSetUp(device), addresses(name, fmt.Sprintf("10.2.%d.%d/24", n, i+1), fmt.Sprintf("fd02:%x::%d/64", n, i+1)), netns.Forward())
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Policy holds for pods with VLANs of a trunk as uplinks and with route tables of their own, chained and adopted. Packets
// between two such pods of a node leave it and return with the source of a pod of the node: they are dropped as spoofed.
func TestBranchInterfaces(t *testing.T) {
	l := newLabWith(t, func(c *linux.Config) { c.PolicyOnly, c.StateDir = true, "routed" })
	l.plugin = branch
	l.must(l.cableTo(l.outside, trunk))
	a, b := l.running("a", 11), l.running("b", 12)
	l.echo(b, 90)
	l.echo(l.outside, 90)
	for _, to := range podIPs(12) {
		l.allowed(a, "tcp", to.String(), 90) // the network connects them
	}
	l.must(l.add("a", 11))
	found := l.having(12)
	if len(found) != 1 {
		t.Fatalf("the interface of a pod with a route table of its own: %+v", found)
	}
	l.must(l.adopt("b", found[0].Handle, 12))
	l.apply()
	router := func(n byte) []netip.Addr {
		return []netip.Addr{netip.AddrFrom4([4]byte{10, 2, n, 2}), netip.MustParseAddr(fmt.Sprintf("fd02:%x::2", n))}
	}
	for i, to := range podIPs(12) {
		l.allowed(l.outside, "tcp", to.String(), 90)
		l.allowed(a, "tcp", router(11)[i].String(), 90)
		l.denied(a, "tcp", to.String(), 90)
	}
	only := func(ip netip.Addr) model.Peer { return block(netip.PrefixFrom(ip, ip.BitLen()).String()) }
	l.apply(isolate("b", model.Ingress, accept(only(router(12)[0])), accept(only(router(12)[1]))), isolate("a", model.Egress, accept(pods("b"))))
	for i, to := range podIPs(12) {
		l.allowed(l.outside, "tcp", to.String(), 90)
		l.denied(a, "tcp", router(11)[i].String(), 90)
	}
	l.apply(isolate("b", model.Ingress, accept(pods("a"))))
	for _, to := range podIPs(12) {
		l.denied(l.outside, "tcp", to.String(), 90)
	}
	l.must(l.node.Do(func() error {
		c, err := l.backend.Counters(context.Background())
		if c.Drops["spoofed"] == 0 {
			t.Errorf("no packet was dropped as spoofed: %v", c.Drops)
		}
		return err
	}))
}
