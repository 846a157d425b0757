// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// maxKept bounds the differences that are kept; all are counted.
const maxKept = 100

// Result is the result of a comparison.
type Result struct {
	// Tables is the number of distinct tables of the endpoints.
	Tables int
	// Endpoints is the number of compared endpoints. Subjects is the number of them that
	// some side can distinguish.
	Endpoints, Subjects int
	// Peers and Ports are the numbers of classes of addresses and of ports.
	Peers, Ports int
	// Cells is subjects x directions x peers x ports.
	Cells int
	// Differ is the number of cells that two sides decide differently. OverBlocked is the
	// number of cells that some side denies and others allow, if a report announced it.
	Differ, OverBlocked int
	// Differences are the first cells that differ.
	Differences []Difference
	// Problems are errors that belong to no cell: maps or lists that cannot be read.
	Problems []string
}

// Difference is a cell with different verdicts.
type Difference struct {
	Node      string
	Endpoint  model.EndpointID
	Pod       model.PodID
	Direction model.Direction
	Remote    netip.Addr
	// RemotePod is the pod that has the address, if there is one.
	RemotePod model.PodID
	Protocol  model.Protocol
	Port      uint16
	Says      []Said
}

// Said is the answer of one side.
type Said struct {
	By      string
	Verdict model.Verdict
	// Cause is the cause of the decision, as far as the side knows it.
	Cause string
}

// String formats the difference as one line.
func (d Difference) String() string {
	peer := d.Remote.String()
	if d.RemotePod.Name != "" {
		peer += " (" + d.RemotePod.String() + ")"
	}
	var says []string
	for _, s := range d.Says {
		text := s.By + " says " + s.Verdict.String()
		if s.Cause != "" {
			text += " (" + s.Cause + ")"
		}
		says = append(says, text)
	}
	return fmt.Sprintf("%s on %s, %s, peer %s, %s/%d: %s", d.Pod, d.Node, d.Direction, peer, d.Protocol, d.Port, strings.Join(says, ", "))
}

// Add adds the result of another node.
func (r *Result) Add(o Result) {
	r.Tables += o.Tables
	r.Endpoints += o.Endpoints
	r.Subjects += o.Subjects
	r.Peers += o.Peers
	r.Ports += o.Ports
	r.Cells += o.Cells
	r.Differ += o.Differ
	r.OverBlocked += o.OverBlocked
	r.Differences = append(r.Differences, o.Differences...)
	r.Differences = r.Differences[:min(len(r.Differences), maxKept)]
	r.Problems = append(r.Problems, o.Problems...)
}
