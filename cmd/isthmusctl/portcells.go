// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// portCell is a range of ports that no rule of a survey divides. The protocol
// of all that has no ports is AnyProtocol.
type portCell struct {
	protocol    model.Protocol
	first, last uint16
}

// cutPorts cuts the ports of each protocol wherever some part changes class.
func (s *survey) cutPorts() {
	for _, proto := range model.PortProtocols {
		starts := map[int]bool{0: true}
		for _, w := range s.variants {
			for _, p := range w.parts {
				for _, r := range p.state.Ports {
					if r.Protocol == proto {
						starts[int(r.First)], starts[int(r.Last)+1] = true, true
					}
				}
			}
		}
		delete(starts, 65536)
		bounds := append(slices.Sorted(maps.Keys(starts)), 65536)
		for i := 0; i+1 < len(bounds); i++ {
			s.ports = append(s.ports, portCell{proto, uint16(bounds[i]), uint16(bounds[i+1] - 1)})
		}
	}
	s.ports = append(s.ports, portCell{protocol: model.AnyProtocol})
	for _, w := range s.variants {
		for _, p := range w.parts {
			for _, c := range s.ports {
				p.classes = append(p.classes, p.state.PortClass(c.protocol, c.first))
			}
		}
	}
}

// cell returns the index of the cell of a port.
func (s *survey) cell(p model.Protocol, port uint16) int {
	for i, c := range s.ports {
		if c.protocol == p && c.first <= port && port <= c.last {
			return i
		}
	}
	return len(s.ports) - 1
}

// portSet is a set of cells, as ranges that do not touch.
type portSet struct {
	Protocol string `json:"protocol"`
	First    uint16 `json:"first,omitempty"`
	Last     uint16 `json:"last,omitempty"`
}

// otherProtocols is what reports call protocols without ports.
const otherProtocols = "other protocols"

// portSets joins cells, which are given by their indices, ascending.
func (s *survey) portSets(cells []int) []portSet {
	sets := []portSet{}
	previous := -2
	for _, i := range cells {
		c := s.ports[i]
		switch n := len(sets) - 1; {
		case c.protocol == model.AnyProtocol:
			sets = append(sets, portSet{Protocol: otherProtocols})
		case previous == i-1 && s.ports[previous].protocol == c.protocol:
			sets[n].Last = c.last
		default:
			sets = append(sets, portSet{c.protocol.String(), c.first, c.last})
		}
		previous = i
	}
	return sets
}

// portsText writes ports for people: "TCP 80, 443, 8000-8010; UDP".
func portsText(sets []portSet) string {
	if everything(sets) {
		return "all"
	}
	var parts []string
	before := ""
	for _, p := range sets {
		text := ""
		switch {
		case p.Protocol == otherProtocols:
		case p.First == 0 && p.Last == 65535:
			text = " *"
		case p.First == p.Last:
			text = fmt.Sprintf(" %d", p.First)
		default:
			text = fmt.Sprintf(" %d-%d", p.First, p.Last)
		}
		if p.Protocol == before {
			parts[len(parts)-1] += "," + text
			continue
		}
		parts = append(parts, p.Protocol+text)
		before = p.Protocol
	}
	return strings.Join(parts, "; ")
}

// everything reports whether no protocol and port is left out.
func everything(sets []portSet) bool {
	return len(sets) == len(model.PortProtocols)+1 && !slices.ContainsFunc(sets, func(p portSet) bool {
		return p.Protocol != otherProtocols && (p.First != 0 || p.Last != 65535)
	})
}
