// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// portClass is a set of ports that no rule can distinguish.
type portClass struct {
	// protocol and port are one member, to evaluate rules with; OtherPorts has none.
	protocol model.Protocol
	port     uint16
	used     bool
	// before is the previous class of the member.
	before model.PortClass
}

// portSpace is the classes of all ports.
type portSpace struct {
	classes []portClass // index: model.PortClass; the zero element is OtherPorts
	ranges  []model.PortRange
	info    []model.PortClassInfo
	// closed are the ranges that exceed Limits.PortClasses.
	closed map[portRange]bool
}

// classifyPorts cuts the ports of each protocol at the bounds of the ranges and joins the
// pieces that lie in the same ranges.
func classifyPorts(ranges map[portRange]int, previous *portSpace) *portSpace {
	var pieces []piece
	for _, proto := range model.PortProtocols {
		pieces = append(pieces, cut(proto, ranges)...)
	}
	members := make(map[string][]piece)
	var found []signature
	for _, p := range pieces {
		key := strings.Join(p.terms, "\n")
		if members[key] == nil {
			found = append(found, signature{terms: p.terms})
		}
		members[key] = append(members[key], p)
	}
	numbers := numberPorts(ranges, found, members, previous)
	size := int(model.OtherPorts) + 1
	for _, n := range numbers {
		size = max(size, int(n)+1)
	}
	s := &portSpace{classes: make([]portClass, size), info: []model.PortClassInfo{{Class: model.OtherPorts}}}
	s.classes[model.OtherPorts].used = true
	for i, f := range found {
		n := numbers[i]
		for _, p := range members[f.key()] {
			s.ranges = append(s.ranges, model.PortRange{Protocol: p.protocol, First: p.first, Last: p.last, Class: n})
		}
		first := members[f.key()][0]
		s.classes[n] = portClass{protocol: first.protocol, port: first.first, used: true, before: previous.class(first.protocol, first.first)}
		s.info = append(s.info, model.PortClassInfo{Class: n, Terms: f.terms})
	}
	slices.SortFunc(s.info, func(a, b model.PortClassInfo) int { return int(a.Class) - int(b.Class) })
	slices.SortFunc(s.ranges, comparePortRanges)
	s.ranges = slices.Clip(joinRanges(s.ranges))
	return s
}

// portsFit reports whether classifyPorts would make at most so many classes, of at most twice as many ranges. It returns as
// soon as there are more: nested ranges have as many sets as bounds, and each set may hold most ranges.
func portsFit(ranges map[portRange]int, most int) bool {
	if len(ranges) > 2*most {
		return false
	}
	distinct := make(map[string]bool) // with OtherPorts, which lie in no range
	for _, proto := range model.PortProtocols {
		for p := range newSweep(proto, ranges).pieces() {
			if distinct[string(p.in.appendKey([]byte{byte(proto)}))] = true; len(distinct)+1 > most {
				return false
			}
		}
	}
	return true
}

func (s *portSpace) class(p model.Protocol, port uint16) model.PortClass {
	return (&model.PolicyState{Ports: s.ranges}).PortClass(p, port)
}

// adapt converts a row of the previous port classes to the current ones. Rules that stay
// cannot distinguish the members of a class, so one member stands for all.
func (s *portSpace) adapt(r *model.Row) *model.Row {
	cells := make([]model.Decision, len(s.classes))
	for n, class := range s.classes {
		cells[n] = r.Cell(class.before)
	}
	if cells = trim(cells); slices.Equal(cells, r.Cells) {
		return r
	}
	return &model.Row{Cells: cells}
}

// trim removes the cells at the end that equal that of OtherPorts, which also stands for
// classes beyond the end of a row.
func trim(cells []model.Decision) []model.Decision {
	n := len(cells)
	for n > 1 && cells[n-1] == cells[model.OtherPorts] {
		n--
	}
	return slices.Clip(cells[:n])
}

// piece is a maximal range of ports that lie in the same ranges of rules.
type piece struct {
	portRange
	in    bitset // of ranges of the sweep
	terms []string
}

// cut returns the pieces of one protocol that lie in at least one range.
func cut(proto model.Protocol, ranges map[portRange]int) (all []piece) {
	s := newSweep(proto, ranges)
	texts := make([]string, len(s.ranges))
	for i, r := range s.ranges {
		texts[i] = r.String()
	}
	for p := range s.pieces() {
		for i := range p.in.all() {
			p.terms = append(p.terms, texts[i])
		}
		slices.Sort(p.terms)
		p.in = nil
		all = append(all, p)
	}
	return all
}

