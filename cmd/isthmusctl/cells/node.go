// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"fmt"
	"time"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/engine"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/windows/acl"
)

// Node is everything that is to agree about the endpoints of one node.
type Node struct {
	Snapshot *model.Snapshot
	State    *model.State
	// Entries are those of the BPF maps, and Slots says which slot an endpoint
	// has. Nil Entries are not compared.
	Entries *policymap.Entries
	Slots   map[model.EndpointID]uint32
	Lists   []Lists
	// Reported is what the compiler could not do exactly: where it is not empty,
	// tables may deny what the reference allows.
	Reported []model.Unsupported
	// NoReference leaves the evaluator out.
	NoReference bool
	// Reference, if set, is that of the Snapshot, which several nodes may share.
	Reference *Reference
	// Workers bounds the endpoints that are compared at one time; 0 means one for
	// each processor.
	Workers int
	// Progress, if set, is called with the number of endpoints that are done and of
	// those there are; by several goroutines.
	Progress func(done, total int)
}

// Lists are the ACLs for some profiles of HNS.
type Lists struct {
	engine.Variant
	Ruleset *acl.Ruleset
	// Reported is what the lowering denies although the State allows it.
	Reported []model.Unsupported
}

// capacity is generous: what a node's maps hold is not in question here.
var capacity = policymap.Capacity{Slots: 1 << 20, Peers4: 1 << 24, Peers6: 1 << 24, Prefixes4: 1 << 20, Prefixes6: 1 << 20,
	Verdicts: 1 << 28, Rows: 1 << 24, Tables: 1 << 20}

// Encode lays a State out for both systems, from nothing, as a new node would.
// What is compared are the entries that the map writes lead to, and the lists as
// HNS would be given them.
func Encode(s *model.Snapshot, state *model.State, reported []model.Unsupported) (*Node, error) {
	n := &Node{Snapshot: s, State: state, Reported: reported, Entries: policymap.NewEntries(), Slots: make(map[model.EndpointID]uint32)}
	layout := policymap.NewLayout(capacity)
	for id := range state.Endpoints {
		w, err := layout.AddSlot(id)
		if err != nil {
			return nil, fmt.Errorf("lay out the maps of node %q: %w", state.Node, err)
		}
		n.Slots[id] = w.Index
		n.Entries.Slots[w.Index] = w.Slot
	}
	for _, step := range dataplane.Plan(layout.State(), state) {
		w, err := layout.Advance(step, time.Now())
		if err != nil {
			return nil, fmt.Errorf("lay out the maps of node %q: %w", state.Node, err)
		}
		n.Entries.Execute(w)
	}
	for _, v := range engine.Variants() {
		l := acl.Lower(state, v.Options, v.Name)
		n.Lists = append(n.Lists, Lists{Variant: v, Ruleset: l.Keep(&acl.Ruleset{}), Reported: l.Unsupported})
	}
	return n, nil
}
