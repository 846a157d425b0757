// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// figure is one line of output. Goal is an upper bound in the same unit.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Goal  float64 `json:"goal,omitempty"`
}

// bench is a node that follows the cluster.
type bench struct {
	*json.Encoder
	snapshot  model.Snapshot
	endpoints map[model.EndpointID]compile.Endpoint
	compiler  *compile.Compiler
	state     *model.State
	layout    *policymap.Layout
	now       time.Time
}

func run(w io.Writer) error {
	b := &bench{Encoder: json.NewEncoder(w), now: time.Unix(0, 0)}
	s, endpoints := cluster()
	b.snapshot, b.endpoints = *s, endpoints
	if err := b.full(); err != nil {
		return err
	}
	if err := b.verify("verify", false); err != nil {
		return err
	}
	for _, c := range cases() {
		if err := b.measure(c); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return b.verify("after all changes", true)
}

func (b *bench) put(name string, value float64, unit string, goal float64) error {
	return b.Encode(figure{name, value, unit, goal})
}

// full compiles from nothing three times, and takes the median.
func (b *bench) full() error {
	var took []time.Duration
	var peak uint64
	for range 3 {
		b.compiler = compile.New()
		b.state = nil
		runtime.GC()
		stop := watchHeap(&peak)
		began := time.Now()
		state, unsupported := b.compiler.Compile(b.input())
		took = append(took, time.Since(began))
		stop()
		if len(unsupported) > 0 {
			return fmt.Errorf("compile: %s", unsupported[0])
		}
		b.state = state
	}
	slices.Sort(took)
	if err := b.put("compile full", took[1].Seconds(), "s", 2); err != nil {
		return err
	}
	if err := b.put("compile full, heap with the snapshot, peak", float64(peak)/1e6, "MB", 400); err != nil {
		return err
	}
	for name, n := range map[string]int{"tables": len(b.state.Policy.Tables), "peer classes": len(b.state.Policy.PeerClasses),
		"port classes": len(b.state.Policy.PortClasses), "addresses": b.state.Policy.Addresses.Len(), "prefixes": len(b.state.Policy.Prefixes)} {
		if err := b.put(name, float64(n), "", 0); err != nil {
			return err
		}
	}
	b.layout = policymap.NewLayout(policymap.Capacity{Slots: 4096, Peers4: 1 << 20, Peers6: 1 << 20, Prefixes4: 1 << 20, Prefixes6: 1 << 20,
		Verdicts: 1 << 24, Rows: 1 << 20, Tables: 1 << 16})
	for id := range b.endpoints {
		if _, err := b.layout.AddSlot(id); err != nil {
			return err
		}
	}
	began := time.Now()
	_, err := b.advance(b.state)
	if err != nil {
		return err
	}
	return b.put("writes full", time.Since(began).Seconds(), "s", 0)
}

func (b *bench) input() compile.Input {
	s := b.snapshot
	return compile.Input{Snapshot: &s, Node: "node-0", Endpoints: maps.Clone(b.endpoints)}
}

// advance plans the writes that lead to a State, and counts them.
func (b *bench) advance(to *model.State) (writes int, err error) {
	for _, step := range dataplane.Plan(b.layout.State(), to) {
		b.now = b.now.Add(policymap.Grace)
		w, err := b.layout.Advance(step, b.now)
		if err != nil {
			return 0, err
		}
		writes += w.Count()
	}
	return writes, nil
}

// measure makes one kind of change repeatedly.
func (b *bench) measure(c testCase) error {
	runtime.LockOSThread() // for processorTime
	defer runtime.UnlockOSThread()
	var compile, busy, plan []time.Duration
	writes := 0
	for i := range c.times {
		c.change(b, i)
		in := b.input()
		runtime.Gosched()
		used, began := processorTime(), time.Now()
		state, unsupported := b.compiler.Compile(in)
		compile, busy = append(compile, time.Since(began)), append(busy, processorTime()-used)
		if len(unsupported) > 0 {
			return fmt.Errorf("compile: %s", unsupported[0])
		}
		b.state = state
		began = time.Now()
		n, err := b.advance(state)
		if err != nil {
			return err
		}
		plan = append(plan, time.Since(began))
		writes += n
	}
	for _, f := range []struct {
		what string
		took []time.Duration
		goal float64
	}{{"compile", compile, c.goal}, {"compile, processor time", busy, c.goal}, {"plan and writes", plan, 0}} {
		slices.Sort(f.took)
		if err := b.put(c.name+", "+f.what, micro(f.took[len(f.took)/2]), "us", f.goal); err != nil {
			return err
		}
		if err := b.put(c.name+", "+f.what+", 90th percentile", micro(f.took[len(f.took)*9/10]), "us", 0); err != nil {
			return err
		}
	}
	return b.put(c.name+", map entries written", float64(writes)/float64(c.times), "", 0)
}

func micro(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// watchHeap records the peak of the heap until stop is called.
func watchHeap(peak *uint64) (stop func()) {
	done := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		for {
			metrics.Read(sample)
			*peak = max(*peak, sample[0].Value.Uint64())
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	return func() { close(done); wait.Wait() }
}
