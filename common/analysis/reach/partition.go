// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Partition is a cluster, or several versions of one, divided into groups of ends and cells
// of ports.
type Partition struct {
	// Progress, if set, is called from time to time with the fraction of the groups that is
	// done.
	Progress func(done, total int)

	versions []*version
	ports    *ports
	families [2]*family // IPv4, IPv6
	// texts numbers the texts of policies for one direction; equal texts have one number.
	texts map[string]int32
	// block bounds the number of sources that are processed at one time: memory holds the
	// verdicts of all destinations for them.
	block int
}

// New divides the versions of a cluster. It omits ends that not all versions have.
func New(versions ...*model.Snapshot) *Partition {
	p := &Partition{texts: make(map[string]int32), block: 1024}
	ranges := make(map[Cell]bool)
	for _, s := range versions {
		v := newVersion(s)
		v.portRanges(ranges)
		p.versions = append(p.versions, v)
	}
	p.ports = cutPorts(ranges)
	for i := range p.families {
		p.families[i] = p.newFamily(i == 1)
	}
	return p
}

// Groups lists the groups of one address family: those of pods, in order of the first pod of
// each, and then those of ranges.
func (p *Partition) Groups(v6 bool) []*Group {
	f := p.family(v6)
	return f.groups[:f.firstNode]
}

// Nodes lists the addresses of nodes of one address family.
func (p *Partition) Nodes(v6 bool) []*Group {
	f := p.family(v6)
	return f.groups[f.firstNode:]
}

func (p *Partition) family(v6 bool) *family {
	if v6 {
		return p.families[1]
	}
	return p.families[0]
}

// Cells lists the cells of ports, those of one protocol in order of their ports.
func (p *Partition) Cells() []Cell { return p.ports.cells }

// Cell returns the index of the cell of a port.
func (p *Partition) Cell(proto model.Protocol, port uint16) int { return p.ports.index(proto, port) }

// Members lists the cells of a set, ascending.
func (p *Partition) Members(id PortsID) []int { return slices.Collect(p.ports.sets[id].all()) }

// Has reports whether a cell is in a set.
func (p *Partition) Has(id PortsID, cell int) bool { return p.ports.sets[id].has(cell) }

// Only lists, in order, the pods that policies apply to in the version with the given index,
// and that some other version does not have.
func (p *Partition) Only(which int) []model.PodID {
	var ids []model.PodID
	for _, pod := range p.versions[which].list {
		if slices.ContainsFunc(p.versions, func(v *version) bool { return v.pods[pod.PodID] == nil }) {
			ids = append(ids, pod.PodID)
		}
	}
	return ids
}

// Size returns the numbers of cells of ports and of groups.
func (p *Partition) Size() (cells, groups int) {
	return len(p.ports.cells), len(p.families[0].groups) + len(p.families[1].groups)
}

// textID numbers the text of a policy for one direction.
func (p *Partition) textID(text string) int32 {
	id, ok := p.texts[text]
	if !ok {
		id = int32(len(p.texts))
		p.texts[text] = id
	}
	return id
}
