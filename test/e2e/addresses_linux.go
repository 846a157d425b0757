// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// network holds the addresses of a cluster in one IP version.
type network struct {
	// fabric is the address of the control plane, with the length of the fabric's prefix. The
	// address of node i is firstNode + i.
	fabric    netip.Prefix
	firstNode netip.Addr
	// pods and services are ranges.
	pods, services netip.Prefix
	// kubernetes and dns are the addresses of the Services with these names.
	kubernetes, dns netip.Addr
}

var ipv4, ipv6 = network{
	fabric: netip.MustParsePrefix("172.30.0.1/24"), firstNode: netip.MustParseAddr("172.30.0.10"),
	pods: netip.MustParsePrefix("10.244.0.0/16"), services: netip.MustParsePrefix("10.96.0.0/16"),
	kubernetes: netip.MustParseAddr("10.96.0.1"), dns: netip.MustParseAddr("10.96.0.10"),
}, network{
	fabric: netip.MustParsePrefix("fd00:172:30::1/64"), firstNode: netip.MustParseAddr("fd00:172:30::10"),
	pods: netip.MustParsePrefix("fd00:10:244::/56"), services: netip.MustParsePrefix("fd00:10:96::/112"),
	kubernetes: netip.MustParseAddr("fd00:10:96::1"), dns: netip.MustParseAddr("fd00:10:96::a"),
}

// networks are the values of the flag -ip: the IP versions of a cluster, and first the version of
// Services that do not ask for one.
var networks = map[string][]network{"4": {ipv4}, "6": {ipv6}, "dual": {ipv4, ipv6}}

// networksOf returns the networks of a value of -ip.
func networksOf(value string) ([]network, error) {
	all, ok := networks[value]
	if !ok {
		return nil, fmt.Errorf("-ip %q: choose 4, 6 or dual", value)
	}
	return all, nil
}

func (n network) is6() bool { return n.fabric.Addr().Is6() }

// version is the name of the IP version in Kubernetes.
func (n network) version() string {
	if n.is6() {
		return "IPv6"
	}
	return "IPv4"
}

// flag is the flag of ip(8) for the IP version.
func (n network) flag() string {
	if n.is6() {
		return "-6"
	}
	return "-4"
}

// node returns the address of node i.
func (n network) node(i int) netip.Addr {
	a := n.firstNode
	for range i {
		a = a.Next()
	}
	return a
}

// everywhere returns the network that contains all addresses of the IP version.
func (n network) everywhere() netip.Prefix {
	if n.is6() {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// host returns an address of the fabric by its last byte. 50 is the Windows node; no node has 99.
func (n network) host(last byte) netip.Prefix {
	bytes := n.fabric.Addr().AsSlice()
	bytes[len(bytes)-1] = last
	a, _ := netip.AddrFromSlice(bytes) // as long as before
	return netip.PrefixFrom(a, n.fabric.Bits())
}

func (n network) windows() netip.Prefix { return n.host(50) }

func (n network) guest() netip.Prefix { return n.host(99) }

// join returns a property of each network, as lists in flags have them.
func join[T fmt.Stringer](all []network, property func(network) T) string {
	var words []string
	for _, n := range all {
		words = append(words, property(n).String())
	}
	return strings.Join(words, ",")
}

// primary is the network of Services that do not ask for an IP version.
func (l *lab) primary() network { return l.networks[0] }

// controlAddress is the primary address of the control plane.
func (l *lab) controlAddress() netip.Addr { return l.primary().fabric.Addr() }

// server is the URL of the API server.
func (l *lab) server() string { return "https://" + l.apiAddress().String() }

func (l *lab) apiAddress() netip.AddrPort { return netip.AddrPortFrom(l.controlAddress(), 6443) }

// has4 reports whether the cluster has IPv4.
func (l *lab) has4() bool {
	return slices.ContainsFunc(l.networks, func(n network) bool { return !n.is6() })
}
