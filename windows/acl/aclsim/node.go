// SPDX-License-Identifier: Apache-2.0

package aclsim

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Variant is a form of the lists, with the profiles of HNS that accept it.
type Variant struct {
	Name    string
	Options acl.Options
}

// Variants lists the forms of the lists for the profiles of HNS. Profiles with the same
// features get the same lists.
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

// Node is the ACLs that the HNS of one node would hold, for every profile. It belongs to one
// goroutine.
type Node struct {
	state    *model.State
	variants []variant
	readings [2][]hns.Reading
}

// variant is one form of the lists, with a cache of the parsed lists. Endpoints that share a
// list share its parsed form.
type variant struct {
	Variant
	ruleset *acl.Ruleset
	rules   map[*hns.ACL]*hns.Rules
}

// New returns a Node for all profiles, without any list.
func New() *Node {
	n := &Node{state: &model.State{}, readings: ReadingsBySet()}
	for _, v := range Variants() {
		n.variants = append(n.variants, variant{Variant: v, ruleset: &acl.Ruleset{}})
	}
	return n
}

// Apply lowers a State. It keeps lists in force that are still right, as a node does. The
// error is always nil.
func (n *Node) Apply(s *model.State) error {
	n.state = s
	for i := range n.variants {
		v := &n.variants[i]
		v.ruleset = acl.Lower(s, v.Options, v.Name).Keep(v.ruleset)
		v.rules = make(map[*hns.ACL]*hns.Rules)
	}
	return nil
}

// Decide returns the common decision of all profiles and readings for a flow. The endpoint
// must have an address of the remote one's family. Decide skips profiles without IPv6 for an
// IPv6 flow.
func (n *Node) Decide(id model.EndpointID, d model.Direction, remote netip.Addr, p model.Protocol, port uint16) (model.Verdict, error) {
	local := n.local(id, remote)
	var said saying
	for i := range n.variants {
		v := &n.variants[i]
		if v.Options.NoIPv6 && remote.Is6() {
			continue
		}
		rules, err := v.rulesOf(id)
		if err != nil {
			return model.Deny, fmt.Errorf("%s: %w", v.Name, err)
		}
		for _, group := range n.readings {
			part := rules.Between(acl.PacketDirection(d), local, remote, group[0])
			for _, reading := range group {
				if err := said.note(v.Name, reading, part.Under(reading).Decide(uint8(p), port, probePort)); err != nil {
					return model.Deny, err
				}
			}
		}
	}
	return said.verdict, nil
}

// Close does nothing; the lists are in memory only.
func (n *Node) Close() error { return nil }

// local returns the endpoint's address of the family of the remote one; invalid if there is
// none.
func (n *Node) local(id model.EndpointID, remote netip.Addr) netip.Addr {
	for _, ip := range n.state.Policy.Endpoints[id].IPs {
		if ip.Is6() == remote.Is6() {
			return ip
		}
	}
	return netip.Addr{}
}

func (v *variant) rulesOf(id model.EndpointID) (*hns.Rules, error) {
	list := v.ruleset.Lists[id]
	if len(list) == 0 {
		return v.ruleset.Rules(id)
	}
	if r, ok := v.rules[&list[0]]; ok {
		return r, nil
	}
	r, err := ParseList(v.ruleset, list)
	if err == nil {
		v.rules[&list[0]] = r
	}
	return r, err
}

// probePort is the source port of a packet, for protocols with ports.
const probePort = 40000

// saying is the decision of the first variant and reading; the others must agree.
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

// ReadingsBySet groups the readings of HNS by the meaning of sets: under the readings of a
// group the same rules match an address.
func ReadingsBySet() (groups [2][]hns.Reading) {
	for _, r := range hns.Readings() {
		groups[r.Set] = append(groups[r.Set], r)
	}
	return groups
}

// ParseList reads one list of a ruleset as HNS does, with the sets that it refers to.
func ParseList(p *acl.Ruleset, list []hns.ACL) (*hns.Rules, error) {
	var sets []hns.SetPolicy
	for _, id := range setsOf(list) {
		if members, ok := p.Sets[id]; ok {
			sets = append(sets, acl.EncodeSet(id, members))
		}
	}
	return hns.ParseRules(list, sets)
}

// setsOf lists the sets of Isthmus that a list refers to.
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
