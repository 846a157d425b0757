// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// HostPort is a port of the node that is forwarded to a port of a pod.
type HostPort struct {
	// Address is one of the node's. The zero Addr means all addresses, the unspecified address of a family
	// all of that family.
	Address  netip.Addr `json:"address"`
	Number   uint16     `json:"number"`
	Protocol Protocol   `json:"protocol"`
	// Port is the pod's port.
	Port uint16 `json:"port"`
}

// Is reports whether the host port applies to addresses of a family.
func (h HostPort) Is(v6 bool) bool { return !h.Address.IsValid() || h.Address.Is6() == v6 }

// All reports whether it applies to every address of its families.
func (h HostPort) All() bool { return !h.Address.IsValid() || h.Address.IsUnspecified() }

// Overlaps reports whether a packet can match both.
func (h HostPort) Overlaps(other HostPort) bool {
	if h.Protocol != other.Protocol || h.Number != other.Number {
		return false
	}
	for _, v6 := range []bool{false, true} {
		if h.Is(v6) && other.Is(v6) && (h.All() || other.All() || h.Address == other.Address) {
			return true
		}
	}
	return false
}

// TakenBy reports whether a socket that listens on the node keeps the port from pods. A socket at a
// loopback address does so only if the pod requests that address. Packets from elsewhere never reach the
// socket, and connections of the node to it are not forwarded to the pod.
func (h HostPort) TakenBy(socket HostPort) bool {
	return h.Overlaps(socket) && (!socket.Address.IsLoopback() || h.Address.IsLoopback())
}

// HostPort returns the host port of the pod for a port of an address of its node, and reports whether it has one.
func (p *Pod) HostPort(at netip.AddrPort, protocol Protocol) (HostPort, bool) {
	i := slices.IndexFunc(p.HostPorts, func(h HostPort) bool {
		return h.Protocol == protocol && h.Number == at.Port() && h.Is(at.Addr().Is6()) && (h.All() || h.Address == at.Addr())
	})
	if i < 0 {
		return HostPort{}, false
	}
	return p.HostPorts[i], true
}

// Compare orders host ports by address, number, protocol and the pod's port.
func (h HostPort) Compare(other HostPort) int {
	return cmp.Or(h.Address.Compare(other.Address), cmp.Compare(h.Number, other.Number), cmp.Compare(h.Protocol, other.Protocol), cmp.Compare(h.Port, other.Port))
}

// String returns "TCP 192.0.2.1:80", without an address if it applies to all.
func (h HostPort) String() string {
	if !h.Address.IsValid() {
		return fmt.Sprintf("%s %d", h.Protocol, h.Number)
	}
	return fmt.Sprintf("%s %s", h.Protocol, netip.AddrPortFrom(h.Address, h.Number))
}
