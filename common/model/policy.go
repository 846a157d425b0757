// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
	"strings"
)

// Origin names the API object that a policy comes from.
type Origin struct {
	Kind      string // NetworkPolicy, ClusterNetworkPolicy
	Namespace string // empty for cluster-scoped kinds
	Name      string
	UID       string
}

// String returns "Kind namespace/name".
func (o Origin) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// Compare orders by kind, namespace and name.
func (o Origin) Compare(other Origin) int {
	if c := strings.Compare(o.Kind, other.Kind); c != 0 {
		return c
	}
	if c := strings.Compare(o.Namespace, other.Namespace); c != 0 {
		return c
	}
	return strings.Compare(o.Name, other.Name)
}

// Policy is one policy object, normalised: API defaults are applied and every field is valid. Constructs
// that this version does not understand are represented so that they fail closed.
type Policy struct {
	Origin Origin
	Tier   Tier
	// Priority orders policies inside the Admin and Baseline tiers, 0..1000, lower first. A negative value
	// means that the priority is unknown. NetworkPolicies have none, because their rules only add up.
	Priority int
	// Subject selects the pods that the policy applies to.
	Subject PodSelector
	// Isolates is true, per Direction, if a selected pod accepts only what some rule of the NetworkPolicy
	// tier accepts. It is always false in other tiers.
	Isolates [2]bool
	// Rules are the rules per Direction, in the order of the object.
	Rules [2][]Rule
}

// Rule is one rule of a policy.
type Rule struct {
	// Index is the rule's position in its list in the API object, from 0.
	Index int
	// Name is the rule's name, if the API has one.
	Name   string
	Action Action
	// AnyPeer makes the rule match every remote address; Peers is then empty. Otherwise the rule matches
	// what one of Peers matches. Without AnyPeer and Peers it matches nothing.
	AnyPeer bool
	Peers   []Peer
	// AnyPort makes the rule match every protocol and port; Ports is then empty. Otherwise the rule matches
	// what one of Ports matches.
	AnyPort bool
	Ports   []PortMatch
}

// PodSelector selects pods by namespace and labels.
type PodSelector struct {
	// Namespace, if set, is the only namespace; otherwise Namespaces selects namespaces by their labels.
	Namespace  string
	Namespaces Selector
	Pods       Selector
}

// MatchesNamespace reports whether pods of the namespace can match.
func (s PodSelector) MatchesNamespace(ns *Namespace) bool {
	if s.Namespace != "" {
		return ns.Name == s.Namespace
	}
	return s.Namespaces.Matches(ns.Labels)
}

// String returns a canonical text.
func (s PodSelector) String() string {
	ns := "namespaces{" + s.Namespaces.String() + "}"
	if s.Namespace != "" {
		ns = "namespace " + s.Namespace
	}
	return ns + " pods{" + s.Pods.String() + "}"
}

// PeerKind is the kind of a Peer and determines which of its fields are used.
type PeerKind uint8

// The kinds of peers.
const (
	// PeerUnknown is a peer that this version does not understand (a newer API). As the
	// ClusterNetworkPolicy API demands it fails closed: in an Accept rule it matches nothing, in a Deny or
	// Pass rule it denies everything.
	PeerUnknown PeerKind = iota
	PeerPods
	PeerBlock
	PeerNodes
)

// Peer is one alternative for the remote end.
type Peer struct {
	Kind  PeerKind
	Pods  PodSelector // PeerPods
	Block IPBlock     // PeerBlock
	Nodes Selector    // PeerNodes: addresses of the nodes with these labels
}

// String returns a canonical text.
func (p Peer) String() string {
	switch p.Kind {
	case PeerPods:
		return p.Pods.String()
	case PeerBlock:
		return p.Block.String()
	case PeerNodes:
		return "nodes{" + p.Nodes.String() + "}"
	}
	return "unknown"
}

// IPBlock is a CIDR with exceptions. Prefixes are masked.
type IPBlock struct {
	CIDR   netip.Prefix
	Except []netip.Prefix
}

// Contains reports whether the address is in the CIDR and in no exception. It applies to the address on the
// wire, pod addresses included.
func (b IPBlock) Contains(a netip.Addr) bool {
	if !b.CIDR.Contains(a) {
		return false
	}
	for _, e := range b.Except {
		if e.Contains(a) {
			return false
		}
	}
	return true
}

// String returns "cidr" or "cidr except a,b".
func (b IPBlock) String() string {
	if len(b.Except) == 0 {
		return b.CIDR.String()
	}
	parts := make([]string, len(b.Except))
	for i, e := range b.Except {
		parts[i] = e.String()
	}
	return b.CIDR.String() + " except " + strings.Join(parts, ",")
}

// PortMatch is one alternative for the ports of a rule.
type PortMatch struct {
	// Protocol has ports; AnyProtocol only together with Name.
	Protocol Protocol
	// Name, if set, is resolved on the destination pod, and First and Last are zero. A name without a match
	// matches nothing.
	Name string
	// First and Last are inclusive; 0 and 65535 mean every port.
	First, Last uint16
}

// String returns "TCP 80", "TCP 80-90", "TCP *" or "TCP http".
func (m PortMatch) String() string {
	switch {
	case m.Name != "":
		return fmt.Sprintf("%s %s", m.Protocol, m.Name)
	case m.First == 0 && m.Last == 65535:
		return m.Protocol.String() + " *"
	case m.First == m.Last:
		return fmt.Sprintf("%s %d", m.Protocol, m.First)
	}
	return fmt.Sprintf("%s %d-%d", m.Protocol, m.First, m.Last)
}
