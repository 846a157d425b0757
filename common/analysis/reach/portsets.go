// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// PortSet is a range of ports, or all protocols without ports (OtherProtocols). Its
// JSON form is an interface of isthmusctl.
type PortSet struct {
	Protocol string `json:"protocol"`
	First    uint16 `json:"first,omitempty"`
	Last     uint16 `json:"last,omitempty"`
}

// OtherProtocols is the name of protocols without ports in reports.
const OtherProtocols = "other protocols"

// PortSets joins neighbouring cells of a Partition. all are its Cells; cells are the indices
// of the wanted ones, ascending.
func PortSets(all []Cell, cells []int) []PortSet {
	sets := []PortSet{}
	previous := -2
	for _, i := range cells {
		c := all[i]
		switch n := len(sets) - 1; {
		case c.Protocol == model.AnyProtocol:
			sets = append(sets, PortSet{Protocol: OtherProtocols})
		case previous == i-1 && all[previous].Protocol == c.Protocol:
			sets[n].Last = c.Last
		default:
			sets = append(sets, PortSet{c.Protocol.String(), c.First, c.Last})
		}
		previous = i
	}
	return sets
}

// PortsText formats ports as text: "TCP 80, 443, 8000-8010; UDP".
func PortsText(sets []PortSet) string {
	if EveryPort(sets) {
		return "all"
	}
	var parts []string
	before := ""
	for _, p := range sets {
		text := ""
		switch {
		case p.Protocol == OtherProtocols:
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

// EveryPort reports whether the sets contain every protocol and port.
func EveryPort(sets []PortSet) bool {
	return len(sets) == len(model.PortProtocols)+1 && !slices.ContainsFunc(sets, func(p PortSet) bool {
		return p.Protocol != OtherProtocols && (p.First != 0 || p.Last != 65535)
	})
}
