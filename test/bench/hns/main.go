// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

const (
	changes = 1_000
	// fewer is how many times fewer lists are to be written than without sets.
	fewer = 20
)

// figure is one line of output. Goal is an upper bound in the same unit.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Goal  float64 `json:"goal,omitempty"`
}

var errGoal = errors.New("a figure is above its goal")

func run(w io.Writer) error {
	naive, err := fullLists()
	if err != nil {
		return err
	}
	out := json.NewEncoder(w)
	if err := out.Encode(figure{"ACL lists rewritten, full list per change", float64(naive), "lists", 0}); err != nil {
		return err
	}
	var missed error
	for _, profile := range hns.Profiles() {
		figures, err := measure(profile, naive)
		if err != nil {
			return fmt.Errorf("hns %s: %w", profile, err)
		}
		for _, f := range figures {
			if f.Goal > 0 && f.Value > f.Goal {
				missed = errors.Join(missed, fmt.Errorf("%w: %s", errGoal, f.Name))
			}
			if err := out.Encode(f); err != nil {
				return err
			}
		}
	}
	return missed
}

// follow makes the changes and hands every State to apply, the first before
// any.
func follow(apply func(*model.State) error) (*model.State, error) {
	s, endpoints := cluster()
	compiler := policy.NewCompiler()
	c := &change{random: rand.New(rand.NewPCG(1, 1))}
	snapshot := *s
	for i := 0; ; i++ {
		at := snapshot
		state, unsupported := compiler.Compile(policy.Input{Snapshot: &at, Node: self, Endpoints: maps.Clone(endpoints)})
		if len(unsupported) > 0 {
			return nil, fmt.Errorf("compile: %s", unsupported[0])
		}
		if err := apply(state); err != nil {
			return nil, fmt.Errorf("change %d: %w", i, err)
		}
		if i == changes {
			return state, nil
		}
		c.apply(&snapshot)
	}
}

// fullLists counts the lists that are no longer what they were, with all
// addresses written into them as HNS 9.5 needs it: what a node rewrites that
// makes the lists anew after every change and leaves equal ones alone.
func fullLists() (int, error) {
	var last map[model.EndpointID][]hns.ACL
	count := 0
	_, err := follow(func(s *model.State) error {
		lists := acl.Lower(s, lowering(hns.Server2019), "").Lists
		for id, list := range lists {
			if last != nil && !acl.Equal(last[id], list) {
				count++
			}
		}
		last = lists
		return nil
	})
	return count, err
}

// lowering are the options that the backend has for the node.
func lowering(v hns.Version) acl.Options {
	return acl.Options{Sets: v.Supports(hns.Sets), NoIPv6: !v.Supports(hns.DualStack), Node: []netip.Addr{nodeAddress(0), cidrOf(0).Addr().Next().Next()}}.Defaults()
}

// measure follows the changes with the backend over a Fake.
func measure(v hns.Version, naive int) ([]figure, error) {
	ctx := context.Background()
	fake := hns.NewFake(v)
	config := windows.Config{Mode: windows.L2Bridge, PodCIDRs: []netip.Prefix{cidrOf(0)}, NodeAddresses: []netip.Addr{nodeAddress(0)}, NoOutboundNAT: true}
	backend, err := windows.New(ctx, config, fake, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	_, endpoints := cluster()
	for _, id := range slices.Sorted(maps.Keys(endpoints)) {
		container, ifName, _ := strings.Cut(string(id), ":")
		spec := dataplane.EndpointSpec{ID: id, ContainerID: container, IfName: ifName, Pod: endpoints[id].Pod, NetNS: fake.AddNamespace(), IPs: endpoints[id].IPs}
		if _, err := backend.AddEndpoint(ctx, spec); err != nil {
			return nil, err
		}
	}
	counts := make(map[string]int)
	var took []time.Duration
	first := true
	last, err := follow(func(s *model.State) error {
		began := time.Now()
		_, err := backend.Apply(ctx, s)
		if !first {
			took = append(took, time.Since(began))
			for _, c := range fake.Calls() {
				counts[c.Op]++
			}
		}
		first = false
		fake.ForgetCalls()
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := prove(ctx, fake, last, lowering(v)); err != nil {
		return nil, err
	}
	slices.Sort(took)
	goal := 0.0
	if v.Supports(hns.Sets) {
		goal = float64(naive) / fewer
	}
	calls := 0
	for _, n := range counts {
		calls += n
	}
	name := "hns " + v.String() + ": "
	return []figure{
		{name + "ACL lists rewritten", float64(counts["ModifyEndpoint"]), "lists", goal},
		{name + "sets written", float64(counts["ModifyNetwork"]), "sets", 0},
		{name + "calls of HNS", float64(calls), "calls", 0},
		{name + "own work per change, median", took[len(took)/2].Seconds() * 1e3, "ms", 0},
	}, nil
}

// prove reads what HNS holds and compares it with the State in every cell.
func prove(ctx context.Context, fake *hns.Fake, s *model.State, o acl.Options) error {
	networks, err := fake.Networks(ctx)
	if err != nil {
		return err
	}
	list, err := fake.AllEndpoints(ctx)
	if err != nil {
		return err
	}
	held := &acl.Programme{Lists: make(map[model.EndpointID][]hns.ACL), Sets: make(map[string][]netip.Addr)}
	sets, err := networks[0].Sets()
	if err != nil {
		return err
	}
	for _, set := range sets {
		if held.Sets[set.ID], err = acl.DecodeSet(set); err != nil {
			return err
		}
	}
	for _, e := range list {
		if container, ok := strings.CutSuffix(e.Name, "_eth0_isthmus"); ok {
			if held.Lists[model.MakeEndpointID(container, "eth0")], err = e.ACLs(); err != nil {
				return err
			}
		}
	}
	for id := range s.Endpoints {
		if err := acl.Check(s, id, o, held, hns.Reading{}); err != nil {
			return err
		}
	}
	return nil
}
