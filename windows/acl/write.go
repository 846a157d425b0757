// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// entry is an ACL that is being added to a list.
type entry struct {
	hns.ACL
	slot slot
	node bool
}

// list returns the ACLs of a table, and the causes of rules that did not fit.
func (w *writer) list(id model.TableID) ([]hns.ACL, []*model.Cause) {
	var sides [2][]entry
	for _, d := range model.Directions {
		for i := range w.tables[id][d].rules {
			sides[d] = append(sides[d], w.entries(slot{id, d, i})...)
		}
	}
	dropped := w.fit(&sides)
	var list []hns.ACL
	priority := uint16(firstPriority)
	for _, d := range model.Directions {
		first := uint16(nodePriority)
		for _, e := range sides[d] {
			if e.node && first < firstPriority {
				e.Priority = first
				first++
			} else {
				e.Priority = priority
				priority++
			}
			list = append(list, e.ACL)
			w.putSets(e)
		}
	}
	return append(list, hostRule(hns.In), hostRule(hns.Out)), dropped
}

// entries converts one rule to ACLs: one for its prefixes, one for its single addresses or per set of them.
func (w *writer) entries(s slot) []entry {
	r := w.rule(s)
	base := entry{slot: s, node: r.node}
	base.ACL = hns.ACL{Protocols: protocolText(r.protocols), Action: hns.Block, Direction: hns.In, RuleType: hns.Switch}
	if r.verdict == model.Allow {
		base.Action = hns.Allow
	}
	if s.d == model.Egress {
		base.Direction = hns.Out
		base.RemotePorts = portText(r.ports)
	} else {
		base.LocalPorts = portText(r.ports)
	}
	base.ID = w.ruleID(s, base.ACL)
	if r.who.anyone {
		return []entry{base}
	}
	var list []entry
	inSets := w.hashes[s] != ""
	for _, text := range w.addressTexts(s, !inSets) {
		e := base
		e.RemoteAddresses = text
		list = append(list, e)
	}
	if !inSets {
		return list
	}
	parts := chunks(w.members(r), w.index.options.MaxMembers)
	for n := range len(parts) {
		e := base
		id := setID(w.hashes[s], r.who.family, chunk{n, len(parts)})
		// With sets Local is the source and Remote the destination.
		if s.d == model.Egress {
			e.RemoteAddresses = id
		} else {
			e.LocalAddresses = id
		}
		list = append(list, e)
	}
	return list
}

// members returns the single addresses of a rule, ascending.
func (w *writer) members(r *rule) []netip.Addr {
	var addrs []netip.Addr
	for _, c := range r.who.addrGroups {
		addrs = append(addrs, w.index.families[r.who.family].addrGroups[c].addrs...)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// addressTexts returns the prefixes of a rule, and with singles also its single addresses, as address
// members of at most MaxMembers each.
func (w *writer) addressTexts(s slot, singles bool) []string {
	r := w.rule(s)
	f := &w.index.families[r.who.family]
	var list []netip.Prefix
	for _, p := range r.who.prefixes {
		if pieces, ok := w.tables[s.table][s.d].pieces[r.who.family][p]; ok {
			list = append(list, pieces...)
		} else {
			list = append(list, f.prefixes[p].prefix)
		}
	}
	if singles {
		for _, a := range w.members(r) {
			list = append(list, single(a))
		}
		if r.node {
			for _, a := range f.node {
				list = append(list, single(a))
			}
		}
	}
	var texts []string
	for part := range slices.Chunk(canonical(list), w.index.options.MaxMembers) {
		words := make([]string, len(part))
		for i, p := range part {
			words[i] = addressText(p)
		}
		texts = append(texts, strings.Join(words, ","))
	}
	return texts
}

// maxID is the maximum length of an ACL's Id, in bytes; VFP shows it as the rule's friendly name.
const maxID = 60

// ruleID describes a rule so that a list is readable: direction, verdict, protocols and ports, and a hash
// of the policy rules behind it.
func (w *writer) ruleID(s slot, a hns.ACL) string {
	r := w.rule(s)
	d := strings.ToLower(string(a.Direction))
	verdict := strings.ToLower(string(a.Action))
	switch last := len(w.tables[s.table][s.d].rules) - 1; {
	case r.node:
		return d + " node " + verdict
	case s.rule == last:
		return d + " default " + verdict
	}
	what := "all"
	if r.protocols != nil {
		names := make([]string, len(r.protocols))
		for i, p := range r.protocols {
			names[i] = strings.ToLower(p.String())
		}
		what = strings.Join(names, "+")
		if r.ports != nil {
			what += " " + portText(r.ports)
		}
	}
	mark := " #" + hash(w.key(s))[:8]
	id := fmt.Sprintf("%s %s %s", d, verdict, what)
	if len(id)+len(mark) > maxID {
		id = id[:maxID-len(mark)-2] + ".."
	}
	return id + mark
}

// putSets adds the set that an ACL refers to.
func (w *writer) putSets(e entry) {
	id := setOf(e.ACL)
	if id == "" || w.Sets[id] != nil {
		return
	}
	_, c, _ := parseSetID(id)
	members := []netip.Addr{}
	for _, a := range w.members(w.rule(e.slot)) {
		if c.has(a) {
			members = append(members, a)
		}
	}
	w.Sets[id] = members
}

// fit drops rules until the list is within MaxRules. It drops only what is allowed: the list then ends in a
// rule that blocks.
func (w *writer) fit(sides *[2][]entry) (dropped []*model.Cause) {
	room := w.index.options.MaxRules - 2 // without the two Host rules
	for len(sides[0])+len(sides[1]) > room {
		d := model.Ingress
		if len(sides[1]) > len(sides[0]) {
			d = model.Egress
		}
		// The longer direction is shortened, down to the length of the other.
		target := max(room-len(sides[1-d]), room/2)
		var lost []*model.Cause
		sides[d], lost = w.truncate(sides[d], target)
		dropped = append(dropped, lost...)
	}
	return dropped
}

// truncate returns at most n entries. It drops entries from the end and also drops blocks that would then be
// last. The list ends in a block, which decides the packets of dropped Allows.
func (w *writer) truncate(list []entry, n int) ([]entry, []*model.Cause) {
	var lost []*model.Cause
	last := list[len(list)-1]
	if last.Action == hns.Allow {
		lost = append(lost, w.causesOrDirection(last.slot)...)
		last.Action = hns.Block
		last.ID = strings.ToLower(string(last.Direction)) + " default block"
	}
	list = list[:len(list)-1]
	for len(list)+1 > n || len(list) > 0 && list[len(list)-1].Action == hns.Block {
		e := list[len(list)-1]
		if e.Action == hns.Allow {
			lost = append(lost, w.causesOrDirection(e.slot)...)
		}
		list = list[:len(list)-1]
	}
	return append(slices.Clone(list), last), lost
}

// causesOrDirection never returns an empty list, so that every loss is reported.
func (w *writer) causesOrDirection(s slot) []*model.Cause {
	if causes := w.causes(s); len(causes) > 0 {
		return causes
	}
	return []*model.Cause{{Direction: s.d}}
}
