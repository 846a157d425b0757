// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/linux/foreign"
	"github.com/isthmus-net/isthmus/linux/link"
)

// Sources are where Inspect reads.
type Sources struct {
	// StateDir is the directory of the agent's registry of interfaces.
	StateDir string
	// Cache is the directory in which runtimes keep the results of plugins.
	Cache string
}

// Inspect reads the node: the bridge of a network, its ports and the pods behind them. It changes nothing.
func Inspect(network Network, records []endpoint.Record, from Sources) (*Node, error) {
	n := &Node{Network: network, Records: records, Sysctls: make(map[string]string)}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	if n.Boot, err = link.BootID(); err != nil {
		return nil, err
	}
	if n.Kernel, err = kernel(); err != nil {
		return nil, err
	}
	bridge, err := h.LinkByName(network.Bridge)
	if err != nil {
		return nil, fmt.Errorf("find bridge %s of network %s: %w", network.Bridge, network.Name, err)
	}
	if bridge.Type() != "bridge" {
		return nil, fmt.Errorf("interface %s of network %s is not a bridge but of kind %s", network.Bridge, network.Name, bridge.Type())
	}
	a := bridge.Attrs()
	n.Bridge = Bridge{Name: a.Name, Index: a.Index, MAC: a.HardwareAddr.String(), MTU: a.MTU, Promiscuous: a.RawFlags&unix.IFF_PROMISC != 0}
	if n.Bridge.Addresses, err = addresses(h, bridge); err != nil {
		return nil, err
	}
	if n.Leases, err = ReadLeases(network.Leases); err != nil {
		return nil, err
	}
	for _, s := range settings(network.Bridge) {
		readSysctl(n.Sysctls, s.Path)
	}
	if err := n.devices(h, from.StateDir); err != nil {
		return nil, err
	}
	if n.Routes, err = routes(h, network); err != nil {
		return nil, err
	}
	n.HostPorts, err = hostPorts(from.Cache, network.Name)
	return n, err
}

