// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Keep returns the Ruleset to apply, given the one in force. Writing an endpoint's list may reset its
// connections. A list that still gives the right verdicts therefore stays, even if Lower would write it
// differently. Examples are a rule whose last pod is gone, and equal verdicts from other policies. Check
// proves whether a list is right, with the future members of its sets.
//
// Every endpoint of the State has a list in the result, and no other.
func (l *Lowering) Keep(inForce *Ruleset) *Ruleset {
	k := &keeper{Lowering: l, checker: newChecker(l.index), orphans: make(map[string][]netip.Addr), done: make(map[string]bool)}
	target := &Ruleset{Lists: make(map[model.EndpointID][]hns.ACL, len(l.Lists)), Sets: make(map[string][]netip.Addr)}
	for _, id := range slices.Sorted(maps.Keys(l.Lists)) {
		list := l.Lists[id]
		if have := inForce.Lists[id]; Equal(have, list) || k.right(id, have) {
			for _, set := range l.inlinedSets(list, have) {
				target.Sets[set] = l.Sets[set] // for the next write of the list
			}
			list = have
		}
		target.Lists[id] = list
		for _, set := range setsOf(list) {
			target.Sets[set] = k.members(set)
		}
	}
	return target
}

// keeper checks lists that are in force.
type keeper struct {
	*Lowering
	checker *checker
	// orphans are the members of sets that Lower no longer uses.
	orphans map[string][]netip.Addr
	done    map[string]bool // results by table and list
}

// members returns the future members of a set.
func (k *keeper) members(set string) []netip.Addr {
	if m, ok := k.Sets[set]; ok {
		return m
	}
	return k.orphans[set]
}

// right reports whether a list in force may stay.
func (k *keeper) right(id model.EndpointID, list []hns.ACL) bool {
	if len(list) > 2*len(k.Lists[id])+8 || len(list) > k.index.options.MaxRules || !WellFormed(list) {
		return false
	}
	if slices.ContainsFunc(list, func(a hns.ACL) bool { return !provable(a) }) {
		return false
	}
	if !k.index.options.Sets && len(setsOf(list)) > 0 {
		return false // sets were turned off, as HNS might not enforce them
	}
	e := k.index.state.Policy.Endpoints[id]
	// Endpoints under one table share the result, so it must not depend on their own addresses.
	key := e.Table.String() + hns.FormatACLs("", list)
	right, ok := k.done[key]
	if !ok {
		right = k.prove(id, e, list)
		k.done[key] = right
	}
	return right
}

// provable reports whether a rule names only what Lower names: the peer, and the port of the destination. Check knows
// neither the pod's address nor the port of the source, and proves nothing about rules that do.
func provable(a hns.ACL) bool {
	a = a.Normal()
	switch {
	case a.RuleType == hns.Host:
		return true // WellFormed decides
	case a.Direction == hns.Out:
		return a.LocalAddresses == "" && a.LocalPorts == ""
	}
	// With sets Local is the source, so that a set in Remote is one of the pod's address.
	remote, err := hns.ParseAddresses(a.RemoteAddresses)
	bySet := OwnSet(a.LocalAddresses) && a.RemoteAddresses == ""
	return a.RemotePorts == "" && (bySet || a.LocalAddresses == "" && err == nil && len(remote.Sets) == 0)
}

func (k *keeper) prove(id model.EndpointID, e model.EndpointState, list []hns.ACL) bool {
	adopted := make(map[string][]netip.Addr)
	sets := make(map[string][]netip.Addr)
	for _, a := range list {
		set := setOf(a)
		if set == "" {
			continue
		}
		_, fresh := k.Sets[set]
		_, known := k.orphans[set]
		switch {
		case fresh, known:
			sets[set] = k.members(set)
		default:
			members, ok := k.adopt(e.Table, set, a)
			if !ok {
				return false
			}
			adopted[set], sets[set] = members, members
		}
	}
	p := &Ruleset{Lists: map[model.EndpointID][]hns.ACL{id: list}, Sets: sets}
	rules, err := p.Rules(id)
	if err != nil || k.checker.check(id, nil, list, sets, rules, []hns.Reading{{}}) != nil {
		return false
	}
	maps.Copy(k.orphans, adopted)
	return true
}

