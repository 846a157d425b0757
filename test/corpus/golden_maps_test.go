// SPDX-License-Identifier: Apache-2.0

package corpus_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

var room = policymap.Capacity{Slots: 1000, Peers4: 1000, Peers6: 1000, Prefixes4: 1000, Prefixes6: 1000, Verdicts: 100000, Rows: 1000, Tables: 1000}

// firstRestricted returns the first node with a table that denies something. Golden maps and ACLs
// cover this node only, because the others differ only in names.
func firstRestricted(c *engine.Cluster) (string, bool) {
	for _, node := range slices.Sorted(maps.Keys(c.States)) {
		s := c.States[node]
		if slices.ContainsFunc(groups(s), func(g tableGroup) bool { return !g.open(s) }) {
			return node, true
		}
	}
	return "", false
}

// renderMaps writes the BPF map entries of the first node that restricts a pod. It names classes,
// port classes and tables in the order of their content.
func renderMaps(c *engine.Cluster) (string, error) {
	var out lines
	node, ok := firstRestricted(c)
	if !ok {
		return "", nil
	}
	s := c.States[node]
	layout := policymap.NewLayout(room)
	for id := range s.Policy.Endpoints {
		if _, err := layout.AddSlot(id); err != nil {
			return "", err
		}
	}
	for _, step := range dataplane.Plan(layout.State(), s) {
		if _, err := layout.Advance(step, time.Unix(0, 0)); err != nil {
			return "", err
		}
	}
	out.add(node)
	m := mapText{layout: layout, names: newNames(c.Snapshot), classes: make(map[uint32]string), ports: make(map[uint16]string)}
	m.namePeers(&out)
	m.namePorts(&out)
	for _, g := range groups(s) {
		if err := m.table(&out, g); err != nil {
			return "", err
		}
	}
	return out.String(), nil
}

// mapText replaces the numbers in entries by names.
type mapText struct {
	layout  *policymap.Layout
	names   names
	classes map[uint32]string
	ports   map[uint16]string
}

// namePeers writes the classes of addresses: class 0 is "world", the others
// are letters.
func (m *mapText) namePeers(out *lines) {
	members := make(map[uint32][]netip.Prefix)
	for a, c := range m.layout.Peers {
		members[c] = append(members[c], single(a))
	}
	for p, c := range m.layout.Prefixes {
		members[c] = append(members[c], p)
	}
	texts := make(map[string]uint32)
	for c, list := range members {
		texts[m.names.list(list)] = c
	}
	m.classes[uint32(model.World)] = "world"
	letter := 'A'
	for _, text := range slices.Sorted(maps.Keys(texts)) {
		c := texts[text]
		if c != uint32(model.World) {
			m.classes[c] = string(letter)
			letter++
		}
		out.add("  peers ", m.classes[c], " = ", text)
	}
}

// namePorts writes the classes of ports, numbered in the order of their first port. Class 0 holds
// the ports without an entry.
func (m *mapText) namePorts(out *lines) {
	ranges := make(map[uint16][]string)
	var order []uint16
	for i := 0; i < policymap.Ports; {
		class := m.layout.Ports[i]
		last := i
		for (last+1)%65536 != 0 && m.layout.Ports[last+1] == class {
			last++
		}
		if class != uint16(model.OtherPorts) {
			if ranges[class] == nil {
				order = append(order, class)
			}
			r := model.PortMatch{Protocol: model.PortProtocols[i/65536], First: uint16(i % 65536), Last: uint16(last % 65536)}
			ranges[class] = append(ranges[class], r.String())
		}
		i = last + 1
	}
	m.ports[uint16(model.OtherPorts)] = "0"
	for i, class := range order {
		m.ports[class] = fmt.Sprint(i + 1)
		out.add("  ports ", m.ports[class], " = ", strings.Join(ranges[class], ", "))
	}
}

// table writes, for each class, the row that applies to the slots of a table's endpoints. It does
// not show whether a map entry or the number of the table decides.
func (m *mapText) table(out *lines, g tableGroup) error {
	rows := make(map[string][]string)
	first, ok := m.layout.Slot(g.endpoints[0])
	for _, id := range g.endpoints {
		slot, found := m.layout.Slot(id)
		if !ok || !found || m.layout.Slots[slot].Table != m.layout.Slots[first].Table {
			return fmt.Errorf("the slots of %s and %s do not name one table", g.endpoints[0], id)
		}
	}
	for _, d := range model.Directions {
		for class, name := range m.classes {
			line := d.String() + " " + m.row(m.layout.Row(first, d, model.PeerClass(class)))
			rows[line] = append(rows[line], name)
		}
	}
	out.add("  table of ", strings.Join(g.pods, " "))
	for _, line := range slices.Sorted(maps.Keys(rows)) {
		slices.Sort(rows[line])
		out.add("    ", line, ": ", strings.Join(rows[line], " "))
	}
	return nil
}

// row names a row by the classes of ports that it allows.
func (m *mapText) row(n uint32) string {
	switch n {
	case policymap.RowDeny:
		return "deny"
	case policymap.RowAllow:
		return "allow"
	}
	var allowed []string
	for class, name := range m.ports {
		if m.layout.Rows[n].Allow[class/64]>>(class%64)&1 == 1 {
			allowed = append(allowed, name)
		}
	}
	slices.Sort(allowed)
	return "ports " + strings.Join(allowed, ",")
}
