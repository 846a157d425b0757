// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/probe"
)

// Program is the real BPF programs, run by the kernel's BPF_PROG_TEST_RUN.
// Needs root.
type Program struct {
	nodes map[string]*probe.Programs
	// idle are loaded and wait for a node: loading takes a tenth of a second.
	idle []*probe.Programs
}

// Name implements Engine.
func (*Program) Name() string { return "program" }

// Load implements Engine. Nodes that are gone leave their programs, and what is
// in the maps, to nodes that come.
func (p *Program) Load(c *Cluster) error {
	if p.nodes == nil {
		p.nodes = make(map[string]*probe.Programs)
	}
	for node, n := range p.nodes {
		if c.States[node] == nil {
			p.idle = append(p.idle, n)
			delete(p.nodes, node)
		}
	}
	for node, state := range c.States {
		if p.nodes[node] == nil {
			n, err := p.take()
			if err != nil {
				return err
			}
			p.nodes[node] = n
		}
		if err := p.nodes[node].Apply(state); err != nil {
			return err
		}
	}
	return nil
}

func (p *Program) take() (*probe.Programs, error) {
	if last := len(p.idle) - 1; last >= 0 {
		n := p.idle[last]
		p.idle = p.idle[:last]
		return n, nil
	}
	return probe.Load()
}

// Decide implements Engine.
func (p *Program) Decide(q Question) (model.Verdict, error) {
	if q.self() {
		return model.Allow, nil // never leaves the pod
	}
	if !q.possible() {
		return model.Deny, ErrImpossible
	}
	return p.nodes[q.Node].Decide(q.Endpoint, q.Direction, q.Remote, q.Protocol, q.Port)
}

// Close implements Engine.
func (p *Program) Close() error {
	var errs []error
	for _, n := range p.nodes {
		errs = append(errs, n.Close())
	}
	for _, n := range p.idle {
		errs = append(errs, n.Close())
	}
	p.nodes, p.idle = nil, nil
	return errors.Join(errs...)
}

// Ready says why the engine cannot run here, if it cannot.
func (p *Program) Ready() error {
	if len(p.idle) > 0 || len(p.nodes) > 0 {
		return nil
	}
	n, err := probe.Load()
	if err == nil {
		p.idle = append(p.idle, n)
	}
	return err
}
