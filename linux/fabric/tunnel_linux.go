// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
)

// Device is the name of the tunnel device.
const Device = "isthmus-vxlan"

// tunnel reconciles the device and returns its index, or 0 if there is none.
func (c *changes) tunnel(want *fabric.Tunnel) int {
	have, err := netlink.LinkByName(Device)
	var missing netlink.LinkNotFoundError
	if err != nil && !errors.As(err, &missing) {
		c.fail(fmt.Errorf("find interface %s: %w", Device, err))
		return 0
	}
	if err != nil {
		have = nil
	}
	if have != nil && have.Type() != "vxlan" {
		if want != nil {
			c.fail(fmt.Errorf("interface %s is a %s of another owner: remove or rename it", Device, have.Type()))
		}
		return 0
	}
	if have != nil && (want == nil || !sameTunnel(have.(*netlink.Vxlan), want)) {
		c.do("remove interface "+Device, netlink.LinkDel(have))
		have = nil
	}
	if want == nil {
		return 0
	}
	if have == nil {
		if have = c.createTunnel(want); have == nil {
			return 0
		}
	}
	if have.Attrs().MTU != want.MTU {
		c.do(fmt.Sprintf("set MTU %d of %s", want.MTU, Device), netlink.LinkSetMTU(have, want.MTU))
	}
	if err := link.WriteSysctls(tunnelSysctls()); err != nil {
		c.fail(err)
	}
	if have.Attrs().Flags&net.FlagUp == 0 && !c.up(have, want) {
		return 0
	}
	c.addresses(have, want.Sources)
	return have.Attrs().Index
}

func sameTunnel(have *netlink.Vxlan, want *fabric.Tunnel) bool {
	local, _ := netip.AddrFromSlice(have.SrcAddr)
	return have.VxlanId == int(want.VNI) && have.Port == int(want.Port) && local.Unmap() == want.Local && !have.Learning && !have.FlowBased &&
		macOf(have.HardwareAddr) == want.MAC
}

func (c *changes) createTunnel(want *fabric.Tunnel) netlink.Link {
	l := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: Device, MTU: want.MTU, HardwareAddr: want.MAC[:]},
		VxlanId: int(want.VNI), SrcAddr: want.Local.AsSlice(), Port: int(want.Port)}
	if want.Local.Is6() {
		// Zero checksums are allowed for tunnels (RFC 6935), and inner packets have their own.
		l.UDP6ZeroCSumRx = true
	}
	err := netlink.LinkAdd(l)
	if errors.Is(err, unix.EEXIST) {
		err = fmt.Errorf("%w: another device has VNI %d on port %d; choose other ones with --vni and --vxlan-port, or remove it", err, want.VNI, want.Port)
	}
	c.do("create interface "+Device, err)
	if err != nil {
		return nil
	}
	made, err := netlink.LinkByName(Device)
	if err != nil {
		c.fail(fmt.Errorf("find interface %s: %w", Device, err))
		return nil
	}
	return made
}

func (c *changes) up(l netlink.Link, want *fabric.Tunnel) bool {
	err := netlink.LinkSetUp(l)
	if errors.Is(err, unix.EADDRINUSE) {
		err = fmt.Errorf("%w: UDP port %d is in use; choose another with --vxlan-port, or stop the process that uses it", err, want.Port)
	}
	c.do(fmt.Sprintf("set %s up", Device), err)
	return err == nil
}

// tunnelSysctls let the device forward, and keep it from generating addresses and accepting
// advertisements. Reverse-path filtering uses the table of returns for packets to pods, so
// sources of other nodes are valid; loose filtering suffices.
func tunnelSysctls() []link.Sysctl {
	return []link.Sysctl{
		{Path: "ipv4/conf/" + Device + "/forwarding", Value: "1"},
		{Path: "ipv4/conf/" + Device + "/rp_filter", Value: "2"},
		{Path: "ipv4/conf/" + Device + "/accept_redirects", Value: "0"},
		{Path: "ipv4/conf/" + Device + "/send_redirects", Value: "0"},
		{Path: "ipv6/conf/" + Device + "/disable_ipv6", Value: "0"},
		{Path: "ipv6/conf/" + Device + "/addr_gen_mode", Value: "1"},
		{Path: "ipv6/conf/" + Device + "/accept_ra", Value: "0"},
		{Path: "ipv6/conf/" + Device + "/accept_dad", Value: "0"},
	}
}

