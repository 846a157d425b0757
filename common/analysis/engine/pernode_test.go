// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/model"
)

// counted is a Node that counts the open Nodes.
type counted struct {
	tables
	open *int
}

func (n *counted) Close() error { *n.open--; return nil }

// Nodes of cluster nodes that leave are closed, or kept for those that join.
func TestPerNodeFollowsNodes(t *testing.T) {
	both := engine.Compile(webToAPI(), nil)
	one := &engine.Cluster{Snapshot: both.Snapshot, States: map[string]*model.State{"node1": both.States["node1"]}}
	for _, reuse := range []bool{false, true} {
		open, opened := 0, 0
		p := &engine.PerNode{Title: "counted", Reuse: reuse, Open: func() (engine.Node, error) {
			open++
			opened++
			return &counted{open: &open}, nil
		}}
		for _, c := range []*engine.Cluster{both, one, both} {
			if err := p.Load(c); err != nil {
				t.Fatal(err)
			}
			if want := len(c.States); !reuse && open != want {
				t.Errorf("%d nodes open, want %d", open, want)
			}
		}
		if want := map[bool]int{false: 3, true: 2}[reuse]; opened != want {
			t.Errorf("reuse=%t: opened %d times, want %d", reuse, opened, want)
		}
		if err := p.Close(); err != nil || open != 0 {
			t.Errorf("reuse=%t: %d nodes open after Close: %v", reuse, open, err)
		}
	}
}

// Traffic of a pod to itself is allowed without a Node. For a flow that no packet can have,
// only engines that decide packets return ErrImpossible.
func TestPerNodeSelfAndImpossible(t *testing.T) {
	cluster := engine.Compile(webToAPI(), nil)
	api := netip.MustParseAddr("10.0.1.2")
	cell := cluster.Questions(model.Flow{Src: netip.MustParseAddr("10.0.2.2"), Dst: api, Protocol: model.TCP, Port: 80})[1]
	for _, packets := range []bool{false, true} {
		p := &engine.PerNode{Title: "x", Packets: packets, Open: func() (engine.Node, error) { return &tables{}, nil }}
		if err := p.Load(cluster); err != nil {
			t.Fatal(err)
		}
		self, other, icmp := cell, cell, cell
		self.Remote, self.Port = api, 22
		other.Remote = netip.MustParseAddr("fd00::1")
		icmp.Protocol = model.ICMPv6
		if v, err := p.Decide(self); v != model.Allow || err != nil {
			t.Errorf("self: %s, %v", v, err)
		}
		for _, q := range []engine.Question{other, icmp} {
			if v, err := p.Decide(q); v != model.Deny || errors.Is(err, engine.ErrImpossible) != packets {
				t.Errorf("packets=%t: %s: %s, %v", packets, q, v, err)
			}
		}
	}
}