// devices reads the ports of the bridge, and the devices of tunnels.
func (n *Node) devices(h *netlink.Handle, stateDir string) error {
	registry, err := foreign.Read(stateDir)
	if err != nil {
		return err
	}
	seen, err := registry.Scan()
	if err != nil {
		return err
	}
	links, err := link.Whole(h.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	spaces, err := namespaces(h)
	if err != nil {
		return err
	}
	for _, l := range links {
		a := l.Attrs()
		if l.Type() == "vxlan" && strings.HasPrefix(a.Name, "flannel") {
			n.Tunnels = append(n.Tunnels, Tunnel{Name: a.Name, MTU: a.MTU, Up: a.Flags&net.FlagUp != 0})
		}
		if a.MasterIndex != n.Bridge.Index {
			continue
		}
		port := Port{Name: a.Name, Index: a.Index, MAC: a.HardwareAddr.String(), MTU: a.MTU, Sysctls: make(map[string]string)}
		for _, s := range link.HostSysctls(a.Name) {
			readSysctl(port.Sysctls, s.Path)
		}
		if info, err := h.LinkGetProtinfo(l); err == nil {
			port.Hairpin = info.Hairpin
		}
		i := slices.IndexFunc(seen, func(s foreign.Seen) bool { return s.Index == a.Index })
		switch {
		case i < 0:
			port.Problem = fmt.Sprintf("it is of kind %s and leads to no pod", l.Type())
		case seen[i].Problem != "":
			port.Problem = seen[i].Problem
		default:
			port.Endpoint = registry.Owner(seen[i].HostEnd)
			if port.Pod, err = podEnd(seen[i], spaces[a.NetNsID]); err != nil {
				return err
			}
		}
		n.Ports = append(n.Ports, port)
	}
	return nil
}

// readSysctl adds the value of a setting, if the kernel has it.
func readSysctl(to map[string]string, path string) {
	if text, err := os.ReadFile("/proc/sys/net/" + path); err == nil {
		to[path] = strings.TrimSpace(string(text))
	}
}

// kernel returns the version of the kernel.
func kernel() (v [2]int, err error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return v, fmt.Errorf("read the version of the kernel: %w", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	if _, err := fmt.Sscanf(release, "%d.%d", &v[0], &v[1]); err != nil {
		return v, fmt.Errorf("read the version of the kernel: %q: %w", release, err)
	}
	return v, nil
}

// addresses lists the global addresses of an interface, IPv4 first.
func addresses(h *netlink.Handle, l netlink.Link) (all []netip.Prefix, err error) {
	found, err := link.Whole(func() ([]netlink.Addr, error) { return h.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
	}
	for _, a := range found {
		ip, ok := netip.AddrFromSlice(a.IP)
		ones, _ := a.Mask.Size()
		if ip = ip.Unmap(); ok && ip.IsGlobalUnicast() {
			all = append(all, netip.PrefixFrom(ip, ones))
		}
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return all, nil
}

// podEnd reads the pod's end of a port in its network namespace.
func podEnd(s foreign.Seen, path string) (PodEnd, error) {
	e := PodEnd{NetNS: path, IfName: s.IfName, PeerIndex: s.PeerIndex, MAC: s.PodMAC.String()}
	if path == "" {
		return e, nil
	}
	h, err := handleAt(path)
	if errors.Is(err, fs.ErrNotExist) {
		e.NetNS = ""
		return e, nil // the pod went away
	}
	if err != nil {
		return e, err
	}
	defer h.Close()
	links, err := link.Whole(h.LinkList)
	if err != nil {
		return e, fmt.Errorf("list interfaces in %s: %w", path, err)
	}
	for _, l := range links {
		switch a := l.Attrs(); {
		case a.Index == s.PeerIndex:
			e.MTU = a.MTU
			if e.Addresses, err = addresses(h, l); err != nil {
				return e, err
			}
			if e.Gateways, err = gateways(h, l); err != nil {
				return e, err
			}
		case a.Flags&net.FlagLoopback == 0 && a.Flags&net.FlagUp != 0:
			e.Others = append(e.Others, a.Name)
		}
	}
	return e, nil
}

// gateways lists the next hops of default routes by an interface.
func gateways(h *netlink.Handle, l netlink.Link) (all []netip.Addr, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		found, err := link.Whole(func() ([]netlink.Route, error) { return h.RouteList(l, family) })
		if err != nil {
			return nil, fmt.Errorf("list routes of %s: %w", l.Attrs().Name, err)
		}
		for _, r := range found {
			if via, ok := netip.AddrFromSlice(r.Gw); ok && prefixOf(r.Dst).Bits() <= 0 {
				all = append(all, via.Unmap())
			}
		}
	}
	return all, nil
}

// prefixOf converts the destination of a route. The zero Prefix, with -1 bits, is the default route.
func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	ip, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	if !ok {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(ip.Unmap(), ones)
}

// routes lists the routes to pods of other nodes by another node, if the network says which these are.
func routes(h *netlink.Handle, network Network) (all []Route, err error) {
	found, err := link.Whole(func() ([]netlink.Route, error) { return h.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range found {
		p, via := prefixOf(r.Dst), netip.Addr{}
		if gateway, ok := netip.AddrFromSlice(r.Gw); ok {
			via = gateway.Unmap()
		}
		if !via.IsValid() || p.Bits() <= 0 || !inside(network.Cluster, p.Addr()) || inside(network.Ranges, p.Addr()) {
			continue
		}
		device, err := h.LinkByIndex(r.LinkIndex)
		if err != nil {
			return nil, fmt.Errorf("find the interface of the route to %s: %w", p, err)
		}
		all = append(all, Route{Prefix: p, Via: via, Device: device.Attrs().Name, Index: r.LinkIndex, Protocol: int(r.Protocol)})
	}
	return all, nil
}

// hostPorts returns the containers to which a runtime gave host ports, by the results of plugins that it
// keeps. A missing directory has none.
func hostPorts(cache, network string) (map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(cache, "results", network+"-*"))
	if err != nil {
		return nil, fmt.Errorf("list results of plugins: %w", err)
	}
	all := make(map[string]bool)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read results of plugins: %w", err)
		}
		if id, has := parseResult(text); has {
			all[id] = true
		}
	}
	return all, nil
}
