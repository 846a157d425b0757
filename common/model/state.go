// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"encoding/hex"
	"math/bits"
	"net/netip"
	"slices"
	"sort"
)

// EndpointID names a local pod's attachment: "containerID:ifname".
type EndpointID string

// MakeEndpointID joins the two keys by which the runtime knows an attachment.
func MakeEndpointID(containerID, ifName string) EndpointID {
	return EndpointID(containerID + ":" + ifName)
}

// PeerClass numbers a set of remote addresses that no rule on this node can
// tell apart. Numbers are local to the node. They are not reused while the
// agent lives, and a number never changes its meaning for rules that stay.
type PeerClass uint32

// World is the class of addresses that no rule names and nobody owns.
const World PeerClass = 0

// PortClass numbers a set of (protocol, port) that no rule on this node can
// tell apart.
type PortClass uint16

// OtherPorts is the class of protocols without ports and of ports that no rule
// names.
const OtherPorts PortClass = 0

// MaxPortClasses bounds the port classes of one node (the width of a row).
const MaxPortClasses = 1024

// ClosedPorts is the class of ports that every row denies. A compiled State does
// not use it; it stands in where a data path runs out of classes.
const ClosedPorts PortClass = MaxPortClasses - 1

// TableID identifies a Table by the rules that it was compiled from, so that
// endpoints under the same rules share one.
type TableID [16]byte

// String returns 32 hexadecimal digits.
func (id TableID) String() string { return hex.EncodeToString(id[:]) }

// Row is the decision for every PortClass of one (Table, direction, PeerClass).
// Rows are shared: compare pointers first.
type Row struct {
	// Cells is indexed by PortClass. Classes beyond its end are decided like
	// OtherPorts, so that ports which only other rules tell apart cost a row
	// nothing. A row without cells denies.
	Cells []Decision
}

// Cell returns the decision for a class of ports.
func (r *Row) Cell(n PortClass) Decision {
	switch {
	case int(n) < len(r.Cells):
		return r.Cells[n]
	case n == ClosedPorts || len(r.Cells) == 0:
		return Decision{}
	}
	return r.Cells[OtherPorts]
}

// Uniform reports whether all cells have the same verdict, and which.
func (r *Row) Uniform() (Verdict, bool) {
	if len(r.Cells) == 0 {
		return Deny, true
	}
	for _, c := range r.Cells[1:] {
		if c.Verdict != r.Cells[0].Verdict {
			return Deny, false
		}
	}
	return r.Cells[0].Verdict, true
}

// Side is one direction of a Table.
type Side struct {
	// Default is the row of every PeerClass that Rows does not list.
	Default *Row
	Rows    Map[PeerClass, *Row]
}

// Row returns the row of a class.
func (s *Side) Row(c PeerClass) *Row {
	if r, ok := s.Rows.Get(c); ok {
		return r
	}
	return s.Default
}

// Table is the complete decision for the endpoints under one set of rules.
type Table struct {
	ID    TableID
	Sides [2]Side // by Direction
}

// EndpointState is what one endpoint should enforce.
type EndpointState struct {
	Pod PodID
	// IPs are the endpoint's own addresses; traffic between them is not policed.
	IPs   []netip.Addr
	Table TableID
}

// PrefixClass gives the class of the addresses in a prefix that have no entry
// of their own and no longer prefix.
type PrefixClass struct {
	Prefix netip.Prefix
	Class  PeerClass
}

// PortRange gives the class of the ports First..Last of a protocol.
type PortRange struct {
	Protocol    Protocol
	First, Last uint16
	Class       PortClass
}

// Route is another node, with what is needed to reach it and its pods.
type Route struct {
	Node string
	OS   OS
	// Addresses are the node's underlay addresses, at most one per family.
	Addresses []netip.Addr
	PodCIDRs  []netip.Prefix
	// Announcement is what the node says of itself.
	Announcement
}

// PeerClassInfo describes a class: which terms of the rules match it.
type PeerClassInfo struct {
	Class PeerClass
	// Kind is the special kind of the addresses.
	Kind AddressKind
	// Terms are the canonical texts of the peers that match, sorted.
	Terms []string
	// Names are the named ports that rules use and these pods resolve, each
	// "name=TCP 80", sorted.
	Names []string
}

// PortClassInfo describes a class: which terms of the rules match it.
type PortClassInfo struct {
	Class PortClass
	// Terms are the canonical texts of the port matches, sorted.
	Terms []string
}

// AddressKind separates addresses that rules treat apart for what they are.
type AddressKind uint8

