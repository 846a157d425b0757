// SPDX-License-Identifier: Apache-2.0

package mapview

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// Verdict is an entry of verdicts, or what a table says about all peers that it does not list.
type Verdict struct {
	Table     uint32 `json:"table"`
	Slots     []int  `json:"slots"`
	Direction string `json:"direction"`
	// Others is true for the verdict on unlisted peers, which has no class and no row.
	Others bool   `json:"others"`
	Class  uint32 `json:"class"`
	Row    uint32 `json:"row"`
	// Causes say why, by the ports that they are for: one without ports, or one for each part.
	Causes []Cause `json:"causes"`
	// Peers are the entries with the class. World, class 0, has no entries of its own.
	Peers []string `json:"peers"`
	// Allowed are the ports that are allowed, see Ports.
	Allowed string `json:"allowed"`
	// Problem says why an entry is damaged.
	Problem string `json:"problem,omitempty"`
}

// Rows returns the verdicts of the tables that slots use, by table and direction. Each direction ends with the
// verdict on others.
func (m *Maps) Rows() []Verdict {
	users := make(map[uint32][]int)
	for _, t := range m.Tables() {
		users[t.Table] = append(users[t.Table], int(t.Slot))
	}
	peers := make(map[uint32][]string)
	for _, p := range m.Peers() {
		peers[p.Class] = append(peers[p.Class], p.Entry)
	}
	ports := m.portClasses()
	var all []Verdict
	for _, table := range slices.Sorted(maps.Keys(users)) {
		for _, d := range model.Directions {
			for _, key := range slices.Sorted(maps.Keys(m.Verdicts[table])) {
				if model.Direction(key%2) != d {
					continue
				}
				v := Verdict{Table: table, Slots: users[table], Direction: d.String(), Class: key / 2, Row: m.Verdicts[table][key].Row, Peers: peers[key/2]}
				v.Causes = m.causes(m.Verdicts[table][key].Causes, ports)
				v.Allowed, v.Problem = m.allowed(v.Row, ports)
				all = append(all, v)
			}
			v := Verdict{Table: table, Slots: users[table], Direction: d.String(), Others: true, Row: table >> d & 1}
			v.Causes = m.causes(m.Unlisted(table, d).Causes, ports)
			v.Allowed, _ = m.allowed(v.Row, ports)
			all = append(all, v)
		}
	}
	return all
}

// Allowed by a row that needs no list of ports.
const (
	allPorts = "all ports"
	noPorts  = "no ports"
)

// allowed describes a row. A row that is not in the map denies, as in the programs.
func (m *Maps) allowed(row uint32, classes [][]string) (text, problem string) {
	switch row {
	case bpfobj.RowDeny:
		return noPorts, ""
	case bpfobj.RowAllow:
		return allPorts, ""
	}
	bits, ok := m.Entries.Rows[row]
	if !ok {
		return noPorts, fmt.Sprintf("row %d is not in the map rows, so the programs deny", row)
	}
	var open, closed []string
	for class, ranges := range classes {
		if class == int(model.OtherPorts) {
			continue
		}
		if bits.Allow[class/64]>>(class%64)&1 == 1 {
			open = append(open, ranges...)
		} else {
			closed = append(closed, ranges...)
		}
	}
	others := bits.Allow[0]&1 == 1 // class model.OtherPorts
	switch {
	case others && len(closed) == 0:
		return allPorts, ""
	case others:
		return "all but " + strings.Join(closed, ", "), ""
	case len(open) == 0:
		return noPorts, ""
	}
	return strings.Join(open, ", "), ""
}

// portClasses returns the ranges of ports of each class, as the programs see them.
func (m *Maps) portClasses() [][]string {
	classes := make([][]string, model.MaxPortClasses)
	for i := 0; i < len(m.Ports); {
		n := 1
		for (i+n)%65536 != 0 && m.Ports[i+n] == m.Ports[i] {
			n++
		}
		class := m.Ports[i] % model.MaxPortClasses // as the programs do
		if class != uint16(model.OtherPorts) {
			text := fmt.Sprintf("%s %d", model.PortProtocols[i/65536], i%65536)
			if n > 1 {
				text = fmt.Sprintf("%s-%d", text, (i+n-1)%65536)
			}
			classes[class] = append(classes[class], text)
		}
		i += n
	}
	return classes
}
