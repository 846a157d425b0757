// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/isthmus-net/isthmus/common/analysis/cells"
	"github.com/isthmus-net/isthmus/linux/policymap/mapsim"
	"github.com/isthmus-net/isthmus/windows/acl/aclsim"
)

// verify checks every cell of the node, and measures how long that takes. The compiled tables, the
// map entries of all writes so far, newly written ACLs and the reference evaluator must agree.
func (b *bench) verify(name string, changed bool) error {
	s := b.snapshot
	began := time.Now()
	maps, err := mapsim.Encode(b.state)
	if err != nil {
		return err
	}
	node := &cells.Node{Snapshot: &s, State: b.state}
	for _, l := range aclsim.Encode(b.state) {
		node.Lists = append(node.Lists, l)
	}
	if err := b.put(name+", lay out maps and ACLs", time.Since(began).Seconds(), "s", 0); err != nil {
		return err
	}
	maps.Entries = b.layout.Entries
	clear(maps.Index)
	for id := range b.endpoints {
		maps.Index[id], _ = b.layout.Slot(id)
	}
	node.Maps = maps
	var result cells.Result
	for _, c := range []struct {
		name string
		goal float64
		all  bool
	}{{name + ", tables = maps = ACLs", 15, false}, {name + ", evaluator = tables = maps = ACLs", 300, true}} {
		node.NoReference = !c.all
		began := time.Now()
		if result, err = cells.Compare(context.Background(), node); err != nil {
			return err
		}
		if result.Differ > 0 || len(result.Problems) > 0 {
			return fmt.Errorf("%s: differ=%d: %v %v", c.name, result.Differ, result.Differences, result.Problems)
		}
		if changed {
			c.goal = 0 // the edits multiply the number of cells
		}
		if err := b.put(c.name, time.Since(began).Seconds(), "s", c.goal); err != nil {
			return err
		}
	}
	for _, f := range []figure{
		{Name: name + ", tables", Value: float64(result.Tables)}, {Name: name + ", peers", Value: float64(result.Peers)},
		{Name: name + ", ports", Value: float64(result.Ports)}, {Name: name + ", cells", Value: float64(result.Cells)},
		{Name: name + ", cells that differ", Value: float64(result.Differ)}, {Name: name + ", cells over-blocked as reported", Value: float64(result.OverBlocked)},
	} {
		if err := b.put(f.Name, f.Value, "", 0); err != nil {
			return err
		}
	}
	return nil
}
