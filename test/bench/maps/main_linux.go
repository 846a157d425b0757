// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf/rlimit"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

func main() {
	asJSON := flag.Bool("json", false, "print one JSON object a line in place of the table")
	flag.Parse()
	if err := run(os.Stdout, *asJSON); err != nil {
		fmt.Fprintln(os.Stderr, "maps:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, asJSON bool) error {
	if os.Getuid() != 0 {
		return errors.New("needs root to make maps and namespaces: sudo make bench-maps")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("remove the limit on locked memory: %w", err)
	}
	figures, err := measureMaps()
	if err != nil {
		return err
	}
	more, err := measureAttachment()
	if err != nil {
		return err
	}
	return report(append(figures, more...), w, asJSON)
}

// node writes the states of a simulated cluster to maps of its own.
type node struct {
	snapshot  *model.Snapshot
	endpoints map[model.EndpointID]compile.Endpoint
	compiler  *compile.Compiler
	path      *loader.DataPath
	layout    *policymap.Layout
	now       time.Time
}

func measureMaps() ([]figure, error) {
	path, err := loader.OpenSandbox()
	if err != nil {
		return nil, err
	}
	defer path.Close()
	n := &node{compiler: compile.New(), path: path, layout: policymap.NewLayout(path.Capacity()), now: time.Unix(0, 0)}
	n.snapshot, n.endpoints = cluster()
	for _, id := range slices.Sorted(maps.Keys(n.endpoints)) {
		slot, err := n.layout.AddSlot(id)
		if err == nil {
			err = path.WriteSlot(slot)
		}
		if err != nil {
			return nil, err
		}
	}
	took, entries, err := n.apply()
	if err != nil {
		return nil, err
	}
	taken, err := path.Memory()
	if err != nil {
		return nil, err
	}
	sum := uint64(0)
	for _, bytes := range taken {
		sum += bytes
	}
	figures := []figure{
		{"maps, everything written", millis(took), "ms", 0}, {"maps, entries written", float64(entries), "", 0},
		{"maps, memory for 10000 peers in both families, 1000 policies, 250 endpoints", float64(sum) / (1 << 20), "MiB", 64},
		{"maps, memory of the flows in it", float64(taken["conns4"]+taken["conns6"]) / (1 << 20), "MiB", 0},
	}
	for _, c := range []struct {
		name string
		edit func(int) *model.Policy
	}{{"edit that touches 100 endpoints of one Table", oneTable}, {"edit that touches 100 endpoints with a Table each", manyTables}} {
		more, err := n.measureEdits(c.name, c.edit)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		figures = append(figures, more...)
	}
	return figures, nil
}

func (n *node) measureEdits(name string, edit func(int) *model.Policy) ([]figure, error) {
	var took []time.Duration
	total := 0
	const edits = 41
	for i := range edits {
		p := edit(i + 1)
		c := *n.snapshot
		c.Policies = c.Policies.With(p.Origin.Key(), p)
		n.snapshot = &c
		t, entries, err := n.apply()
		if err != nil {
			return nil, err
		}
		took, total = append(took, t), total+entries
	}
	slices.Sort(took)
	return []figure{
		{name + ", map writes", millis(took[edits/2]), "ms", 5}, {name + ", map writes, least", millis(took[0]), "ms", 0},
		{name + ", entries", float64(total) / edits, "", 0},
	}, nil
}

// apply compiles, plans and writes. It returns how long the writes took, and the number of entries.
func (n *node) apply() (took time.Duration, entries int, err error) {
	state, unsupported := n.compiler.Compile(compile.Input{Snapshot: n.snapshot, Node: "node-0", Endpoints: maps.Clone(n.endpoints)})
	if len(unsupported) > 0 {
		return 0, 0, fmt.Errorf("compile: %s", unsupported[0])
	}
	for _, step := range dataplane.Plan(n.layout.State(), state) {
		n.now = n.now.Add(policymap.Grace)
		w, err := n.layout.Advance(step, n.now)
		if err != nil {
			return 0, 0, err
		}
		began := time.Now()
		if err := n.path.Execute(w); err != nil {
			return 0, 0, err
		}
		took, entries = took+time.Since(began), entries+w.Count()
	}
	return took, entries, nil
}

func millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