// sweep is the ranges of one protocol, by their first port, and the ports at which the set of ranges may change.
type sweep struct {
	protocol model.Protocol
	ranges   []portRange
	bounds   []int
}

func newSweep(proto model.Protocol, ranges map[portRange]int) *sweep {
	s := &sweep{protocol: proto}
	for r := range ranges {
		if r.protocol == proto {
			s.ranges = append(s.ranges, r)
			s.bounds = append(s.bounds, int(r.first), int(r.last)+1)
		}
	}
	slices.Sort(s.bounds)
	s.bounds = slices.Compact(s.bounds)
	slices.SortFunc(s.ranges, func(a, b portRange) int { return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.last, b.last)) })
	return s
}

// pieces yields the pieces that lie in at least one range, without terms. in is valid until the next one.
func (s *sweep) pieces() iter.Seq[piece] {
	return func(yield func(piece) bool) {
		var in bitset
		next := 0
		for i := 0; i+1 < len(s.bounds); i++ {
			for r := range slices.Clone(in).all() {
				if int(s.ranges[r].last) < s.bounds[i] {
					in.set(r, false)
				}
			}
			for ; next < len(s.ranges) && int(s.ranges[next].first) <= s.bounds[i]; next++ {
				in.set(next, true)
			}
			if !in.empty() && !yield(piece{portRange: portRange{s.protocol, uint16(s.bounds[i]), uint16(s.bounds[i+1] - 1)}, in: in}) {
				return
			}
		}
	}
}

// numberPorts numbers every class: by the number of the previous State for a class of the
// same meaning, else by the lowest free number. There are never more classes than numbers.
func numberPorts(ranges map[portRange]int, found []signature, members map[string][]piece, was *portSpace) []model.PortClass {
	var previous []numbered
	var before, now words
	for r := range ranges {
		now.terms = append(now.terms, r.String())
	}
	slices.Sort(now.terms)
	taken := map[uint32]bool{uint32(model.OtherPorts): true}
	for _, info := range was.info {
		taken[uint32(info.Class)] = true
		if info.Class != model.OtherPorts {
			previous = append(previous, numbered{uint32(info.Class), signature{terms: info.Terms}})
			before.terms = append(before.terms, info.Terms...) // every range has a port, so every term is here
		}
	}
	slices.Sort(before.terms)
	overlaps := func(i int) map[uint32]int {
		n := make(map[uint32]int)
		for _, p := range members[found[i].key()] {
			for _, r := range was.ranges {
				if common := min(int(r.Last), int(p.last)) - max(int(r.First), int(p.first)) + 1; common > 0 && r.Protocol == p.protocol {
					n[uint32(r.Class)] += common
				}
			}
		}
		return n
	}
	numbers := make([]model.PortClass, len(found))
	inherited := inherit(found, now, previous, before, overlaps)
	// Numbers that were in use are reused only if there are no others: until the change is
	// complete they keep their old meaning.
	kept := map[uint32]bool{uint32(model.OtherPorts): true}
	for _, n := range inherited {
		kept[n] = true
	}
	free, again := uint32(1), uint32(1)
	for i, n := range inherited {
		for n == none {
			switch {
			case free < uint32(model.ClosedPorts) && taken[free]:
				free++
			case free < uint32(model.ClosedPorts):
				n = free
				free++
			case kept[again] || !taken[again]:
				again++
			default:
				n = again
				again++
			}
		}
		numbers[i] = model.PortClass(n)
	}
	return numbers
}

func comparePortRanges(a, b model.PortRange) int {
	if a.Protocol != b.Protocol {
		return int(a.Protocol) - int(b.Protocol)
	}
	return int(a.First) - int(b.First)
}

// joinRanges merges neighbours of one class; the argument is sorted.
func joinRanges(ranges []model.PortRange) []model.PortRange {
	var out []model.PortRange
	for _, r := range ranges {
		if n := len(out) - 1; n >= 0 && out[n].Protocol == r.Protocol && out[n].Class == r.Class && int(out[n].Last)+1 == int(r.First) {
			out[n].Last = r.Last
			continue
		}
		out = append(out, r)
	}
	return out
}