// adopt returns the members of a set that only a list in force refers to. It derives them from the ACL: the
// members that the set would have if Lower had written the rule. An empty result is valid.
func (k *keeper) adopt(table model.TableID, set string, a hns.ACL) ([]netip.Addr, bool) {
	v, part, ok := parseSetID(set)
	t := k.index.state.Policy.Tables[table]
	if !ok || t == nil {
		return nil, false
	}
	a = a.Normal()
	d, ports := model.Ingress, a.LocalPorts
	if a.Direction == hns.Out {
		d, ports = model.Egress, a.RemotePorts
	}
	cells, rank, ok := k.index.cellsOf(a.Protocols, ports)
	if !ok {
		return nil, false
	}
	s := newSide(k.index, t, d)
	f := &k.index.families[v]
	members := []netip.Addr{}
	for i, c := range f.addrGroups {
		want, rest := s.verdicts(c.class), s.verdicts(f.prefixes[c.cover].class)
		says := want
		if a.Action == hns.Block {
			says = k.index.all.minus(want)
		}
		behind := k.index.rank(want, rest, newCellSet(len(k.index.cells))).behind[rank]
		if !cells.within(says) || !cells.meets(want.differ(behind)) || slices.Contains(s.nodeIn[v], i) {
			continue
		}
		for _, m := range c.addrs {
			if part.has(m) {
				members = append(members, m)
			}
		}
	}
	slices.SortFunc(members, netip.Addr.Compare)
	return members, len(members) <= k.index.options.MaxMembers
}

// cellsOf returns the rank of a rule and the cells that determine its members: those of its ports, or those
// that represent whole protocols or everything. ok is false if the ports divide a cell.
func (x *index) cellsOf(protocols, ports string) (cells cellSet, rank int, ok bool) {
	named, err := hns.ParseProtocols(protocols)
	ranges, err2 := hns.ParsePorts(ports)
	if err != nil || err2 != nil {
		return nil, 0, false
	}
	cells = newCellSet(len(x.cells))
	if len(named) == 0 {
		cells.add(0)
		return cells, rankEverything, true
	}
	for i, c := range x.cells {
		if i == 0 || !slices.Contains(named, uint8(c.protocol)) {
			continue
		}
		if len(ranges) == 0 && c.first == 0 {
			cells.add(i)
		}
		for _, r := range ranges {
			switch {
			case r.First <= c.first && c.last <= r.Last:
				cells.add(i)
			case r.First <= c.last && c.first <= r.Last:
				return nil, 0, false
			}
		}
	}
	if len(ranges) == 0 {
		return cells, rankProtocols, true
	}
	return cells, rankPorts, true
}

// WellFormed reports whether the verdicts of a list are the same under every Reading. Every Switch rule has
// its own priority, each direction ends in a rule that matches everything, and the firewall of the pod is
// open.
func WellFormed(list []hns.ACL) bool {
	seen := make(map[uint16]bool)
	terminal, host := make(map[hns.Direction]bool), make(map[hns.Direction]bool)
	for _, a := range list {
		a = a.Normal()
		everything := a.Protocols == strconv.Itoa(hns.AnyProtocol) && a.LocalAddresses == "" && a.RemoteAddresses == "" && a.LocalPorts == "" && a.RemotePorts == ""
		switch {
		case a.RuleType == hns.Host:
			if _, twice := host[a.Direction]; twice {
				return false // their priorities would decide
			}
			host[a.Direction] = everything && a.Action == hns.Allow
		case seen[a.Priority]:
			return false
		default:
			seen[a.Priority] = true
			terminal[a.Direction] = terminal[a.Direction] || everything
		}
	}
	return terminal[hns.In] && terminal[hns.Out] && host[hns.In] && host[hns.Out]
}
