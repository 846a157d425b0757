// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// ACL is the HNS ACLs of every endpoint, for every profile of HNS, decided under
// every reading of what HNS leaves undocumented. They must all agree.
type ACL struct {
	variants []aclVariant
	states   map[string]*model.State
}

// aclVariant is one form of the lists. IPv6 is left out by the oldest profile,
// whose HNS does not know it, so that only IPv4 is asked of it.
type aclVariant struct {
	name    string
	options acl.Options
	nodes   map[string]*aclNode
}

// aclNode is what one node's HNS holds, and the parsed lists so far asked for.
type aclNode struct {
	programme *acl.Programme
	rules     map[model.EndpointID]*hns.Rules
}

// NewACL returns the engine for all profiles.
func NewACL() *ACL {
	a := &ACL{}
	for _, v := range hns.Profiles() {
		o := acl.Options{Sets: v.Supports(hns.Sets), NoIPv6: !v.Supports(hns.DualStack)}.Defaults()
		a.variants = append(a.variants, aclVariant{name: "HNS " + v.String(), options: o})
	}
	return a
}

// Name implements Engine.
func (*ACL) Name() string { return "acl" }

// Load implements Engine. Lists that are in force and still right are kept, as
// on a node.
func (a *ACL) Load(c *Cluster) error {
	a.states = c.States
	for i := range a.variants {
		v := &a.variants[i]
		before := v.nodes
		v.nodes = make(map[string]*aclNode, len(c.States))
		for node, state := range c.States {
			lowering := acl.Lower(state, v.options, v.name)
			programme := &acl.Programme{}
			if was := before[node]; was != nil {
				programme = was.programme
			}
			v.nodes[node] = &aclNode{programme: lowering.Keep(programme), rules: make(map[model.EndpointID]*hns.Rules)}
		}
	}
	return nil
}

// Decide implements Engine.
func (a *ACL) Decide(q Question) (model.Verdict, error) {
	if q.self() {
		return model.Allow, nil // never leaves the compartment
	}
	first, verdict := "", model.Deny
	for i := range a.variants {
		v := &a.variants[i]
		if v.options.NoIPv6 && q.Remote.Is6() {
			continue
		}
		rules, err := v.nodes[q.Node].rulesOf(q.Endpoint)
		if err != nil {
			return model.Deny, fmt.Errorf("%s: %w", v.name, err)
		}
		for _, reading := range hns.Readings() {
			p := hns.Packet{Direction: acl.PacketDirection(q.Direction), Remote: q.Remote, Protocol: uint8(q.Protocol), Port: q.Port, SourcePort: 40000}
			for _, ip := range q.Pod.IPs {
				if ip.Is6() == q.Remote.Is6() {
					p.Local = ip
				}
			}
			if !p.Local.IsValid() {
				return model.Deny, ErrImpossible
			}
			got := model.Deny
			if rules.Decide(p, reading).Allow {
				got = model.Allow
			}
			name := v.name + ", " + reading.String()
			if first == "" {
				first, verdict = name, got
			} else if got != verdict {
				return model.Deny, fmt.Errorf("%s says %s, %s says %s", first, verdict, name, got)
			}
		}
	}
	return verdict, nil
}

func (n *aclNode) rulesOf(id model.EndpointID) (*hns.Rules, error) {
	if r, ok := n.rules[id]; ok {
		return r, nil
	}
	r, err := n.programme.Rules(id)
	if err == nil {
		n.rules[id] = r
	}
	return r, err
}

// Close implements Engine.
func (*ACL) Close() error { return nil }
