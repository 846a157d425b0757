// SPDX-License-Identifier: Apache-2.0

package vfp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// ruleKey identifies a rule of a port: VFP has the ACLs of a list in a group for each family and direction.
type ruleKey struct {
	index int // in the list; -1 for none
	v6    bool
}

// matched counts packets by rule, since the rules are in force.
type matched map[ruleKey]uint64

func (m matched) add(k ruleKey) {
	if k.index >= 0 {
		m[k]++
	}
}

func ruleOf(out hns.Outcome, k flowKey) ruleKey { return ruleKey{out.Index, k.remote.Is6()} }

// keeps reports whether a flow still passes. The rule that allows it has then matched the packet.
func (p *port) keeps(f *flow, d hns.Direction, key flowKey, o *Options) bool {
	if f.generation != p.generation {
		f.rule = ruleKey{index: -1}
		if o.Change == FlowsDecidedAgain {
			out := p.ask(f.opened, key, o)
			if !out.Allow {
				return false
			}
			f.rule = ruleOf(out, key)
		}
	}
	if d == f.opened && !o.CountFlows {
		p.matched.add(f.rule)
	}
	return true
}

// Port is a port of the switch, as VFP lists it.
type Port struct {
	// GUID is the name of the port in VFP. Friendly is the id of the endpoint, or another text for the host.
	GUID, Friendly string
}

// portGUID returns a GUID that no endpoint has.
func portGUID(n uint32) string { return fmt.Sprintf("%08X-9F07-4A52-B1D4-0123456789AB", n) }

// VFPPorts lists the ports.
func (s *Switch) VFPPorts() (all []Port) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, p := range s.ports {
		friendly := strings.ToUpper(p.id)
		if p.host {
			friendly = "Container NIC " + p.guid[:8]
		}
		all = append(all, Port{p.guid, friendly})
	}
	slices.SortFunc(all, func(a, b Port) int { return cmp.Compare(a.GUID, b.GUID) })
	return all
}

// Group is a group of rules of a port, in the order of the list.
type Group struct {
	Direction hns.Direction
	V6        bool
	Rules     []RuleCount
}

// RuleCount is a rule with the packets that it has matched since the list was written.
type RuleCount struct {
	ACL     hns.ACL
	Matched uint64
}

// VFPRules returns the rules that a port has for ACLs; ok is false if there is no port with this GUID.
func (s *Switch) VFPRules(guid string) (groups []Group, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, p := range s.ports {
		if strings.EqualFold(p.guid, guid) {
			return p.groups(), true
		}
	}
	return nil, false
}

func (p *port) groups() (all []Group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v6 := range []bool{false, true} {
		for _, d := range []hns.Direction{hns.In, hns.Out} {
			g := Group{Direction: d, V6: v6}
			for i, a := range p.spec.ACLs {
				if a = a.Normal(); a.Direction == d && a.RuleType == hns.Switch && hasFamily(a, v6) {
					g.Rules = append(g.Rules, RuleCount{a, p.matched[ruleKey{i, v6}]})
				}
			}
			all = append(all, g)
		}
	}
	return all
}

// hasFamily reports whether packets of a family can match an ACL. A set can have both.
func hasFamily(a hns.ACL, v6 bool) bool {
	for _, text := range []string{a.LocalAddresses, a.RemoteAddresses} {
		list, err := hns.ParseAddresses(text)
		if err != nil || text == "" || len(list.Sets) > 0 {
			continue
		}
		if !slices.ContainsFunc(list.Prefixes, func(p netip.Prefix) bool { return p.Addr().Is6() == v6 }) {
			return false
		}
	}
	return true
}
