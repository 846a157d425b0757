// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
)

// HostPort is a port of the node that leads to a port of a pod.
type HostPort struct {
	// Address is one of the node's; the zero Addr stands for all, and the
	// unspecified address of a family for all of that.
	Address  netip.Addr `json:"address"`
	Number   uint16     `json:"number"`
	Protocol Protocol   `json:"protocol"`
	// Port is the pod's.
	Port uint16 `json:"port"`
}

// Is reports whether the host port is reached at addresses of a family.
func (h HostPort) Is(v6 bool) bool { return !h.Address.IsValid() || h.Address.Is6() == v6 }

// All reports whether it is reached at every address of its families.
func (h HostPort) All() bool { return !h.Address.IsValid() || h.Address.IsUnspecified() }

// Overlaps reports whether some packet is for both.
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

// String returns "TCP 192.0.2.1:80", without address if it stands for all.
func (h HostPort) String() string {
	if !h.Address.IsValid() {
		return fmt.Sprintf("%s %d", h.Protocol, h.Number)
	}
	return fmt.Sprintf("%s %s", h.Protocol, netip.AddrPortFrom(h.Address, h.Number))
}
