// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// walk goes over the cells of one subject and direction.
type walk struct {
	*comparison
	s         *subject
	d         model.Direction
	reference *policy.PodEvaluator
	// done are the ports that differ between two rows, by the rows: pairs that
	// were compared need not be compared again.
	done   map[pair][]verdictOf
	denies *model.Row
	result Result
}

// pair is a row of the table and a row of another side: of the maps its number,
// else a text that only equal rows share.
type pair struct {
	row    *model.Row
	side   int
	number uint32
	key    string
	v6     bool
}

// The sides that are compared with the table; ACLs follow, two for each variant:
// there are two readings of sets.
const (
	sideReference = iota
	sideMaps
	sideACL
)

// verdictOf is a port of which a side does not say what the table says.
type verdictOf struct {
	port int // index into ports
	// excused: it denies what the table, or the reference, allows, and that was
	// reported.
	excused bool
}

func newWalk(c *comparison, s *subject, d model.Direction) *walk {
	w := &walk{comparison: c, s: s, d: d, done: make(map[pair][]verdictOf), denies: &model.Row{}}
	if c.reference != nil && s.pod != nil {
		w.reference = c.reference.Pod(s.pod, d)
	}
	return w
}

// row is what the table says of a peer.
func (w *walk) row(p *peer) *model.Row {
	if w.s.table != nil {
		if r := w.s.table.Sides[w.d].Row(p.class); r != nil {
			return r
		}
	}
	return w.denies
}

func (w *walk) compare() {
	differ := make([]bool, len(w.ports))
	excused := make([]bool, len(w.ports))
	for i := range w.peers {
		p := &w.peers[i]
		remote, ok := w.s.remote(p)
		if !ok {
			continue
		}
		w.result.Cells += len(w.ports)
		found := w.comparePeer(p, remote)
		if len(found) == 0 {
			continue
		}
		clear(differ)
		clear(excused)
		for _, v := range found {
			differ[v.port] = differ[v.port] || !v.excused
			excused[v.port] = excused[v.port] || v.excused
		}
		for n := range w.ports {
			switch {
			case differ[n]:
				w.result.Differ++
				if len(w.result.Differences) < maxKept {
					w.result.Differences = append(w.result.Differences, w.describe(p, remote, w.ports[n]))
				}
			case excused[n]:
				w.result.OverBlocked++
			}
		}
	}
}

// comparePeer compares every side with the table.
func (w *walk) comparePeer(p *peer, remote netip.Addr) []verdictOf {
	row := w.row(p)
	var found []verdictOf
	if w.reference != nil {
		k := pair{row: row, side: sideReference, key: w.reference.Alike(remote)}
		found = append(found, w.once(k, func() []verdictOf {
			return w.compareRows(row, func(at portPoint) model.Verdict {
				return w.reference.Decide(remote, at.protocol, at.port).Verdict
			}, w.excuseTable)
		})...)
	}
	if e := w.node.Entries; e != nil {
		number := e.Row(w.s.slot, w.d, p.mapped)
		found = append(found, w.once(pair{row: row, side: sideMaps, number: number}, func() []verdictOf {
			return w.compareRows(row, func(at portPoint) model.Verdict { return e.Verdict(number, at.protocol, at.port) }, never)
		})...)
	}
	for v, rules := range w.s.rules {
		for set, readings := range w.s.readings[v] {
			part := rules.Between(acl.PacketDirection(w.d), netip.Addr{}, remote, readings[0])
			k := pair{row: row, side: sideACL + 2*v + set, key: part.Key(), v6: remote.Is6()}
			found = append(found, w.once(k, func() (list []verdictOf) {
				for _, reading := range readings {
					under := part.Under(reading)
					list = append(list, w.compareRows(row, func(at portPoint) model.Verdict { return decide(under, at) }, w.excuseList(v, remote))...)
				}
				return list
			})...)
		}
	}
	return found
}

// once compares a pair of rows if that was not done yet.
func (w *walk) once(k pair, compare func() []verdictOf) []verdictOf {
	list, ok := w.done[k]
	if !ok {
		list = compare()
		w.done[k] = list
	}
	return list
}

// compareRows compares all ports. excuse says whether a difference was reported.
func (w *walk) compareRows(row *model.Row, verdict func(portPoint) model.Verdict, excuse func(table, side model.Verdict) bool) []verdictOf {
	var list []verdictOf
	for n, at := range w.ports {
		want := row.Cell(w.node.State.PortClass(at.protocol, at.port)).Verdict
		if got := verdict(at); got != want {
			list = append(list, verdictOf{n, excuse(want, got)})
		}
	}
	return list
}

func never(model.Verdict, model.Verdict) bool { return false }

// excuseTable lets tables deny what the reference allows if the compiler said
// that something is not exact.
func (w *walk) excuseTable(table, _ model.Verdict) bool {
	return table == model.Deny && len(w.node.Reported) > 0
}

// excuseList says what a list may deny although the table allows it. An HNS that
// knows no IPv6 may deny all of it; it must never allow what the table denies.
func (w *walk) excuseList(v int, remote netip.Addr) func(table, side model.Verdict) bool {
	if w.node.Lists[v].Options.NoIPv6 && remote.Is6() || w.s.reported[v] {
		return func(_, side model.Verdict) bool { return side == model.Deny }
	}
	return never
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
	if w.reference != nil {
		say("evaluate", w.reference.Decide(remote, at.protocol, at.port))
	}
	say("tables", w.row(p).Cell(w.node.State.PortClass(at.protocol, at.port)))
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
