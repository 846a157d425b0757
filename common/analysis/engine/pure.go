// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
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
	return t.states[q.Node].Policy.Decide(q.Endpoint, q.Direction, q.Remote, q.Protocol, q.Port).Verdict, nil
}

// Close implements Engine.
func (*Tables) Close() error { return nil }