// addresses gives the device the node's own addresses, because masquerading uses an address of
// the outgoing device.
func (c *changes) addresses(l netlink.Link, want []netip.Addr) {
	missing := make(map[netip.Addr]bool)
	for _, a := range want {
		missing[a] = true
	}
	have, err := link.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		c.fail(fmt.Errorf("list addresses of %s: %w", Device, err))
		return
	}
	for _, h := range have {
		p, ok := prefixOf(h.IPNet)
		switch {
		case !ok || p.Addr().IsLinkLocalUnicast():
		case missing[p.Addr()] && p.IsSingleIP():
			delete(missing, p.Addr())
		default:
			c.do(fmt.Sprintf("remove address %s of %s", p, Device), netlink.AddrDel(l, &h))
		}
	}
	for _, a := range want {
		if missing[a] {
			addr := &netlink.Addr{IPNet: netipx.AddrIPNet(a), Flags: unix.IFA_F_NODAD}
			c.do(fmt.Sprintf("set address %s of %s", a, Device), netlink.AddrReplace(l, addr))
		}
	}
}

// neighbour is an entry of the device: of its neighbour table if key is an address, of its
// forwarding table if it is a MAC.
type neighbour struct {
	ip  netip.Addr
	mac model.MAC
}

// neighbours sets the MACs of the next hops of tunneled ranges, and the nodes of the MACs. The
// device learns nothing by itself.
func (c *changes) neighbours(index int, hops []fabric.Hop) {
	next, nodes := make(map[netip.Addr]model.MAC), make(map[model.MAC]netip.Addr)
	for _, h := range hops {
		next[h.Gateway()], nodes[h.VTEP] = h.VTEP, h.Underlay
	}
	for _, family := range append([]int{unix.AF_BRIDGE}, families...) {
		have, err := link.Whole(func() ([]netlink.Neigh, error) { return netlink.NeighList(index, family) })
		if err != nil {
			c.fail(fmt.Errorf("list neighbours of %s: %w", Device, err))
			return
		}
		want := make(map[neighbour]bool)
		if family == unix.AF_BRIDGE {
			for mac, ip := range nodes {
				want[neighbour{ip, mac}] = true
			}
		} else {
			for ip, mac := range next {
				if ip.Is6() == (family == netlink.FAMILY_V6) {
					want[neighbour{ip, mac}] = true
				}
			}
		}
		c.entries(index, family, have, want)
	}
}

// entries reconciles the entries of one family.
func (c *changes) entries(index, family int, have []netlink.Neigh, want map[neighbour]bool) {
	for _, h := range have {
		ip, _ := netip.AddrFromSlice(h.IP)
		n := neighbour{ip.Unmap(), macOf(h.HardwareAddr)}
		if want[n] && h.State&netlink.NUD_PERMANENT != 0 {
			delete(want, n)
			continue
		}
		// Entries that the kernel created, for multicast and its own addresses.
		if family != unix.AF_BRIDGE && h.State&netlink.NUD_PERMANENT == 0 {
			continue
		}
		err := netlink.NeighDel(&h)
		if errors.Is(err, unix.ENOENT) {
			err = nil
		}
		c.do(fmt.Sprintf("remove neighbour %s %s of %s", n.ip, n.mac, Device), err)
	}
	for n := range want {
		e := &netlink.Neigh{LinkIndex: index, Family: family, State: netlink.NUD_PERMANENT, IP: n.ip.AsSlice(), HardwareAddr: n.mac[:]}
		if family == unix.AF_BRIDGE {
			e.Flags = netlink.NTF_SELF
		}
		c.do(fmt.Sprintf("set neighbour %s %s of %s", n.ip, n.mac, Device), netlink.NeighSet(e))
	}
}

// TunnelsOn names the VXLAN devices of this network namespace with a UDP port.
func TunnelsOn(port int) (names []string, err error) {
	all, err := link.Whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range all {
		if v, ok := l.(*netlink.Vxlan); ok && v.Port == port {
			names = append(names, v.Name)
		}
	}
	return names, nil
}
