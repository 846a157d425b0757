// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// portClass is a set of ports that no rule can tell apart.
type portClass struct {
	// protocol and port are one member, to ask rules about; OtherPorts has none.
	protocol model.Protocol
	port     uint16
	terms    []string
}

// overflowPorts is the class of the ports that find no place among
// MaxPortClasses: denied in every row.
const overflowPorts = model.PortClass(model.MaxPortClasses - 1)

// classifyPorts cuts the ports of each protocol at the bounds of all ranges
// that rules name and joins the pieces that lie in the same ranges.
func (c *compiler) classifyPorts() {
	for _, p := range c.snapshot.Pods.All() {
		if len(p.Ports) > 0 && p.Policed() {
			for _, n := range c.terms.resolved(p) {
				c.terms.ports[portRange{n.Protocol, n.Port, n.Port}] = true
			}
		}
	}
	var pieces []piece
	for _, proto := range model.PortProtocols {
		pieces = append(pieces, cut(proto, c.terms.ports)...)
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
	numbers := c.numberPorts(found, members)
	size := int(model.OtherPorts) + 1
	for _, n := range numbers {
		size = max(size, int(n)+1)
	}
	c.portClasses = make([]portClass, size)
	c.portInfo = []model.PortClassInfo{{Class: model.OtherPorts}}
	for i, s := range found {
		n := numbers[i]
		for _, p := range members[s.key()] {
			c.ports = append(c.ports, model.PortRange{Protocol: p.protocol, First: p.first, Last: p.last, Class: n})
		}
		if n == overflowPorts {
			c.portClasses[n] = portClass{}
			continue
		}
		first := members[s.key()][0]
		c.portClasses[n] = portClass{protocol: first.protocol, port: first.first, terms: s.terms}
		c.portInfo = append(c.portInfo, model.PortClassInfo{Class: n, Terms: s.terms})
	}
	slices.SortFunc(c.portInfo, func(a, b model.PortClassInfo) int { return int(a.Class) - int(b.Class) })
	slices.SortFunc(c.ports, comparePortRanges)
	c.ports = slices.Clip(joinRanges(c.ports))
}

// piece is a maximal range of ports that lie in the same ranges of rules.
type piece struct {
	portRange
	terms []string
}

// cut returns the pieces of one protocol that lie in at least one range.
func cut(proto model.Protocol, ranges map[portRange]bool) []piece {
	var mine []portRange
	starts := make(map[int]bool) // a new piece begins here
	for r := range ranges {
		if r.protocol == proto {
			mine = append(mine, r)
			starts[int(r.first)] = true
			starts[int(r.last)+1] = true
		}
	}
	bounds := make([]int, 0, len(starts))
	for b := range starts {
		bounds = append(bounds, b)
	}
	slices.Sort(bounds)
	slices.SortFunc(mine, func(a, b portRange) int { return int(a.first) - int(b.first) })
	var pieces []piece
	active := make(map[portRange]bool)
	next := 0
	for i := 0; i+1 < len(bounds); i++ {
		for r := range active {
			if int(r.last) < bounds[i] {
				delete(active, r)
			}
		}
		for ; next < len(mine) && int(mine[next].first) <= bounds[i]; next++ {
			active[mine[next]] = true
		}
		if len(active) == 0 {
			continue
		}
		p := piece{portRange: portRange{proto, uint16(bounds[i]), uint16(bounds[i+1] - 1)}}
		for r := range active {
			p.terms = append(p.terms, r.String())
		}
		slices.Sort(p.terms)
		pieces = append(pieces, p)
	}
	return pieces
}

// numberPorts gives every class its number: that of the previous State where it
// means the same, else the lowest free one. What finds no number shares
// overflowPorts and is reported.
func (c *compiler) numberPorts(found []signature, members map[string][]piece) []model.PortClass {
	var previous []numbered
	var before, now vocabulary
	for r := range c.terms.ports {
		now.terms = append(now.terms, r.String())
	}
	slices.Sort(now.terms)
	taken := map[uint32]bool{uint32(model.OtherPorts): true, uint32(overflowPorts): true}
	for _, info := range c.previous.PortClasses {
		taken[uint32(info.Class)] = true
		if info.Class != model.OtherPorts {
			previous = append(previous, numbered{uint32(info.Class), signature{terms: info.Terms}})
			before.terms = append(before.terms, info.Terms...) // every range has a port, so every term is here
		}
	}
	slices.Sort(before.terms)
	overlap := func(i int, old uint32) int {
		n := 0
		for _, p := range members[found[i].key()] {
			for _, r := range c.previous.Ports {
				if uint32(r.Class) == old && r.Protocol == p.protocol {
					n += max(0, min(int(r.Last), int(p.last))-max(int(r.First), int(p.first))+1)
				}
			}
		}
		return n
	}
	numbers := make([]model.PortClass, len(found))
	free := uint32(0)
	overflow := 0
	for i, n := range inherit(found, now, previous, before, overlap) {
		if n == none {
			for taken[free] {
				free++
			}
			if free >= uint32(overflowPorts) {
				numbers[i] = overflowPorts
				overflow++
				continue
			}
			n = free
			taken[n] = true
		}
		numbers[i] = model.PortClass(n)
	}
	if overflow > 0 {
		c.unsupported = append(c.unsupported, model.Unsupported{Rule: -1, Construct: "ports",
			Effect: model.OverBlocks, Reason: fmt.Sprintf("the policies on this node tell %d sets of ports apart, %d more than fit; "+
				"ports of those sets are denied; use fewer distinct ports and ranges", len(found), overflow)})
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
