// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net/netip"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/test/path/reference"
)

// Devices of the node, by index. Indices of devices and of slots overlap on purpose.
const (
	uplink   = 2
	tunnel   = 3
	firstPod = 4 // the first of maxPods
	maxPods  = 6
)

const (
	mtu        = 1500
	errorBurst = 3
	tunnelPort = 4789
	vni        = 4096
	gre        = 47
)

// timeouts are the settings of the programs. The clock advances by multiples of 50 seconds, so that no flow is
// ever close to a limit.
var timeouts = reference.Timeouts{Opening: 60 * time.Second, TCP: 575 * time.Second, Other: 180 * time.Second, Closing: 60 * time.Second, Datagram: time.Minute}

// The addresses of packets. Each list has IPv4 and IPv6. Some addresses of other hosts sort before those of pods
// in the keys of flows, which follow the order of words in memory.
var (
	nodeAddrs   = addrs("192.0.2.1", "fd09::1", "10.1.0.1", "fd01::1") // the latter in the node's range
	broadcasts  = addrs("192.0.2.255", "fd09::")                       // the latter is anycast
	otherNode   = addrs("192.0.2.2", "fd09::2")
	routerAddrs = addrs("192.0.2.254", "fd09::fe")
	services    = addrs("10.96.0.10", "fd96::10", "9.96.0.20", "fd00:0:0:96::20")
	strangers   = addrs("198.18.0.1", "fd18::1", "10.1.0.99", "fd01::99") // the latter in the node's range
	ranges      = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd01::/48")}
	remotes     = map[string][]netip.Addr{
		"r1": addrs("10.2.0.5", "fd02::5"),         // through the uplink, on the fast path
		"r2": addrs("10.0.3.205", "fd00:0:0:3::5"), // through the tunnel, on the fast path
		"r3": addrs("10.4.0.5", "fd04::5"),         // through the tunnel, on the slow path
	}
	outsides = map[string][]netip.Prefix{
		"w1": {netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("fd51::/64")},
		"w2": {netip.MustParsePrefix("9.0.113.0/24"), netip.MustParsePrefix("fd00:0:0:52::/64")},
	}
	servers = map[string][]netip.Addr{"w1": addrs("198.51.100.7", "fd51::7"), "w2": addrs("9.0.113.209", "fd00:0:0:52::9")}
	routes  = []reference.NodeRoute{
		{Range: netip.MustParsePrefix("10.2.0.0/24"), Device: uplink, Direct: true},
		{Range: netip.MustParsePrefix("fd02::/64"), Device: uplink, Direct: true},
		{Range: netip.MustParsePrefix("10.0.3.0/24"), Device: tunnel, Direct: true},
		{Range: netip.MustParsePrefix("fd00:0:0:3::/64"), Device: tunnel, Direct: true},
		{Range: netip.MustParsePrefix("10.4.0.0/24"), Device: tunnel},
		{Range: netip.MustParsePrefix("fd04::/64"), Device: tunnel},
	}
	tunnels = []reference.Tunnel{{Outer: otherNode, Inner: []netip.Prefix{
		netip.MustParsePrefix("10.0.3.0/24"), netip.MustParsePrefix("fd00:0:0:3::/64"), netip.MustParsePrefix("192.0.2.2/32"), netip.MustParsePrefix("fd09::2/128")}}}
	// The deny list: a prefix and a single address of each family, and an exempt address.
	denied = []netip.Prefix{netip.MustParsePrefix("198.19.0.0/16"), netip.MustParsePrefix("fd19::/32"),
		netip.MustParsePrefix("198.51.100.66/32"), netip.MustParsePrefix("fd51::66/128")}
	exempt = addrs("198.19.0.7", "fd19::7")
	listed = addrs("198.19.0.1", "fd19::1", "198.51.100.66", "fd51::66", "198.19.0.7", "fd19::7")
	// parties are the names that rules use; pods are a to f.
	parties = []string{"a", "b", "c", "d", "e", "f", "r1", "r2", "r3", "w1", "w2", "node", "node2"}
	// ports are those that rules use.
	ports = []uint16{53, 80, 443, 8080}
)

// everyone has one list of addresses for each party that policies can distinguish.
var everyone = func() [][]netip.Addr {
	all := [][]netip.Addr{nodeAddrs, otherNode, routerAddrs, services[:2], strangers[:2], strangers[2:]}
	for _, name := range parties {
		if _, ok := remotes[name]; ok {
			all = append(all, remotes[name])
		}
		if _, ok := servers[name]; ok {
			all = append(all, servers[name])
		}
	}
	for n := range maxPods {
		all = append(all, podAddrs(n))
	}
	return all
}()

// podAddrs returns the addresses of the n-th pod.
func podAddrs(n int) []netip.Addr {
	four, six := [4]byte{10, 1, 0, byte(11 + n)}, [16]byte{0: 0xfd, 1: 1, 15: byte(0x11 + n)}
	switch n { // some differ from the first in one word only
	case 2:
		six[11], six[15] = 1, 0x11
	case 3:
		six[7], six[15] = 1, 0x11
	}
	return []netip.Addr{netip.AddrFrom4(four), netip.AddrFrom16(six)}
}

// deviceOf returns the interface of a pod by its name, a to f. The interface of f maps to the same entry of the
// map interfaces as that of a: the program finds the second one in the map endpoints.
func deviceOf(name string) int {
	if name[0] == 'f' {
		return firstPod + int(bpfobj.Interfaces)
	}
	return firstPod + int(name[0]-'a')
}

func macOf(name string) [6]byte { return [6]byte{2, 0, 0, 0, 1, name[0]} }

// newReference returns the node without pods.
func newReference() *reference.Node {
	n := &reference.Node{
		Pods: make(map[int]*reference.Pod), Remote: make(map[netip.Addr]string), Outside: make(map[netip.Prefix]string),
		Own: nodeAddrs, Broadcast: broadcasts, Ranges: ranges, Routes: routes, TunnelPort: tunnelPort,
		Tunnels: tunnels, TunnelProtocols: []uint8{gre}, MTU: mtu, Timeouts: timeouts,
		Deny: denied, Exempt: exempt, Errors: errorBurst,
	}
	for name, all := range remotes {
		for _, a := range all {
			n.Remote[a] = name
		}
	}
	for name, all := range outsides {
		for _, p := range all {
			n.Outside[p] = name
		}
	}
	for i, name := range []string{"node", "node2"} {
		for _, a := range [][]netip.Addr{nodeAddrs, otherNode}[i] {
			n.Outside[netip.PrefixFrom(a, a.BitLen())] = name
		}
	}
	n.Reset()
	return n
}

// same returns the address of a family.
func same(all []netip.Addr, v6 bool) netip.Addr {
	i := slices.IndexFunc(all, func(a netip.Addr) bool { return a.Is6() == v6 })
	if i < 0 {
		return netip.Addr{}
	}
	return all[i]
}
