// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// The constructs that policies are made of, as Use.Construct names them.
const (
	ConstructEveryAddress     = "every address"       // no from or to
	ConstructSelector         = "selector"            // pods by their labels
	ConstructNegativeSelector = "negative selector"   // NotIn, DoesNotExist
	ConstructBlock            = "ipBlock"             // or a network of a cluster-wide policy
	ConstructExcept           = "except"              // excluded ranges of an ipBlock
	ConstructBlock6           = "ipBlock IPv6"        // a block of IPv6 addresses
	ConstructNodes            = "nodes"               // nodes by labels
	ConstructUnknown          = "unknown construct"   // unknown to this version, or refused by it
	ConstructEveryProtocol    = "every protocol"      // no ports
	ConstructPort             = "port"                // one number
	ConstructRange            = "endPort"             // a range of ports
	ConstructAllPorts         = "protocol"            // all ports of a protocol
	ConstructNamedPort        = "named port"          // resolved on the destination pod
	ConstructSCTP             = "SCTP"                // a port of SCTP
	ConstructAccept           = "cluster-wide Accept" // with a priority
	ConstructDeny             = "cluster-wide Deny"
	ConstructPass             = "cluster-wide Pass"
)

// Use is one construct in one rule of a policy.
type Use struct {
	Policy    model.Origin
	Direction model.Direction
	// Rule is the index in the API object.
	Rule      int
	Construct string
}

// Enforceability states how a platform enforces a construct.
type Enforceability struct {
	Use
	Platform model.Features
	Exact    bool
	// Effect and Reason describe the substitute if the enforcement is not exact.
	Effect model.Effect
	Reason string
}

// String returns "exact", "over-blocks" or "refused".
func (e Enforceability) String() string {
	if e.Exact {
		return "exact"
	}
	return e.Effect.String()
}

// Uses lists the constructs of a policy, each once for every rule. It omits rules of a
// direction that policyTypes does not list, because they have no effect.
func Uses(p *model.Policy) []Use {
	var all []Use
	for _, d := range model.Directions {
		if p.Tier == model.TierNetworkPolicy && !p.Isolates[d] {
			continue
		}
		for i := range p.Rules[d] {
			r := &p.Rules[d][i]
			var found []string
			found = append(found, peerConstructs(r)...)
			found = append(found, portConstructs(r)...)
			if p.Tier != model.TierNetworkPolicy {
				found = append(found, [...]string{model.ActionDeny: ConstructDeny, model.ActionAccept: ConstructAccept,
					model.ActionPass: ConstructPass, model.ActionMayPass: ConstructPass}[r.Action])
			}
			slices.Sort(found)
			for _, c := range slices.Compact(found) {
				all = append(all, Use{p.Origin, d, r.Index, c})
			}
		}
	}
	return all
}

func peerConstructs(r *model.Rule) []string {
	if r.AnyPeer {
		return []string{ConstructEveryAddress}
	}
	var found []string
	for _, p := range r.Peers {
		switch p.Kind {
		case model.PeerPods:
			found = append(found, ConstructSelector)
			if negative(p.Pods.Namespaces) || negative(p.Pods.Pods) {
				found = append(found, ConstructNegativeSelector)
			}
		case model.PeerBlock:
			found = append(found, ConstructBlock)
			if len(p.Block.Except) > 0 {
				found = append(found, ConstructExcept)
			}
			if p.Block.CIDR.Addr().Is6() {
				found = append(found, ConstructBlock6)
			}
		case model.PeerNodes:
			found = append(found, ConstructNodes)
			if negative(p.Nodes) {
				found = append(found, ConstructNegativeSelector)
			}
		default:
			found = append(found, ConstructUnknown)
		}
	}
	return found
}

func negative(s model.Selector) bool {
	return slices.ContainsFunc(s.Requirements(), func(r model.Requirement) bool {
		return r.Operator == model.NotIn || r.Operator == model.DoesNotExist
	})
}

func portConstructs(r *model.Rule) []string {
	if r.AnyPort {
		return []string{ConstructEveryProtocol}
	}
	var found []string
	for _, m := range r.Ports {
		switch {
		case m.Name != "":
			found = append(found, ConstructNamedPort)
		case m.First == 0 && m.Last == 65535:
			found = append(found, ConstructAllPorts)
		case m.First == m.Last:
			found = append(found, ConstructPort)
		default:
			found = append(found, ConstructRange)
		}
		if m.Protocol == model.SCTP {
			found = append(found, ConstructSCTP)
		}
	}
	return found
}

// Enforce reports how a platform enforces every construct of the policies. reported is what
// the compiler and the lowering of that platform over-block or refuse; everything else they
// enforce exactly. A report on a rule concerns every construct of the rule, a report on a
// policy every rule of it, and a report without a policy all policies.
func Enforce(policies []*model.Policy, platform model.Features, reported []model.Unsupported) []Enforceability {
	byPolicy := make(map[model.Origin][]model.Unsupported)
	for _, u := range reported {
		byPolicy[u.Policy.Key()] = append(byPolicy[u.Policy.Key()], u)
	}
	var all []Enforceability
	for _, p := range policies {
		mine := slices.Concat(byPolicy[p.Origin.Key()], byPolicy[model.Origin{}])
		for _, use := range Uses(p) {
			all = append(all, enforce(p, use, platform, mine))
		}
	}
	return all
}

func enforce(p *model.Policy, use Use, platform model.Features, reported []model.Unsupported) Enforceability {
	e := Enforceability{Use: use, Platform: platform, Exact: true}
	worse := func(effect model.Effect, reason string) {
		if e.Exact || effect == model.Refused && e.Effect != model.Refused {
			e.Exact, e.Effect, e.Reason = false, effect, reason
		}
	}
	for _, u := range reported {
		if u.Rule < 0 || u.Rule == use.Rule && u.Direction == use.Direction {
			worse(u.Effect, fmt.Sprintf("%s: %s", u.Construct, u.Reason))
		}
	}
	switch {
	case use.Construct == ConstructUnknown:
		worse(model.OverBlocks, failsClosed(p, use))
	case use.Construct == ConstructBlock6 && !platform.IPv6:
		worse(model.OverBlocks, "the platform has no IPv6 rules; IPv6 is denied where policies isolate")
	}
	return e
}

// failsClosed describes the effect of a rule that this version does not understand.
func failsClosed(p *model.Policy, use Use) string {
	for _, r := range p.Rules[use.Direction] {
		if r.Index == use.Rule && r.Action != model.ActionAccept {
			return "a construct that this version does not know or cannot enforce; the rule denies everything"
		}
	}
	return "a construct that this version does not know or cannot enforce; the rule matches nothing"
}
