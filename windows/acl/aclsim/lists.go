// SPDX-License-Identifier: Apache-2.0

package aclsim

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Lists is the ACLs of one node for some profiles of HNS, for a comparison of all cells. One
// goroutine calls Prepare, List and Members. After them Readings, Divide and Explain are
// safe for concurrent use.
type Lists struct {
	Variant
	Ruleset *acl.Ruleset
	// Unsupported is what the lowering denies although the State allows it.
	Unsupported []model.Unsupported

	numbers map[*hns.ACL]int
	rules   map[model.EndpointID]*parsed
	byList  map[int]*parsed
}

// parsed is a list as HNS reads it, with the readings of HNS in groups. Under all readings
// of a group the same rules match an address.
type parsed struct {
	rules  *hns.Rules
	groups [][]hns.Reading
}

// Encode lowers a State on a new node, for every form of the lists.
func Encode(state *model.State) []*Lists {
	var all []*Lists
	for _, v := range Variants() {
		l := acl.Lower(state, v.Options, v.Name)
		all = append(all, &Lists{Variant: v, Ruleset: l.Keep(&acl.Ruleset{}), Unsupported: l.Unsupported})
	}
	return all
}

// Title names the profiles.
func (l *Lists) Title() string { return l.Name }

// Excuses reports whether the lists may deny everything about an address that the State
// allows: an HNS without IPv6 may deny all IPv6.
func (l *Lists) Excuses(remote netip.Addr) bool { return remote.Is6() && l.Options.NoIPv6 }

// noIPv6 is the construct that package acl reports for an HNS without IPv6.
const noIPv6 = "IPv6"

// Reported lists the other flows that the lists deny although the State allows them.
func (l *Lists) Reported() []model.Unsupported {
	return slices.DeleteFunc(slices.Clone(l.Unsupported), func(u model.Unsupported) bool { return u.Construct == noIPv6 })
}

// List numbers the list of an endpoint; endpoints that share one have equal
// numbers. It returns false if the endpoint has no ACLs, so that HNS passes
// everything.
func (l *Lists) List(id model.EndpointID) (number int, ok bool) {
	list := l.Ruleset.Lists[id]
	if len(list) == 0 {
		return -1, false
	}
	if l.numbers == nil {
		l.numbers = make(map[*hns.ACL]int)
	}
	number, ok = l.numbers[&list[0]]
	if !ok {
		number = len(l.numbers)
		l.numbers[&list[0]] = number
	}
	return number, true
}

// distinct returns the lists without duplicates.
func (l *Lists) distinct() [][]hns.ACL {
	seen := make(map[*hns.ACL]bool)
	var all [][]hns.ACL
	for _, list := range l.Ruleset.Lists {
		if len(list) > 0 && !seen[&list[0]] {
			seen[&list[0]] = true
			all = append(all, list)
		}
	}
	return all
}

// Members returns the distinct meanings of the address members of the ACLs: their prefixes,
// and the members of each set that they name. The error names a member that HNS could not
// read.
func (l *Lists) Members() ([][]netip.Prefix, error) {
	var all [][]netip.Prefix
	seen := make(map[string]bool)
	for _, list := range l.distinct() {
		for _, a := range list {
			for _, text := range []string{a.LocalAddresses, a.RemoteAddresses} {
				if text == "" || seen[text] {
					continue
				}
				seen[text] = true
				m, err := members(text, l.Ruleset.Sets)
				if err != nil {
					return nil, err
				}
				all = append(all, m...)
			}
		}
	}
	return all, nil
}

// members reads an address member: its prefixes, and each set that it names.
func members(text string, sets map[string][]netip.Addr) ([][]netip.Prefix, error) {
	list, err := hns.ParseAddresses(text)
	if err != nil {
		return nil, err
	}
	all := [][]netip.Prefix{list.Prefixes}
	for _, id := range list.Sets {
		var set []netip.Prefix
		for _, a := range sets[id] {
			set = append(set, netip.PrefixFrom(a, a.BitLen()))
		}
		all = append(all, set)
	}
	return all, nil
}

