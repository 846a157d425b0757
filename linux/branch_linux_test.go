// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
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
	vlan, table := fmt.Sprintf("vlan.eth.%d", n), fmt.Sprint(100+int(n))
	if err := l.vlan(vlan, n); err != nil {
		return err
	}
	for i, ip := range podIPs(n) {
		ends := [][2]string{{fmt.Sprintf("10.2.%d.1", n), fmt.Sprintf("10.2.%d.2", n)}, {fmt.Sprintf("fd02:%x::1", n), fmt.Sprintf("fd02:%x::2", n)}}[i]
		v := []string{"-4", "-6"}[i]
		err := errors.Join(
			commands(l.node, "ip", v, "route del "+ip.String()+" dev veth-"+pod, "route add "+ip.String()+" dev veth-"+pod+" table "+table,
				"route add default via "+ends[1]+" dev "+vlan+" table "+table, "rule add iif "+vlan+" lookup "+table+" priority 10", "rule add iif veth-"+pod+" lookup "+table+" priority 10"),
			commands(l.outside, "ip", v, "route add "+ip.String()+" via "+ends[0]+" dev "+vlan))
		if err != nil {
			return err
		}
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
			return netlink.LinkAdd(device)
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

// commands runs lines of a program in a namespace.
func commands(ns *netns.NS, program, option string, lines ...string) error {
	for _, line := range lines {
		err := ns.Do(func() error {
			out, err := exec.Command(program, append([]string{option}, strings.Fields(line)...)...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s %s: %w: %s", program, line, err, out)
			}
			return nil
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
