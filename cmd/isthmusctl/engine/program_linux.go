// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/probe"
)

// Program is the real BPF programs, run by the kernel's BPF_PROG_TEST_RUN.
// Needs root.
type Program struct{ nodes map[string]*probe.Programs }

// Name implements Engine.
func (*Program) Name() string { return "program" }

// Load implements Engine.
func (p *Program) Load(c *Cluster) error {
	if p.nodes == nil {
		p.nodes = make(map[string]*probe.Programs)
	}
	for node, n := range p.nodes {
		if c.States[node] == nil {
			n.Close()
			delete(p.nodes, node)
		}
	}
	for node, state := range c.States {
		if p.nodes[node] == nil {
			n, err := probe.Load()
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
	p.nodes = nil
	return errors.Join(errs...)
}

// possible reports whether a packet of the cell can exist.
func (q Question) possible() bool {
	switch {
	case q.Protocol == model.ICMP && q.Remote.Is6(), q.Protocol == model.ICMPv6 && q.Remote.Is4():
		return false
	}
	for _, ip := range q.Pod.IPs {
		if ip.Is6() == q.Remote.Is6() {
			return true
		}
	}
	return false
}
