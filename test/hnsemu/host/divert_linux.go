// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
)

// On Windows the switch sees packets before the host stack. Here the kernel sees them first. Rules
// before the rule of local addresses route packets for translated ports of the node to the device
// of the host.
const (
	divertTable   = 7400
	divertFirst   = 900
	localPriority = 1000
)

// divert makes the kernel pass packets for translated ports of the node to the switch. Without
// translated ports it adds no rules.
func (h *Host) divert(ports []nodePorts) error {
	if !h.node[0].Is4() {
		return nil
	}
	rules, err := link.Whole(func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("list routing rules: %w", err)
	}
	want := make(map[nodePorts]bool)
	for _, p := range ports {
		want[p] = true
	}
	moved := false
	for _, r := range rules {
		moved = moved || r.Table == unix.RT_TABLE_LOCAL && r.Priority == localPriority
		if r.Table != divertTable || r.Dport == nil {
			continue
		}
		p := nodePorts{uint8(r.IPProto), r.Dport.Start, r.Dport.End}
		if want[p] {
			delete(want, p)
			continue
		}
		if err := netlink.RuleDel(&r); err != nil {
			return fmt.Errorf("remove a routing rule: %w", err)
		}
	}
	if len(ports) == 0 {
		return nil
	}
	if err := h.receive(); err != nil {
		return err
	}
	if !moved {
		if err := moveLocal(); err != nil {
			return fmt.Errorf("move the rule of local addresses: %w", err)
		}
	}
	for p := range want {
		r := netlink.NewRule()
		r.Family, r.Table, r.Priority, r.IPProto = netlink.FAMILY_V4, divertTable, divertFirst, int(p.protocol)
		r.Dst, r.Dport = hostNet(h.node[0].AsSlice()), netlink.NewRulePortRange(p.first, p.last)
		if err := netlink.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("divert port %d: %w", p.first, err)
		}
	}
	return nil
}

// moveLocal moves the rule of local addresses after the others.
func moveLocal() error {
	r := netlink.NewRule()
	r.Family, r.Table, r.Priority = netlink.FAMILY_V4, unix.RT_TABLE_LOCAL, localPriority
	if err := netlink.RuleAdd(r); err != nil {
		return err
	}
	first := netlink.NewRule()
	first.Family, first.Table, first.Priority = netlink.FAMILY_V4, unix.RT_TABLE_LOCAL, 0
	return netlink.RuleDel(first)
}

// receive routes diverted packets to the device of the host, and accepts packets of the switch with the address
// of the node.
func (h *Host) receive() error {
	device, err := netlink.LinkByName(hostDevice)
	if err != nil {
		return fmt.Errorf("look for %s: %w", hostDevice, err)
	}
	for _, name := range []string{"accept_local=1", "rp_filter=2"} {
		name, value, _ := strings.Cut(name, "=")
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+hostDevice+"/"+name, []byte(value), 0); err != nil {
			return err
		}
	}
	// As on Windows, NAT and connections of the node use separate port ranges.
	reserved := fmt.Sprintf("%d-%d", vfp.FirstNATPort, vfp.LastNATPort)
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_reserved_ports", []byte(reserved), 0); err != nil {
		return err
	}
	// The switch accepts every frame, regardless of its destination.
	next := &netlink.Neigh{LinkIndex: device.Attrs().Index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT,
		IP: h.node[0].AsSlice(), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	route := &netlink.Route{LinkIndex: device.Attrs().Index, Table: divertTable, Dst: hostNet(h.node[0].AsSlice()), Scope: netlink.SCOPE_LINK}
	return errors.Join(netlink.NeighSet(next), netlink.RouteReplace(route))
}

func hostNet(ip net.IP) *net.IPNet { return &net.IPNet{IP: ip, Mask: net.CIDRMask(32, 32)} }