// Ranges yields the ranges of ports that the ACLs name, and protocols without ports as a
// range from 0 to 0. It omits values that HNS could not read, because Prepare reports those.
func (l *Lists) Ranges() iter.Seq[model.PortMatch] {
	return func(yield func(model.PortMatch) bool) {
		for _, list := range l.distinct() {
			for _, a := range list {
				for _, m := range ranges(a) {
					if !yield(m) {
						return
					}
				}
			}
		}
	}
}

func ranges(a hns.ACL) []model.PortMatch {
	var all []model.PortMatch
	protocols, _ := hns.ParseProtocols(a.Protocols)
	for _, p := range protocols {
		if protocol := model.Protocol(p); !protocol.HasPorts() {
			all = append(all, model.PortMatch{Protocol: protocol})
		}
	}
	for _, text := range []string{a.LocalPorts, a.RemotePorts} {
		found, _ := hns.ParsePorts(text)
		for _, p := range found {
			for _, protocol := range model.PortProtocols {
				all = append(all, model.PortMatch{Protocol: protocol, First: p.First, Last: p.Last})
			}
		}
	}
	return all
}

// Prepare reads the list of an endpoint as HNS does. The error describes what HNS would
// reject.
func (l *Lists) Prepare(id model.EndpointID) error {
	if l.rules == nil {
		l.rules, l.byList = make(map[model.EndpointID]*parsed), make(map[int]*parsed)
	}
	number, _ := l.List(id)
	if l.byList[number] == nil {
		rules, err := ParseList(l.Ruleset, l.Ruleset.Lists[id])
		if err != nil {
			return err
		}
		p := &parsed{rules: rules, groups: [][]hns.Reading{hns.Readings()}}
		if rules.EmptySets() {
			bySet := ReadingsBySet()
			p.groups = bySet[:]
		}
		l.byList[number] = p
	}
	l.rules[id] = l.byList[number]
	return nil
}

// Readings returns the number of readings of HNS in each group, for the list of an endpoint.
func (l *Lists) Readings(id model.EndpointID) []int {
	var sizes []int
	for _, g := range l.rules[id].groups {
		sizes = append(sizes, len(g))
	}
	return sizes
}

// Divide divides remote addresses by the rules that match them, in one direction and for
// each group of readings: of[group][i] is the part of remotes[i], counted from 0. under
// returns the verdicts of a part under one reading of its group.
func (l *Lists) Divide(id model.EndpointID, d model.Direction, remotes []netip.Addr) (of [][]int,
	under func(group, part, reading int) func(model.Protocol, uint16) bool) {
	p := l.rules[id]
	parts := make([][]hns.Part, len(p.groups))
	of = make([][]int, len(p.groups))
	for g, readings := range p.groups {
		parts[g], of[g] = p.rules.Parts(acl.PacketDirection(d), netip.Addr{}, remotes, readings[0])
	}
	return of, func(group, part, reading int) func(model.Protocol, uint16) bool {
		rules := parts[group][part].Under(p.groups[group][reading])
		return func(protocol model.Protocol, port uint16) bool { return rules.Decide(uint8(protocol), port, 0).Allow }
	}
}

// Explain returns the decision of an endpoint's list for one cell and the rule that decides:
// once if all readings agree, else for the first two that differ.
func (l *Lists) Explain(id model.EndpointID, d model.Direction, remote netip.Addr, p model.Protocol, port uint16,
	say func(by string, v model.Verdict, cause string)) {
	type answer struct {
		by, cause string
		verdict   model.Verdict
	}
	var said []answer
	bySet := ReadingsBySet()
	for _, reading := range slices.Concat(bySet[0], bySet[1]) {
		out := l.rules[id].rules.Between(acl.PacketDirection(d), netip.Addr{}, remote, reading).Decide(uint8(p), port, 0)
		a := answer{by: l.Name + ", " + reading.String(), verdict: model.Deny}
		if out.Allow {
			a.verdict = model.Allow
		}
		if out.Index >= 0 {
			a.cause = "rule " + out.ID
		}
		if len(said) == 0 || a.verdict != said[0].verdict {
			said = append(said, a)
		}
		if len(said) == 2 {
			break
		}
	}
	if len(said) == 1 {
		said[0].by = l.Name
	}
	for _, a := range said {
		say(a.by, a.verdict, a.cause)
	}
}
