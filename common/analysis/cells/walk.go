// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"context"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// walk goes over the cells of one subject and direction.
type walk struct {
	*vectors
	s *subject
	d model.Direction
	// reference is what the reference says, by what it can tell of an address.
	reference map[string]vector
	// columns are the answers about the peers, by rule of the subject; answers are
	// those about one peer.
	columns [][]policy.Answer
	answers []policy.Answer
	// lists are what the subject's lists make of the peers, by variant and set of
	// readings.
	lists  [][]listWalk
	result Result
}

// listWalk is one list under readings for which the same rules match an address.
type listWalk struct {
	rules    *hns.Rules
	readings []hns.Reading
	// parts are the rules that match some address, and of the part of each peer's
	// first address; said is what each part says, nil until it is asked.
	parts []hns.Part
	of    []int
	said  [][]vector
}

// prepare finds what the subject's lists make of all peers.
func (w *walk) prepare() {
	w.lists = make([][]listWalk, len(w.s.rules))
	for v, rules := range w.s.rules {
		for _, readings := range w.s.readings[v] {
			l := listWalk{rules: rules, readings: readings}
			l.parts, l.of = rules.Parts(acl.PacketDirection(w.d), netip.Addr{}, w.firsts, readings[0])
			l.said = make([][]vector, len(l.parts))
			w.lists[v] = append(w.lists[v], l)
		}
	}
}

// says is what a list says of a member of a peer, under each reading.
func (w *walk) says(l *listWalk, i, member int) []vector {
	if member > 0 { // the first is the subject's own
		return w.listed(l.rules.Between(acl.PacketDirection(w.d), netip.Addr{}, w.peers[i].members[member], l.readings[0]), l.readings)
	}
	part := l.of[i]
	if l.said[part] == nil {
		l.said[part] = w.listed(l.parts[part], l.readings)
	}
	return l.said[part]
}

// tableRow is what the table says of a peer.
func (w *walk) tableRow(p *peer) *model.Row {
	if w.s.table != nil {
		if r := w.s.table.Sides[w.d].Row(p.class); r != nil {
			return r
		}
	}
	return w.denies
}

// compare compares all cells, until the context ends.
func (w *walk) compare(ctx context.Context) {
	w.reference = make(map[string]vector)
	if r := w.s.reference[w.d]; r != nil {
		for _, rule := range r.Rules() {
			w.columns = append(w.columns, w.comparison.answers[w.place[rule]])
		}
		w.answers = make([]policy.Answer, len(w.columns))
	}
	w.prepare()
	for i := range w.peers {
		if i%1024 == 0 && ctx.Err() != nil {
			return
		}
		p := &w.peers[i]
		member := w.s.remote(p)
		if member < 0 {
			continue
		}
		w.result.Cells += len(w.ports)
		clear(w.differ)
		clear(w.excused)
		if !w.comparePeer(i, member) {
			continue
		}
		for n := range w.excused {
			w.excused[n] &^= w.differ[n]
		}
		w.result.Differ += w.differ.count()
		w.result.OverBlocked += w.excused.count()
		for n := range w.ports {
			if w.differ.has(n) && len(w.result.Differences) < maxKept {
				w.result.Differences = append(w.result.Differences, w.describe(p, p.members[member], w.ports[n]))
			}
		}
	}
}

// comparePeer compares every side with the table. It reports whether one differs.
func (w *walk) comparePeer(i, member int) bool {
	p := &w.peers[i]
	remote := p.members[member]
	table := w.row(w.tableRow(p))
	found := false
	if w.s.reference[w.d] != nil {
		var denied vector
		if len(w.node.Reported) > 0 { // the compiler said that something is not exact
			denied = table
		}
		found = note(w.differ, w.excused, table, w.evaluated(i, member), denied)
	}
	if e := w.node.Entries; e != nil {
		found = note(w.differ, w.excused, table, w.mapped(e, e.Row(w.s.slot, w.d, p.mapped)), nil) || found
	}
	for v := range w.lists {
		excused := w.excuses(v, remote)
		for n := range w.lists[v] {
			for _, side := range w.says(&w.lists[v][n], i, member) {
				var denied vector
				if excused {
					denied = side
				}
				found = note(w.differ, w.excused, table, side, denied) || found
			}
		}
	}
	return found
}

// evaluated is what the reference says of a peer.
func (w *walk) evaluated(i, member int) vector {
	r, remote := w.s.reference[w.d], w.peers[i].remotes[member]
	for n, column := range w.columns {
		w.answers[n] = column[i]
	}
	key := r.Alike(remote, w.answers)
	list, ok := w.reference[key]
	if !ok {
		at := r.At(remote, w.answers)
		list = w.make(func(_ int, p portPoint) bool { return at.Decide(p.protocol, p.port).Verdict == model.Allow })
		w.reference[key] = list
	}
	return list
}

// excuses reports whether a list may deny what the table allows. An HNS that knows
// no IPv6 may deny all of it; it must never allow what the table denies.
func (w *walk) excuses(v int, remote netip.Addr) bool {
	return w.s.reported[v] || remote.Is6() && w.node.Lists[v].Options.NoIPv6
}

func decide(part hns.Part, at portPoint) model.Verdict {
	if part.Decide(uint8(at.protocol), at.port, 0).Allow {
		return model.Allow
	}
	return model.Deny
}

// describe asks every side about one cell.
func (w *walk) describe(p *peer, remote netip.Addr, at portPoint) Difference {
	x := Difference{Node: w.node.State.Node, Endpoint: w.s.id, Pod: w.s.state.Pod, Direction: w.d, Remote: remote, Protocol: at.protocol, Port: at.port}
	if owner := w.owners.Pods[remote]; owner != nil {
		x.RemotePod = owner.PodID
	}
	say := func(by string, d model.Decision) {
		s := Said{By: by, Verdict: d.Verdict}
		if d.Cause != nil {
			s.Cause = d.Cause.String()
		}
		x.Says = append(x.Says, s)
	}
	if r := w.s.reference[w.d]; r != nil {
		say("evaluate", r.Decide(remote, at.protocol, at.port))
	}
	say("tables", w.tableRow(p).Cell(w.node.State.PortClass(at.protocol, at.port)))
	if e := w.node.Entries; e != nil {
		say("maps", model.Decision{Verdict: e.Lookup(w.s.slot, w.d, remote, at.protocol, at.port)})
	}
	for v, rules := range w.s.rules {
		w.describeACL(&x, w.node.Lists[v].Name, rules, remote, at)
	}
	return x
}

// describeACL adds what a list says: once if all readings agree.
func (w *walk) describeACL(x *Difference, name string, rules *hns.Rules, remote netip.Addr, at portPoint) {
	var said []Said
	for _, reading := range slices.Concat(w.readings[0], w.readings[1]) {
		part := rules.Between(acl.PacketDirection(w.d), netip.Addr{}, remote, reading)
		out := part.Decide(uint8(at.protocol), at.port, 0)
		s := Said{By: name + ", " + reading.String(), Verdict: decide(part, at)}
		if out.Index >= 0 {
			s.Cause = "rule " + out.ID
		}
		if len(said) == 0 || s.Verdict != said[0].Verdict {
			said = append(said, s)
		}
		if len(said) == 2 {
			break
		}
	}
	if len(said) == 1 {
		said[0].By = name
	}
	x.Says = append(x.Says, said...)
}
