// SPDX-License-Identifier: Apache-2.0

package hostroute

import "net/netip"

// Family is a version of IP. It is an index of Interface.Forwarding.
type Family int

// The families.
const (
	IPv4 Family = iota
	IPv6
)

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is6() {
		return IPv6
	}
	return IPv4
}

// String is "IPv4" or "IPv6".
func (f Family) String() string { return [...]string{"IPv4", "IPv6"}[f] }

// Interface is an interface of the host.
type Interface struct {
	Index uint32
	// Name is its alias, such as "vEthernet (Ethernet)".
	Name string
	// MTU is in bytes.
	MTU int
	// Addresses are its own, with the prefix lengths of their segments.
	Addresses []netip.Prefix
	// Forwarding reports whether it forwards packets that arrive on it, by family.
	Forwarding [2]bool
}

// Has reports whether an address belongs to the interface.
func (i Interface) Has(a netip.Addr) bool {
	for _, p := range i.Addresses {
		if p.Addr() == a {
			return true
		}
	}
	return false
}

// Stack is the IP stack of a host.
type Stack interface {
	Table
	// Remove removes a route by its destination, next hop and interface. A missing route is not an error.
	Remove(Route) error
	// Interfaces lists the interfaces.
	Interfaces() ([]Interface, error)
	// SetForwarding turns IP forwarding of an interface on or off, for one family.
	SetForwarding(index uint32, family Family, on bool) error
}
