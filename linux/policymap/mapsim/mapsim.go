// SPDX-License-Identifier: Apache-2.0

// Package mapsim decides flows of one node by the entries that its BPF maps would hold, without
// a kernel.
//
// A Node reaches the entries of each State by the writes that a running node would make. It
// does not run programs: linux/probe does.
package mapsim

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// Node is the maps of one node. It belongs to one goroutine.
type Node struct{ layout *policymap.Layout }

// capacity is large enough for every test.
var capacity = policymap.Capacity{Slots: 1 << 16, Peers4: 1 << 24, Peers6: 1 << 24, Prefixes4: 1 << 20, Prefixes6: 1 << 20,
	Verdicts: 1 << 26, Rows: 1 << 20, Tables: 1 << 16}

// New returns a Node with empty maps.
func New() *Node { return &Node{layout: policymap.NewLayout(capacity)} }

// Apply lays out a State, by the steps of dataplane.Plan. Endpoints that are not in the State
// lose their slots.
func (n *Node) Apply(s *model.State) error {
	l := n.layout
	for id := range l.State().Policy.Endpoints {
		if _, stays := s.Policy.Endpoints[id]; !stays {
			l.DropSlot(id)
		}
	}
	for id := range s.Policy.Endpoints {
		if _, err := l.AddSlot(id); err != nil {
			return fmt.Errorf("lay out the maps of node %q: %w", s.Node, err)
		}
	}
	for _, step := range dataplane.Plan(l.State(), s) {
		if _, err := l.Advance(step, time.Now()); err != nil {
			return fmt.Errorf("lay out the maps of node %q: %w", s.Node, err)
		}
	}
	return nil
}

// Decide looks up a flow as the programs do. For an endpoint without a slot it always denies.
// The error is always nil.
func (n *Node) Decide(id model.EndpointID, d model.Direction, remote netip.Addr, p model.Protocol, port uint16) (model.Verdict, error) {
	slot, ok := n.layout.Slot(id)
	if !ok {
		return model.Deny, nil
	}
	return n.layout.Lookup(slot, d, remote, p, port), nil
}

// Close does nothing; the maps are in memory.
func (n *Node) Close() error { return nil }
