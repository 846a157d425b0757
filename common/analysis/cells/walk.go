// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"context"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// walk iterates over the cells of one subject and direction.
type walk struct {
	*vectors
	s *subject
	d model.Direction
	// reference caches the verdicts of the reference, by everything that it reads of an
	// address.
	reference map[string]vector
	// columns are the answers for the peers, by rule of the subject; answers are those for
	// one peer.
	columns [][]policy.Answer
	answers []policy.Answer
	// lists are the results of the subject's lists for the peers, by Lists and group of
	// readings.
	lists  [][]listWalk
	result Result
}

// listWalk is one list under one group of readings.
type listWalk struct {
	lists    Lists
	group    int
	readings int
	// of is the part of each peer's first address. under returns the ports that the rules of
	// a part allow. said caches the verdicts of each part; nil until it is needed.
	of    []int
	under func(group, part, reading int) func(model.Protocol, uint16) bool
	said  [][]vector
}

// prepare evaluates the subject's lists for all peers.
func (w *walk) prepare() {
	w.lists = make([][]listWalk, len(w.node.Lists))
	for v, lists := range w.node.Lists {
		of, under := lists.Divide(w.s.id, w.d, w.firsts)
		for group, readings := range lists.Readings(w.s.id) {
			l := listWalk{lists: lists, group: group, readings: readings, of: of[group], under: under}
			if len(l.of) > 0 {
				l.said = make([][]vector, slices.Max(l.of)+1)
			}
			w.lists[v] = append(w.lists[v], l)
		}
	}
}

// says returns the verdicts of a list for a member of a peer, under each reading.
func (w *walk) says(l *listWalk, i, member int) []vector {
	if member > 0 { // the first member is the subject's own
		of, under := l.lists.Divide(w.s.id, w.d, w.peers[i].members[member:member+1])
		return w.listed(l.readings, func(reading int) func(model.Protocol, uint16) bool { return under(l.group, of[l.group][0], reading) })
	}
	part := l.of[i]
	if l.said[part] == nil {
		l.said[part] = w.listed(l.readings, func(reading int) func(model.Protocol, uint16) bool { return l.under(l.group, part, reading) })
	}
	return l.said[part]
}

// tableRow returns the row of the table for a peer.
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
		if len(w.node.Reported) > 0 { // the compiler reported that something is not exact
			denied = table
		}
		found = note(w.differ, w.excused, table, w.evaluated(i, member), denied)
	}
	if m := w.node.Maps; m != nil {
		found = note(w.differ, w.excused, table, w.mapped(m.Row(w.s.slot, w.d, p.mapped)), nil) || found
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

// evaluated returns the verdicts of the reference for a peer.
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

// excuses reports whether a list may deny what the table allows.
func (w *walk) excuses(v int, remote netip.Addr) bool {
	return w.s.reported[v] || w.node.Lists[v].Excuses(remote)
}

// describe evaluates one cell on every side.
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
	say("tables", w.tableRow(p).Cell(w.node.State.Policy.PortClass(at.protocol, at.port)))
	if m := w.node.Maps; m != nil {
		say("maps", model.Decision{Verdict: m.Verdict(m.Row(w.s.slot, w.d, m.Class(remote)), at.protocol, at.port)})
	}
	for _, l := range w.node.Lists {
		l.Explain(w.s.id, w.d, remote, at.protocol, at.port, func(by string, v model.Verdict, cause string) {
			x.Says = append(x.Says, Said{By: by, Verdict: v, Cause: cause})
		})
	}
	return x
}
