// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
)

// Port is the only port that a matrix is about. Protocols without ports have number 0.
type Port struct {
	Protocol model.Protocol
	Number   uint16
}

// String returns "TCP 80" or "ICMP".
func (p Port) String() string {
	if !p.Protocol.HasPorts() {
		return p.Protocol.String()
	}
	return fmt.Sprintf("%s %d", p.Protocol, p.Number)
}

// Kind is the answer of a cell in one word. It is also the class of the cell in the style sheet.
type Kind string

// The kinds of cells.
const (
	// Self: the ends are one pod, which always reaches itself.
	Self Kind = "self"
	// None: no pod of the row reaches a pod of the column.
	None Kind = "none"
	// All: each pod of the row reaches each of the column, on every port or on the port of the matrix.
	All Kind = "all"
	// Ports: each pod reaches each, on the same ports.
	Ports Kind = "ports"
	// Some: the answer differs between the pods.
	Some Kind = "some"
)

// Cell is what is allowed from one end to another.
type Cell struct {
	Kind Kind
	// Text is the answer in words.
	Text string
	// Port is a port that is worth an explanation.
	Port Port
}

// answer is a set of ports, as cells show it.
type answer struct {
	kind Kind
	text string
	port Port
}

// Cells computes the cells between two lists of ends of one family, row by row. only, if it is not nil, is the only port
// that counts.
func (v *View) Cells(rows, columns []End, only *Port) ([][]Cell, error) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	from, fromIndex := groupsOf(rows)
	to, toIndex := groupsOf(columns)
	allowed := make([][]reach.PortsID, len(from))
	err := v.partition.Reach(from, to, func(i int, ids []reach.PortsID) error {
		allowed[i] = append(allowed[i], ids...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	known := make(map[reach.PortsID]answer)
	all := make([][]Cell, len(rows))
	for i, r := range rows {
		all[i] = make([]Cell, len(columns))
		for j, c := range columns {
			s := summary{view: v, only: only, known: known}
			for _, a := range r.parts {
				for _, b := range c.parts {
					pairs := a.pods * b.pods
					if a.group == b.group && r.Key == c.Key {
						pairs -= a.pods // each pod reaches itself
					}
					s.add(pairs, allowed[fromIndex[a.group]][toIndex[b.group]])
				}
			}
			all[i][j] = s.cell(only, c.port)
		}
	}
	return all, nil
}

// groupsOf lists the groups of ends, and their indices in the list.
func groupsOf(ends []End) ([]*reach.Group, map[*reach.Group]int) {
	var all []*reach.Group
	index := make(map[*reach.Group]int)
	for _, e := range ends {
		for _, p := range e.parts {
			if _, ok := index[p.group]; !ok {
				index[p.group] = len(all)
				all = append(all, p.group)
			}
		}
	}
	return all, index
}

// summary joins the answers of pairs of pods.
type summary struct {
	view  *View
	only  *Port
	known map[reach.PortsID]answer

	pairs, open int // pairs of pods, and those with an allowed port
	first       answer
	mixed       bool
}

// add counts pairs of pods with one set of allowed ports.
func (s *summary) add(pairs int, id reach.PortsID) {
	if pairs == 0 {
		return
	}
	a, ok := s.known[id]
	if !ok {
		a = s.view.answer(id, s.only)
		s.known[id] = a
	}
	if s.pairs == 0 {
		s.first = a
	}
	s.mixed = s.mixed || a != s.first
	s.pairs += pairs
	if a.kind != None {
		s.open += pairs
	}
}

// cell returns the answer for all pairs. named is a port that the destination names.
func (s *summary) cell(only *Port, named uint16) Cell {
	c := Cell{Kind: s.first.kind, Text: s.first.text, Port: s.first.port}
	switch {
	case s.pairs == 0:
		c = Cell{Kind: Self, Text: "itself"}
	case s.mixed && s.open == s.pairs:
		c = Cell{Kind: Some, Text: "ports differ"}
	case s.mixed:
		c = Cell{Kind: Some, Text: fmt.Sprintf("%d of %d pairs", s.open, s.pairs)}
	}
	switch {
	case only != nil:
		c.Port = *only
	case named != 0 && c.Kind != Ports:
		c.Port = Port{model.TCP, named}
	case c.Port.Protocol == 0:
		c.Port = Port{model.TCP, 80}
	}
	return c
}

// answer renders a set of ports.
func (v *View) answer(id reach.PortsID, only *Port) answer {
	p := v.partition
	if only != nil {
		if p.Has(id, p.Cell(only.Protocol, only.Number)) {
			return answer{kind: All, text: "yes"}
		}
		return answer{kind: None, text: "no"}
	}
	sets := reach.PortSets(p.Cells(), p.Members(id))
	switch {
	case len(sets) == 0:
		return answer{kind: None, text: "none"}
	case reach.EveryPort(sets):
		return answer{kind: All, text: "all"}
	}
	a := answer{kind: Ports, text: shorten(reach.PortsText(sets), 28)}
	if protocol, err := model.ParseProtocol(sets[0].Protocol); err == nil && sets[0].First > 0 {
		a.port = Port{protocol, sets[0].First}
	}
	return a
}

// shorten cuts a text to some characters.
func shorten(text string, most int) string {
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
}
