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
	"sync"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

const (
	changes = 1_000
	// fewer is the goal: without sets, the backend writes this many times as many lists.
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

// run follows the changes three times concurrently: by full lists, with an HNS without sets, and
// with one that has them. The backend uses no feature of newer versions.
func run(w io.Writer) error {
	profiles := []hns.Version{hns.Server2019, hns.Server2022}
	var naive int
	var naiveErr error
	all := make([]counts, len(profiles))
	errs := make([]error, len(profiles))
	var running sync.WaitGroup
	running.Go(func() { naive, naiveErr = fullLists() })
	for i, profile := range profiles {
		running.Go(func() { all[i], errs[i] = measure(profile) })
	}
	running.Wait()
	for i, profile := range profiles {
		if errs[i] != nil {
			errs[i] = fmt.Errorf("hns %s: %w", profile, errs[i])
		}
	}
	if err := errors.Join(append(errs, naiveErr)...); err != nil {
		return err
	}
	figures := []figure{
		{"full list per change: ACL lists rewritten", float64(naive), "lists", 0},
		// The backend keeps what it wrote in memory: it reads nothing from HNS.
		{"full list per change: calls of HNS", float64(naive), "calls", 0},
	}
	for i, profile := range profiles {
		figures = append(figures, all[i].figures(profile, naive)...)
	}
	adds, err := addFigures()
	if err != nil {
		return err
	}
	return print(w, append(figures, adds...))
}

// print writes the figures, and returns an error that lists missed goals.
func print(w io.Writer, figures []figure) error {
	out := json.NewEncoder(w)
	var missed error
	for _, f := range figures {
		if f.Goal > 0 && f.Value > f.Goal {
			missed = errors.Join(missed, fmt.Errorf("%w: %s", errGoal, f.Name))
		}
		if err := out.Encode(f); err != nil {
			return err
		}
	}
	return missed
}

// follow makes the changes and passes every State to apply, including the one before the first
// change.
func follow(apply func(*model.State) error) (*model.State, error) {
	s, endpoints := cluster()
	compiler := compile.New()
	c := &change{random: rand.New(rand.NewPCG(1, 1))}
	snapshot := *s
	for i := 0; ; i++ {
		at := snapshot
		state, unsupported := compiler.Compile(compile.Input{Snapshot: &at, Node: self, Endpoints: maps.Clone(endpoints)})
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

// fullLists counts the changed lists of a node that computes all lists after every change and skips
// equal ones. The lists contain all addresses, as HNS 9.5 requires.
func fullLists() (int, error) {
	var last map[model.EndpointID][]hns.ACL
	count := 0
	var lowerer acl.Lowerer
	_, err := follow(func(s *model.State) error {
		lists := lowerer.Lower(s, lowering(hns.Server2019), "").Lists
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

// lowering returns the options that the backend uses on the node.
func lowering(v hns.Version) acl.Options {
	return acl.Options{Sets: v.Supports(hns.Sets), NoIPv6: !v.Supports(hns.DualStack),
		Node: []netip.Addr{nodeAddress(0), cidrOf(0).Addr().Next().Next()}}.Defaults()
}

// counts holds the number of HNS calls by operation.
type counts map[string]int

// measure follows the changes with the backend over a Fake.
func measure(v hns.Version) (counts, error) {
	ctx := context.Background()
	fake := hnstest.NewFake(v)
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
	calls := make(counts)
	first := true
	last, err := follow(func(s *model.State) error {
		_, err := backend.Apply(ctx, s)
		if !first {
			for _, c := range fake.Calls() {
				calls[c.Op]++
			}
		}
		first = false
		fake.ForgetCalls()
		return err
	})
	if err != nil {
		return nil, err
	}
	return calls, prove(ctx, fake, last, lowering(v))
}

func (c counts) figures(v hns.Version, naive int) []figure {
	goal := 0.0
	if v.Supports(hns.Sets) {
		goal = float64(naive) / fewer
	}
	all := 0
	for _, n := range c {
		all += n
	}
	name := "hns " + v.String() + ": "
	return []figure{
		{name + "ACL lists rewritten", float64(c["ModifyEndpoint"]), "lists", goal},
		{name + "sets written", float64(c["ModifyNetwork"]), "sets", 0},
		{name + "calls of HNS, reading included", float64(all), "calls", 0},
	}
}

// prove reads what HNS holds and compares it with the State in every cell.
func prove(ctx context.Context, fake *hnstest.Fake, s *model.State, o acl.Options) error {
	networks, err := fake.Networks(ctx)
	if err != nil {
		return err
	}
	list, err := fake.AllEndpoints(ctx)
	if err != nil {
		return err
	}
	held := &acl.Ruleset{Lists: make(map[model.EndpointID][]hns.ACL), Sets: make(map[string][]netip.Addr)}
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
	for id := range s.Policy.Endpoints {
		if err := acl.Check(s, id, o, held, hns.Reading{}); err != nil {
			return err
		}
	}
	return nil
}
