// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"strconv"
	"strings"
)

// Protocol is an IP protocol number (IANA "Assigned Internet Protocol Numbers").
type Protocol uint8

// The protocols that policies name. AnyProtocol is only for rules that leave the protocol open; it never
// occurs in a Flow.
const (
	AnyProtocol Protocol = 0
	ICMP        Protocol = 1
	TCP         Protocol = 6
	UDP         Protocol = 17
	ICMPv6      Protocol = 58
	SCTP        Protocol = 132
)

// PortProtocols lists the protocols with ports, in the order of port tables.
var PortProtocols = [...]Protocol{TCP, UDP, SCTP}

// HasPorts reports whether the protocol carries 16-bit port numbers that
// policies can name.
func (p Protocol) HasPorts() bool { return p == TCP || p == UDP || p == SCTP }

// String returns the name used in Kubernetes objects, or the number.
func (p Protocol) String() string {
	switch p {
	case AnyProtocol:
		return "any"
	case ICMP:
		return "ICMP"
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case ICMPv6:
		return "ICMPv6"
	case SCTP:
		return "SCTP"
	}
	return strconv.Itoa(int(p))
}

// Words returns the name of the protocol, or "protocol 47" for one without, where a number alone would read as a port.
func (p Protocol) Words() string {
	if name := p.String(); name != strconv.Itoa(int(p)) {
		return name
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// ParseProtocol parses a protocol name in any case ("TCP", "icmpv6") or a number from 1 to 255.
func ParseProtocol(s string) (Protocol, error) {
	for _, p := range []Protocol{ICMP, TCP, UDP, ICMPv6, SCTP} {
		if strings.EqualFold(s, p.String()) {
			return p, nil
		}
	}
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("protocol %q: want TCP, UDP, SCTP, ICMP, ICMPv6 or a number from 1 to 255", s)
	}
	return Protocol(n), nil
}

// Direction is the direction of a connection as seen from the pod that a
// policy selects: Ingress towards the pod, Egress away from it.
type Direction uint8

// The two directions. They index arrays of length 2.
const (
	Ingress Direction = 0
	Egress  Direction = 1
)

// Directions lists both, for loops.
var Directions = [...]Direction{Ingress, Egress}

// String returns "ingress" or "egress".
func (d Direction) String() string {
	if d == Egress {
		return "egress"
	}
	return "ingress"
}

// Verdict is the result of policy for a new connection.
type Verdict uint8

// The verdicts. The zero value is Deny, so that an undecided connection is denied.
const (
	Deny  Verdict = 0
	Allow Verdict = 1
)

// String returns "deny" or "allow".
func (v Verdict) String() string {
	if v == Allow {
		return "allow"
	}
	return "deny"
}

// Action is the action of a rule.
type Action uint8

// The actions of ClusterNetworkPolicy; NetworkPolicy rules only accept.
const (
	ActionDeny Action = iota
	ActionAccept
	// ActionPass skips the rest of the tier.
	ActionPass
	// ActionMayPass is the Pass rule of a policy that may or may not select the pod. A connection that it
	// matches may have left the tier. The tier can then still deny the connection, but not accept it: an
	// Accept rule that matches later passes it on.
	ActionMayPass
)

// String returns the spelling of the ClusterNetworkPolicy API.
func (a Action) String() string {
	switch a {
	case ActionAccept:
		return "Accept"
	case ActionPass:
		return "Pass"
	case ActionMayPass:
		return "Pass (perhaps)"
	}
	return "Deny"
}

// Tier orders policies: Admin before NetworkPolicy before Baseline.
type Tier uint8

// The tiers, in order of evaluation.
const (
	TierAdmin Tier = iota
	TierNetworkPolicy
	TierBaseline
)

// String returns "Admin", "NetworkPolicy" or "Baseline".
func (t Tier) String() string {
	switch t {
	case TierAdmin:
		return "Admin"
	case TierBaseline:
		return "Baseline"
	}
	return "NetworkPolicy"
}
