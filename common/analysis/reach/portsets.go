// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
)

// portSet is a range of ports, or all protocols without ports.
type portSet struct {
	Protocol string `json:"protocol"`
	First    uint16 `json:"first,omitempty"`
	Last     uint16 `json:"last,omitempty"`
}

// otherProtocols is what reports call protocols without ports.
const otherProtocols = "other protocols"

// portSets joins cells, which are given by their indices, ascending.
func portSets(all []reach.Cell, cells []int) []portSet {
	sets := []portSet{}
	previous := -2
	for _, i := range cells {
		c := all[i]
		switch n := len(sets) - 1; {
		case c.Protocol == model.AnyProtocol:
			sets = append(sets, portSet{Protocol: otherProtocols})
		case previous == i-1 && all[previous].Protocol == c.Protocol:
			sets[n].Last = c.Last
		default:
			sets = append(sets, portSet{c.Protocol.String(), c.First, c.Last})
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
