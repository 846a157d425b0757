// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// Evaluate is the reference evaluator.
type Evaluate struct{ evaluator *policy.Evaluator }

// Name implements Engine.
func (*Evaluate) Name() string { return "evaluate" }

// Load implements Engine.
func (e *Evaluate) Load(c *Cluster) error {
	e.evaluator = policy.NewEvaluator(c.Snapshot)
	return nil
}

// Decide implements Engine.
func (e *Evaluate) Decide(q Question) (model.Verdict, error) {
	return e.evaluator.Endpoint(q.Pod, q.Direction, q.Remote, q.Protocol, q.Port).Verdict, nil
}

// Close implements Engine.
func (*Evaluate) Close() error { return nil }

// Tables is the compiled tables.
type Tables struct{ states map[string]*model.State }

// Name implements Engine.
func (*Tables) Name() string { return "tables" }

// Load implements Engine.
func (t *Tables) Load(c *Cluster) error {
	t.states = c.States
	return nil
}

// Decide implements Engine.
func (t *Tables) Decide(q Question) (model.Verdict, error) {
	return t.states[q.Node].Decide(q.Endpoint, q.Direction, q.Remote, q.Protocol, q.Port).Verdict, nil
}

// Close implements Engine.
func (*Tables) Close() error { return nil }

// Maps is the entries of the BPF maps, decoded. They are reached from those of
// the cluster before by the writes that a running node would make.
type Maps struct{ nodes map[string]*policymap.Layout }

// capacity is generous: what a node's maps hold is not in question here.
var capacity = policymap.Capacity{Slots: 1 << 16, Peers4: 1 << 24, Peers6: 1 << 24, Prefixes4: 1 << 20, Prefixes6: 1 << 20,
	Verdicts: 1 << 26, Rows: 1 << 20, Tables: 1 << 16}

// Name implements Engine.
func (*Maps) Name() string { return "maps" }

// Load implements Engine.
func (m *Maps) Load(c *Cluster) error {
	before := m.nodes
	m.nodes = make(map[string]*policymap.Layout, len(c.States))
	for node, state := range c.States {
		l := before[node]
		if l == nil {
			l = policymap.NewLayout(capacity)
		}
		for id := range l.State().Endpoints {
			if _, stays := state.Endpoints[id]; !stays {
				l.DropSlot(id)
			}
		}
		for id := range state.Endpoints {
			if _, err := l.AddSlot(id); err != nil {
				return err
			}
		}
		for _, step := range dataplane.Plan(l.State(), state) {
			if _, err := l.Advance(step, time.Now()); err != nil {
				return err
			}
		}
		m.nodes[node] = l
	}
	return nil
}

// Decide implements Engine.
func (m *Maps) Decide(q Question) (model.Verdict, error) {
	if q.self() {
		return model.Allow, nil // never reaches the maps
	}
	slot, ok := m.nodes[q.Node].Slot(q.Endpoint)
	if !ok {
		return model.Deny, nil
	}
	return m.nodes[q.Node].Lookup(slot, q.Direction, q.Remote, q.Protocol, q.Port), nil
}

// Close implements Engine.
func (*Maps) Close() error { return nil }
