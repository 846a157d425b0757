// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// sctp is the protocol number of SCTP in ACLs.
const sctp = uint8(model.SCTP)

// NamesSCTP reports whether a list has a rule for SCTP by number.
func NamesSCTP(list []hns.ACL) bool {
	return slices.ContainsFunc(list, func(a hns.ACL) bool {
		named, _ := hns.ParseProtocols(a.Protocols)
		return slices.Contains(named, sctp)
	})
}

// WithoutSCTP returns a State whose lists do not name SCTP, for an HNS that refuses the protocol. It also
// returns what that State denies although s allows it. SCTP is decided together with the protocols without
// ports: they are allowed if s allows them and every port of SCTP.
func WithoutSCTP(s *model.State, platform string) (*model.State, []model.Unsupported) {
	// Ports of TCP and UDP that no rule names keep their verdict. They get their own class, because the
	// verdict of their old class changes.
	unnamed := model.PortClass(1)
	for _, r := range s.Policy.Ports {
		unnamed = max(unnamed, r.Class+1)
	}
	for _, c := range s.Policy.PortClasses {
		unnamed = max(unnamed, c.Class+1)
	}
	c := *s
	c.Policy.PortClasses = append(slices.Clone(s.Policy.PortClasses), model.PortClassInfo{Class: unnamed})
	c.Policy.Ports = nil
	for _, p := range []model.Protocol{model.TCP, model.UDP} {
		next := 0
		for _, r := range sortedRanges(s.Policy.Ports) {
			if r.Protocol != p {
				continue
			}
			if next < int(r.First) {
				c.Policy.Ports = append(c.Policy.Ports, model.PortRange{Protocol: p, First: uint16(next), Last: r.First - 1, Class: unnamed})
			}
			c.Policy.Ports = append(c.Policy.Ports, r)
			next = int(r.Last) + 1
		}
		if next <= 65535 {
			c.Policy.Ports = append(c.Policy.Ports, model.PortRange{Protocol: p, First: uint16(next), Last: 65535, Class: unnamed})
		}
	}
	m := merger{unnamed: unnamed, classes: sctpClasses(s), rows: make(map[*model.Row]*model.Row)}
	c.Policy.Tables = make(map[model.TableID]*model.Table, len(s.Policy.Tables))
	over := make(map[model.TableID]bool)
	for id, t := range s.Policy.Tables {
		m.denies = false
		c.Policy.Tables[id] = m.table(t)
		over[id] = m.denies
	}
	return &c, overBlocked(s, over, platform)
}

// sctpClasses lists the classes that ports of SCTP have.
func sctpClasses(s *model.State) []model.PortClass {
	var all []model.PortClass
	for _, c := range portCells(s)[1:] {
		if c.protocol == model.SCTP && !slices.Contains(all, c.class) {
			all = append(all, c.class)
		}
	}
	return all
}

// overBlocked reports the endpoints under tables that deny more than the State.
func overBlocked(s *model.State, over map[model.TableID]bool, platform string) []model.Unsupported {
	var all []model.Unsupported
	for _, e := range s.Policy.Endpoints {
		if over[e.Table] {
			all = append(all, model.Unsupported{Policy: model.Origin{Kind: "Pod", Namespace: e.Pod.Namespace, Name: e.Pod.Name}, Rule: -1, OS: model.Windows,
				Platform: platform, Construct: "SCTP", Effect: model.OverBlocks, Reason: "this HNS refuses ACLs for SCTP; SCTP, and protocols without ports, may be denied where policies allow them"})
		}
	}
	return all
}

// merger builds rows in which SCTP and the protocols without ports have the same verdict.
type merger struct {
	unnamed model.PortClass
	classes []model.PortClass
	rows    map[*model.Row]*model.Row
	// denies is true if a row denies what it allowed before.
	denies bool
}

func (m *merger) table(t *model.Table) *model.Table {
	c := *t
	for d := range c.Sides {
		c.Sides[d].Default = m.row(t.Sides[d].Default)
		for class, r := range t.Sides[d].Rows.All() {
			c.Sides[d].Rows = c.Sides[d].Rows.With(class, m.row(r))
		}
	}
	return &c
}

func (m *merger) row(r *model.Row) *model.Row {
	if r == nil {
		return nil
	}
	other := r.Cell(model.OtherPorts)
	allowed, agreed := other.Verdict == model.Allow, true
	for _, class := range m.classes {
		cell := r.Cell(class)
		agreed = agreed && cell.Verdict == other.Verdict
		if cell.Verdict == model.Deny && other.Verdict == model.Allow {
			other = cell
		}
		allowed = allowed || cell.Verdict == model.Allow
	}
	m.denies = m.denies || allowed && !agreed
	if made, ok := m.rows[r]; ok {
		return made
	}
	made := &model.Row{Cells: make([]model.Decision, int(m.unnamed)+1)}
	for n := range made.Cells {
		made.Cells[n] = r.Cell(model.PortClass(n))
	}
	made.Cells[model.OtherPorts], made.Cells[m.unnamed] = other, r.Cell(model.OtherPorts)
	m.rows[r] = made
	return made
}
