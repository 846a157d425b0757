// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
	"strconv"
)

// Flow is a new connection, or the first packet of a connectionless protocol, as on the wire. A service
// address is already replaced by that of a backend.
type Flow struct {
	Src, Dst netip.Addr
	Protocol Protocol
	// Port is the destination port; 0 for protocols without ports.
	Port uint16
}

// String returns "src -> dst TCP/80".
func (f Flow) String() string {
	return fmt.Sprintf("%s -> %s %s/%d", f.Src, f.Dst, f.Protocol, f.Port)
}

// Reason is the kind of cause of a Decision.
type Reason uint8

// The reasons.
const (
	// ReasonDefault: no policy isolates the pod in this direction.
	ReasonDefault Reason = iota
	// ReasonRule: a rule of a policy matched.
	ReasonRule
	// ReasonIsolated: NetworkPolicies isolate the pod and none accepts.
	ReasonIsolated
	// ReasonSelf: a pod always reaches itself.
	ReasonSelf
	// ReasonNode: the pod's own node always reaches it.
	ReasonNode
	// ReasonPending: the policy is not known (yet), so all traffic is denied.
	ReasonPending
)

// Cause is the rule or default that led to a Decision.
type Cause struct {
	Reason Reason
	// Origin, Tier, Direction and Rule (the index in the API object) name the rule of ReasonRule. For
	// ReasonIsolated Origin is the first policy that isolates.
	Origin    Origin
	Tier      Tier
	Direction Direction
	Rule      int
	// RuleName is the rule's name, if the API has one.
	RuleName string
	// Meaning is a hash of what the rule of ReasonRule says; 0 if it is not known. Two rules of a policy and
	// direction never share one. Counters follow it: a rule that only moves to another index keeps its own.
	Meaning uint64 `json:"-"`
}

// String returns the cause in one line.
func (c Cause) String() string {
	switch c.Reason {
	case ReasonRule:
		name := strconv.Itoa(c.Rule)
		if c.RuleName != "" {
			name += " (" + c.RuleName + ")"
		}
		return fmt.Sprintf("%s rule %s of %s, tier %s", c.Direction, name, c.Origin, c.Tier)
	case ReasonIsolated:
		return fmt.Sprintf("isolated for %s by %s, no rule accepts", c.Direction, c.Origin)
	case ReasonSelf:
		return "a pod always reaches itself"
	case ReasonNode:
		return "the pod's own node always reaches it"
	case ReasonPending:
		return "policy not known yet"
	}
	return "no policy isolates the pod for " + c.Direction.String()
}

// Decision is a verdict and its cause.
type Decision struct {
	Verdict Verdict
	Cause   *Cause
}

// String returns "allow: cause".
func (d Decision) String() string {
	if d.Cause == nil {
		return d.Verdict.String()
	}
	return d.Verdict.String() + ": " + d.Cause.String()
}
