// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"encoding/hex"
	"math/bits"
	"net/netip"
	"slices"
	"sort"

	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// PeerClass numbers a set of remote addresses that no rule on this node distinguishes. Numbers are local to
// the node. They are not reused while the agent lives, and a number never changes its meaning for rules
// that stay.
type PeerClass uint32

// World is the class of addresses that no rule names and that belong to no pod or node.
const World PeerClass = 0

// PortClass numbers a set of (protocol, port) that no rule on this node distinguishes.
type PortClass uint16

// OtherPorts is the class of protocols without ports, and of ports that no rule names.
const OtherPorts PortClass = 0

// MaxPortClasses bounds the port classes of one node (the width of a row).
const MaxPortClasses = 1024

// ClosedPorts is the class of ports that every row denies. A compiled State does not use it. Plan uses it
// as a placeholder when it runs out of classes.
const ClosedPorts PortClass = MaxPortClasses - 1

// TableID identifies a Table by the rules that it was compiled from, so that endpoints under the same rules
// share one.
type TableID [16]byte

// String returns 32 hexadecimal digits.
func (id TableID) String() string { return hex.EncodeToString(id[:]) }

// Row is the decision for every PortClass of one (Table, direction, PeerClass).
// Rows are shared: compare pointers first.
type Row struct {
	// Cells is indexed by PortClass. A class beyond its end is decided like OtherPorts. Ports that only
	// other rules distinguish therefore need no cells in a row. A row without cells denies.
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
	Rows    immutable.Map[PeerClass, *Row]
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
	// IPs are the endpoint's own addresses, at most one per family; traffic between them is not policed.
	IPs []netip.Addr
	// Further are more addresses that another CNI plugin gave the pod, and that no other object has. Policy is the same
	// for them.
	Further []netip.Addr
	Table   TableID
	// Observed: the data path reports the verdicts of the Table, but drops nothing.
	Observed bool
}

// PrefixClass gives the class of the addresses in a prefix that have neither their own entry nor a longer
// prefix.
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

// PeerClassInfo describes a class by the terms of rules that match it.
type PeerClassInfo struct {
	Class PeerClass
	// Kind is the special kind of the addresses.
	Kind AddressKind
	// Terms are the canonical texts of the peers that match, sorted.
	Terms []string
	// Names are the named ports that rules use and these pods resolve, each "name=TCP 80", sorted.
	Names []string
}

// PortClassInfo describes a class by the terms of rules that match it.
type PortClassInfo struct {
	Class PortClass
	// Terms are the canonical texts of the port matches, sorted.
	Terms []string
}

// AddressKind distinguishes addresses that rules treat differently because of their owner.
type AddressKind uint8

// The kinds of addresses.
const (
	// KindKnown is a pod's address, or one outside the cluster.
	KindKnown AddressKind = iota
	// KindThisNode is an address of the node that the State is for.
	KindThisNode
	// KindOtherNode is an address of another node.
	KindOtherNode
	// KindUnknown is in some node's pod range but belongs to no known pod. No Accept rule matches it by
	// pod; Deny rules do.
	KindUnknown
)

// String returns a word for the kind.
func (k AddressKind) String() string {
	return [...]string{"known", "this node", "other node", "unknown pod"}[k]
}

// PolicyState is what a node decides about packets of its pods: the decision for every endpoint, remote
// address and port.
type PolicyState struct {
	Endpoints map[EndpointID]EndpointState
	Tables    map[TableID]*Table
	// Addresses are the classes of single addresses: pods and nodes.
	Addresses immutable.Map[netip.Addr, PeerClass]
	// Prefixes apply to addresses that Addresses does not list; sorted by prefix. Addresses in neither are
	// World.
	Prefixes []PrefixClass
	// Ports lists the ranges whose class is not OtherPorts; disjoint, sorted by
	// protocol and First.
	Ports []PortRange
	// PeerClasses and PortClasses describe the classes in use, by number.
	PeerClasses []PeerClassInfo
	PortClasses []PortClassInfo
	// PeerTerms and PeerNames are all the terms and port names by which the rules distinguish peers;
	// sorted.
	PeerTerms, PeerNames []string
	// NextPeerClass is the first unused number.
	NextPeerClass PeerClass
}

// Class returns the PeerClass of an address: its own entry, otherwise the longest prefix that contains it,
// otherwise World.
func (s *PolicyState) Class(a netip.Addr) PeerClass {
	if c, ok := s.Addresses.Get(a); ok {
		return c
	}
	return s.PrefixClass(netip.PrefixFrom(a, a.BitLen()))
}

// PrefixClass returns the class of the longest listed prefix that contains p,
// or World.
func (s *PolicyState) PrefixClass(p netip.Prefix) PeerClass {
	for most := p.Bits(); most >= 0; most-- {
		outer, err := p.Addr().Prefix(most)
		if err != nil {
			break
		}
		i, ok := slices.BinarySearchFunc(s.Prefixes, outer, func(e PrefixClass, p netip.Prefix) int { return ComparePrefixes(e.Prefix, p) })
		if ok {
			return s.Prefixes[i].Class
		}
		// A shorter prefix that contains p sorts before outer. So does everything else up to i, and its
		// common part with p is no longer.
		if i == 0 {
			break
		}
		most = min(most, commonBits(s.Prefixes[i-1].Prefix.Addr(), p.Addr())+1)
	}
	return World
}

// commonBits counts the common leading bits of two addresses of one family.
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
func (s *PolicyState) PortClass(p Protocol, port uint16) PortClass {
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

// Decide returns the decision of an endpoint's Table for a new flow to or from a remote address. It denies
// an endpoint that the section does not contain.
func (s *PolicyState) Decide(id EndpointID, d Direction, remote netip.Addr, p Protocol, port uint16) Decision {
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
