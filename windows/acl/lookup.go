// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// EncodedSets returns the sets of a Ruleset in the form of HNS.
func (p *Ruleset) EncodedSets() []hns.SetPolicy {
	var sets []hns.SetPolicy
	for id, members := range p.Sets {
		sets = append(sets, EncodeSet(id, members))
	}
	return sets
}

// Rules returns an endpoint's list as HNS evaluates it. The error names what HNS would refuse.
func (p *Ruleset) Rules(id model.EndpointID) (*hns.Rules, error) {
	return hns.ParseRules(p.Lists[id], p.EncodedSets())
}

// Lookup decides a packet by a list and the sets that it refers to, with the evaluator of package hns. The
// error names what HNS would refuse.
func Lookup(list []hns.ACL, sets []hns.SetPolicy, p hns.Packet, reading hns.Reading) (hns.Outcome, error) {
	rules, err := hns.ParseRules(list, sets)
	if err != nil {
		return hns.Outcome{}, err
	}
	return rules.Decide(p, reading), nil
}

// PacketDirection returns the HNS name of a direction.
func PacketDirection(d model.Direction) hns.Direction {
	if d == model.Egress {
		return hns.Out
	}
	return hns.In
}