// The kinds.
const (
	// KindKnown is a pod's address, or one outside the cluster.
	KindKnown AddressKind = iota
	// KindThisNode is an address of the node that the State is for.
	KindThisNode
	// KindOtherNode is an address of another node.
	KindOtherNode
	// KindUnknown is in some node's pod range, but no known pod has it: no
	// Accept rule matches it by pod, and Deny rules do.
	KindUnknown
)

// String returns a word for the kind.
func (k AddressKind) String() string {
	return [...]string{"known", "this node", "other node", "unknown pod"}[k]
}

// State is what one node should enforce, complete. Equal inputs give equal
// States. It is immutable.
type State struct {
	Node string
	// PodCIDRs are the ranges that this node's pods have their addresses from.
	PodCIDRs []netip.Prefix
	// NodeAddresses are the addresses of this node's Node object.
	NodeAddresses []netip.Addr
	Endpoints     map[EndpointID]EndpointState
	Tables        map[TableID]*Table
	// Addresses are the classes of single addresses: pods and nodes.
	Addresses Map[netip.Addr, PeerClass]
	// Prefixes are consulted for what Addresses does not list; sorted by
	// prefix. What neither lists is World.
	Prefixes []PrefixClass
	// Ports lists the ranges whose class is not OtherPorts; disjoint, sorted by
	// protocol and First.
	Ports []PortRange
	// Routes are the other nodes, sorted by name.
	Routes []Route
	// Deny is what uplinks do not take in; nil if there are no deny lists.
	Deny *DenySet
	// PeerClasses and PortClasses describe the classes in use, by number.
	PeerClasses []PeerClassInfo
	PortClasses []PortClassInfo
	// PeerTerms and PeerNames are all the terms, and names of ports, that the
	// rules can tell peers apart by; sorted.
	PeerTerms, PeerNames []string
	// NextPeerClass is the first number that was never used.
	NextPeerClass PeerClass
}

// Class returns the PeerClass of an address: its own entry, else the longest
// prefix that contains it, else World.
func (s *State) Class(a netip.Addr) PeerClass {
	if c, ok := s.Addresses.Get(a); ok {
		return c
	}
	return s.PrefixClass(netip.PrefixFrom(a, a.BitLen()))
}

// PrefixClass returns the class of the longest listed prefix that contains p,
// or World.
func (s *State) PrefixClass(p netip.Prefix) PeerClass {
	for most := p.Bits(); most >= 0; most-- {
		outer, err := p.Addr().Prefix(most)
		if err != nil {
			break
		}
		i, ok := slices.BinarySearchFunc(s.Prefixes, outer, func(e PrefixClass, p netip.Prefix) int { return ComparePrefixes(e.Prefix, p) })
		if ok {
			return s.Prefixes[i].Class
		}
		// What contains p and is shorter sorts before outer; so does everything
		// else up to i, and none of it is longer than what it shares with p.
		if i == 0 {
			break
		}
		most = min(most, commonBits(s.Prefixes[i-1].Prefix.Addr(), p.Addr())+1)
	}
	return World
}

// commonBits counts the leading bits that two addresses of one family share.
func commonBits(a, b netip.Addr) int {
	if a.BitLen() != b.BitLen() {
		return 0
	}
	n := 0
	x, y := a.As16(), b.As16()
	for i := range x {
		if same := bits.LeadingZeros8(x[i] ^ y[i]); same < 8 {
			n += same
			break
		}
		n += 8
	}
	return n - (128 - a.BitLen())
}

// PortClass returns the class of a protocol and port.
func (s *State) PortClass(p Protocol, port uint16) PortClass {
	if !p.HasPorts() {
		return OtherPorts
	}
	i := sort.Search(len(s.Ports), func(i int) bool {
		r := s.Ports[i]
		return r.Protocol > p || r.Protocol == p && r.Last >= port
	})
	if i < len(s.Ports) && s.Ports[i].Protocol == p && s.Ports[i].First <= port {
		return s.Ports[i].Class
	}
	return OtherPorts
}

// Decide gives the decision of an endpoint's Table for a new flow to or from a
// remote address. An endpoint that the State does not list is denied.
func (s *State) Decide(id EndpointID, d Direction, remote netip.Addr, p Protocol, port uint16) Decision {
	e, ok := s.Endpoints[id]
	if !ok || s.Tables[e.Table] == nil {
		return Decision{Verdict: Deny, Cause: &Cause{Reason: ReasonPending, Direction: d}}
	}
	if slices.Contains(e.IPs, remote) {
		return Decision{Verdict: Allow, Cause: &Cause{Reason: ReasonSelf, Direction: d}}
	}
	return s.Tables[e.Table].Sides[d].Row(s.Class(remote)).Cell(s.PortClass(p, port))
}

// ComparePrefixes orders prefixes by family, address, then length.
func ComparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
