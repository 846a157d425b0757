// SPDX-License-Identifier: Apache-2.0

package path

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/test/path/reference"
)

// enterLab moves the calling goroutine permanently to a new network namespace with the devices and routes of the
// node. Programs read both; no packet is sent.
func enterLab() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("create network namespace: %w (are you root?)", err)
	}
	for _, name := range []string{"net/ipv4/conf/all/forwarding", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/default/forwarding",
		"net/ipv6/conf/default/forwarding"} {
		if err := os.WriteFile("/proc/sys/"+name, []byte("1"), 0o644); err != nil {
			return fmt.Errorf("forward packets: %w", err)
		}
	}
	devices := []int{uplink, tunnel}
	for _, name := range parties[:maxPods] {
		devices = append(devices, deviceOf(name))
	}
	for _, index := range devices {
		// A bridge without ports is a device whose index the caller chooses.
		l := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("dev", index), Index: index, HardwareAddr: net.HardwareAddr(hostMAC[:]), MTU: mtu}}
		if err := netlink.LinkAdd(l); err != nil {
			return fmt.Errorf("create device %d: %w", index, err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return fmt.Errorf("enable device %d: %w", index, err)
		}
	}
	for _, w := range routes {
		if err := addRoute(w.Range, w.Device); err != nil {
			return err
		}
	}
	return nil
}

func addRoute(p netip.Prefix, device int) error {
	dst := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	if err := netlink.RouteAdd(&netlink.Route{Dst: dst, LinkIndex: device, Scope: netlink.SCOPE_LINK}); err != nil {
		return fmt.Errorf("add route to %s by device %d: %w", p, device, err)
	}
	return nil
}

// tracked is a flow of connection tracking: its original and its reply direction.
type tracked struct {
	src, dst netip.AddrPort // original direction
	from, to netip.AddrPort // reply direction, from the perspective of the backend
	proto    uint8
	ipvs     bool
}

// conntrack is the connection tracking of the lab. It also writes each flow into that of the kernel, which
// programs query.
type conntrack struct {
	flows []*tracked
}

func (c *conntrack) flush() error {
	if len(c.flows) == 0 {
		return nil
	}
	c.flows = nil
	if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		return fmt.Errorf("flush connection tracking: %w", err)
	}
	return nil
}

// sent finds a flow by a packet in the original direction, answered by one in the reply direction.
func (c *conntrack) sent(src, dst netip.AddrPort, proto uint8) *tracked {
	for _, t := range c.flows {
		if t.src == src && t.dst == dst && t.proto == proto {
			return t
		}
	}
	return nil
}

func (c *conntrack) answered(src, dst netip.AddrPort, proto uint8) *tracked {
	for _, t := range c.flows {
		if t.to == src && t.from == dst && t.proto == proto {
			return t
		}
	}
	return nil
}

// knows reports whether a flow with these addresses exists, in any direction.
func (c *conntrack) knows(src, dst netip.AddrPort, proto uint8) bool {
	return c.sent(src, dst, proto) != nil || c.sent(dst, src, proto) != nil || c.answered(src, dst, proto) != nil || c.answered(dst, src, proto) != nil
}

// receives returns the address to which the stack sends what src sends to dst, if it knows the flow.
func (c *conntrack) receives(src, dst netip.AddrPort, proto uint8) (netip.Addr, bool) {
	if t := c.sent(src, dst, proto); t != nil {
		return t.to.Addr(), true
	}
	if t := c.answered(src, dst, proto); t != nil {
		return t.src.Addr(), true
	}
	return netip.Addr{}, false
}

// taken reports whether a flow has these addresses in one of its directions.
func (c *conntrack) taken(src, dst netip.AddrPort, proto uint8) bool {
	return c.sent(src, dst, proto) != nil || c.answered(src, dst, proto) != nil
}

// learn adds a connection that a program has written into that of the kernel.
func (c *conntrack) learn(src, dst netip.AddrPort) {
	if !c.taken(src, dst, reference.TCP) && !c.taken(dst, src, reference.TCP) {
		c.flows = append(c.flows, &tracked{src: src, dst: dst, from: src, to: dst, proto: reference.TCP})
	}
}

// otherPort replaces the source port if another flow has the answers of this one, as the stack does in the last step.
func (c *conntrack) otherPort(t *tracked) {
	for c.taken(t.to, t.from, t.proto) {
		t.from = netip.AddrPortFrom(t.from.Addr(), otherPort(t.from.Port()))
	}
}

// otherPort returns the port that the stack tries after this one.
func otherPort(port uint16) uint16 { return 50000 + port%5000 + 1 }

// add adds a flow, unless its addresses are in use.
func (c *conntrack) add(t *tracked) (bool, error) {
	if c.taken(t.src, t.dst, t.proto) || c.taken(t.to, t.from, t.proto) || t.src == t.to && t.from == t.dst {
		return false, nil
	}
	c.flows = append(c.flows, t)
	if t.proto == unix.IPPROTO_SCTP {
		return true, nil // programs cannot query it (ADR 37)
	}
	family := netlink.InetFamily(unix.AF_INET)
	if t.src.Addr().Is6() {
		family = unix.AF_INET6
	}
	flow := &netlink.ConntrackFlow{
		FamilyType: uint8(family), TimeOut: 3600,
		Forward: tuple(t.src, t.dst, t.proto), Reverse: tuple(t.to, t.from, t.proto),
	}
	if t.proto == unix.IPPROTO_TCP {
		flow.ProtoInfo = &netlink.ProtoInfoTCP{State: 3} // established
	}
	if err := netlink.ConntrackCreate(netlink.ConntrackTable, family, flow); err != nil {
		return false, fmt.Errorf("track flow %s -> %s: %w", t.src, t.dst, err)
	}
	return true, nil
}

// forget removes one flow.
func (c *conntrack) forget(gone *tracked) error {
	all := c.flows
	if err := c.flush(); err != nil {
		return err
	}
	for _, t := range all {
		if t != gone {
			if _, err := c.add(t); err != nil {
				return err
			}
		}
	}
	return nil
}

func tuple(src, dst netip.AddrPort, proto uint8) netlink.IPTuple {
	return netlink.IPTuple{SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice(), SrcPort: src.Port(), DstPort: dst.Port(), Protocol: proto}
}
