// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// ACL is the HNS ACLs of every endpoint, for every profile of HNS, decided under
// every reading of what HNS leaves undocumented. They must all agree.
type ACL struct {
	variants []aclVariant
	readings [2][]hns.Reading
}

// aclVariant is one form of the lists. IPv6 is left out by the oldest profile,
// whose HNS does not know it, so that only IPv4 is asked of it.
type aclVariant struct {
	Variant
	nodes map[string]*aclNode
}

// Variant is a form of the lists and the profiles of HNS that take it.
type Variant struct {
	Name    string
	Options acl.Options
}

// Variants lists the forms that the lists have for the profiles of HNS.
// Profiles with the same features get the same lists.
func Variants() []Variant {
	var all []Variant
	for _, v := range hns.Profiles() {
		o := acl.Options{Sets: v.Supports(hns.Sets), NoIPv6: !v.Supports(hns.DualStack)}.Defaults()
		i := slices.IndexFunc(all, func(have Variant) bool {
			return have.Options.Sets == o.Sets && have.Options.NoIPv6 == o.NoIPv6
		})
		if i >= 0 {
			all[i].Name += ", " + v.String()
			continue
		}
		all = append(all, Variant{Name: "HNS " + v.String(), Options: o})
	}
	return all
}

// aclNode is what one node's HNS holds, and the parsed lists so far asked for.
// Endpoints that share a list share what was parsed.
type aclNode struct {
	ruleset *acl.Ruleset
	rules   map[*hns.ACL]*hns.Rules
}

// NewACL returns the engine for all profiles.
func NewACL() *ACL {
	a := &ACL{readings: ReadingsBySet()}
	for _, v := range Variants() {
		a.variants = append(a.variants, aclVariant{Variant: v})
	}
	return a
}

// ReadingsBySet lists the readings of HNS, those that agree on what sets match
// together: for them the same rules match an address.
func ReadingsBySet() (groups [2][]hns.Reading) {
	for _, r := range hns.Readings() {
		groups[r.Set] = append(groups[r.Set], r)
	}
	return groups
}

// Name implements Engine.
func (*ACL) Name() string { return "acl" }

// Load implements Engine. Lists that are in force and still right are kept, as
// on a node.
func (a *ACL) Load(c *Cluster) error {
	for i := range a.variants {
		v := &a.variants[i]
		before := v.nodes
		v.nodes = make(map[string]*aclNode, len(c.States))
		for node, state := range c.States {
			lowering := acl.Lower(state, v.Options, v.Name)
			ruleset := &acl.Ruleset{}
			if was := before[node]; was != nil {
				ruleset = was.ruleset
			}
			v.nodes[node] = &aclNode{ruleset: lowering.Keep(ruleset), rules: make(map[*hns.ACL]*hns.Rules)}
		}
	}
	return nil
}

// Decide implements Engine.
func (a *ACL) Decide(q Question) (model.Verdict, error) {
	if q.self() {
		return model.Allow, nil // never leaves the compartment
	}
	if !q.possible() {
		return model.Deny, ErrImpossible
	}
	var said saying
	for i := range a.variants {
		v := &a.variants[i]
		if v.Options.NoIPv6 && q.Remote.Is6() {
			continue
		}
		rules, err := v.nodes[q.Node].rulesOf(q.Endpoint)
		if err != nil {
			return model.Deny, fmt.Errorf("%s: %w", v.Name, err)
		}
		for _, group := range a.readings {
			part := rules.Between(acl.PacketDirection(q.Direction), q.local(), q.Remote, group[0])
			for _, reading := range group {
				if err := said.note(v.Name, reading, part.Under(reading).Decide(uint8(q.Protocol), q.Port, probePort)); err != nil {
					return model.Deny, err
				}
			}
		}
	}
	return said.verdict, nil
}

// probePort is the port that a packet comes from, on protocols that have any.
const probePort = 40000

// saying is what the first variant and reading said; the others must agree.
type saying struct {
	variant string
	reading hns.Reading
	verdict model.Verdict
}

func (s *saying) note(variant string, reading hns.Reading, o hns.Outcome) error {
	got := model.Deny
	if o.Allow {
		got = model.Allow
	}
	switch {
	case s.variant == "":
		*s = saying{variant, reading, got}
	case got != s.verdict:
		return fmt.Errorf("%s, %s says %s, %s, %s says %s", s.variant, s.reading, s.verdict, variant, reading, got)
	}
	return nil
}

// local is the pod's address of the family of the remote one; invalid if it has
// none.
func (q Question) local() netip.Addr {
	for _, ip := range q.Pod.IPs {
		if ip.Is6() == q.Remote.Is6() {
			return ip
		}
	}
	return netip.Addr{}
}

// possible reports whether a packet of the cell can exist.
func (q Question) possible() bool {
	switch {
	case q.Protocol == model.ICMP && q.Remote.Is6(), q.Protocol == model.ICMPv6 && q.Remote.Is4():
		return false
	}
	return q.local().IsValid()
}

func (n *aclNode) rulesOf(id model.EndpointID) (*hns.Rules, error) {
	list := n.ruleset.Lists[id]
	if len(list) == 0 {
		return n.ruleset.Rules(id)
	}
	if r, ok := n.rules[&list[0]]; ok {
		return r, nil
	}
	r, err := ParseList(n.ruleset, list)
	if err == nil {
		n.rules[&list[0]] = r
	}
	return r, err
}

// ParseList reads one list of a ruleset as HNS does, with the sets that it
// refers to.
func ParseList(p *acl.Ruleset, list []hns.ACL) (*hns.Rules, error) {
	var sets []hns.SetPolicy
	for _, id := range setsOf(list) {
		if members, ok := p.Sets[id]; ok {
			sets = append(sets, acl.EncodeSet(id, members))
		}
	}
	return hns.ParseRules(list, sets)
}

// setsOf lists the sets of ours that a list refers to.
func setsOf(list []hns.ACL) []string {
	var ids []string
	for _, a := range list {
		for _, text := range []string{a.LocalAddresses, a.RemoteAddresses} {
			for _, id := range strings.Split(text, ",") {
				if acl.OwnSet(id) {
					ids = append(ids, id)
				}
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Close implements Engine.
func (*ACL) Close() error { return nil }
