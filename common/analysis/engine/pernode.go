// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
)

// Node decides flows at the endpoints of one node. It belongs to one goroutine.
type Node interface {
	// Apply enforces a State, replacing the State before as a running node would.
	Apply(s *model.State) error
	// Decide returns the decision for one cell. It is never called for traffic of a pod to
	// itself. A Node that has several ways to decide returns an error with the details if
	// they differ.
	Decide(id model.EndpointID, d model.Direction, remote netip.Addr, p model.Protocol, port uint16) (model.Verdict, error)
	// Close releases the resources of the Node.
	Close() error
}

// PerNode is an Engine that has one Node for each node of the cluster.
type PerNode struct {
	// Title is the name of the engine that users write.
	Title string
	// Open makes a Node without a State.
	Open func() (Node, error)
	// Packets is set for engines that decide packets. For cells that no packet can have,
	// Decide then returns ErrImpossible.
	Packets bool
	// Reuse keeps the Nodes of removed cluster nodes, with their content, for new ones,
	// because Open is slow.
	Reuse bool

	nodes map[string]Node
	idle  []Node
}

// Name implements Engine.
func (p *PerNode) Name() string { return p.Title }

// Ready opens a Node ahead of its use, to detect a missing privilege or operating system
// early. The error is that of Open.
func (p *PerNode) Ready() error {
	if len(p.idle)+len(p.nodes) > 0 {
		return nil
	}
	n, err := p.Open()
	if err == nil {
		p.idle = append(p.idle, n)
	}
	return err
}

// Load implements Engine.
func (p *PerNode) Load(c *Cluster) error {
	if p.nodes == nil {
		p.nodes = make(map[string]Node)
	}
	for name, n := range p.nodes {
		if c.States[name] != nil {
			continue
		}
		delete(p.nodes, name)
		if p.Reuse {
			p.idle = append(p.idle, n)
		} else if err := n.Close(); err != nil {
			return err
		}
	}
	for name, state := range c.States {
		if p.nodes[name] == nil {
			n, err := p.take()
			if err != nil {
				return err
			}
			p.nodes[name] = n
		}
		if err := p.nodes[name].Apply(state); err != nil {
			return err
		}
	}
	return nil
}

func (p *PerNode) take() (Node, error) {
	if last := len(p.idle) - 1; last >= 0 {
		n := p.idle[last]
		p.idle = p.idle[:last]
		return n, nil
	}
	return p.Open()
}

// Decide implements Engine.
func (p *PerNode) Decide(q Question) (model.Verdict, error) {
	switch {
	case q.Self():
		return model.Allow, nil
	case p.Packets && !q.Possible():
		return model.Deny, ErrImpossible
	}
	return p.nodes[q.Node].Decide(q.Endpoint, q.Direction, q.Remote, q.Protocol, q.Port)
}

// Close implements Engine.
func (p *PerNode) Close() error {
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
