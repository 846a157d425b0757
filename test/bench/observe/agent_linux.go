// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/cluster/readers"
	"github.com/isthmus-net/isthmus/test/traffic"
)

const (
	// segmentRate makes 1,000 events a second: one at each end.
	segmentRate = 500
	// goalCPU is for 1,000 events a second, in percent of a core. goalMemory is in MiB.
	goalCPU, goalMemory = 2, 8
	// settleTime passes before the first measurement. ringTime is more than the interval in which an agent reads events.
	settleTime = 10 * time.Second
	ringTime   = 500 * time.Millisecond
)

// load are the readers of a measurement. The goals are for an agent with at most one reader.
type load struct {
	name            string
	hubble, inspect int
}

var loads = []load{{"no reader", 0, 0}, {"one reader of Hubble's interface", 1, 0}, {"one reader of isthmusctl events", 0, 1}, {"16 readers", 8, 8}}

// measureAgent measures CPU time and memory under each load.
func (b *bench) measureAgent(ctx context.Context) error {
	time.Sleep(settleTime)
	before, err := b.growth()
	if err != nil {
		return err
	}
	for _, l := range loads {
		if err := b.measureLoad(ctx, l, before); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
	}
	return nil
}

// measureLoad measures one load. before is the growth of memory at the start.
func (b *bench) measureLoad(ctx context.Context, l load, before float64) (err error) {
	group, err := readers.Start(ctx, b.reports.node, l.hubble, l.inspect, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, group.Close()) }()
	var all []sample
	for range b.rounds {
		s, err := b.round(ctx)
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	cost, goal := median(all, sample.cost), l.hubble+l.inspect <= 1
	if err := b.put("events a second, "+l.name, median(all, func(s sample) float64 { return s.events / s.lasted.Seconds() }), "1/s"); err != nil {
		return err
	}
	for name, used := range map[string]func(sample) float64{"with events": sample.with, "the same without events": sample.without} {
		if err := b.put("agent, CPU "+name+", "+l.name, median(all, used), "% of a core"); err != nil {
			return err
		}
	}
	put := b.put
	if goal {
		put = func(name string, value float64, unit string) error { return b.putGoal(name, value, unit, goalCPU) }
	}
	if err := put("agent, CPU for 1,000 events/s, "+l.name, cost, "% of a core"); err != nil {
		return err
	}
	memory := median(all, func(s sample) float64 { return s.growth }) - before
	if goal {
		return b.putGoal("agent, resident memory for events, "+l.name, memory, "MiB", goalMemory)
	}
	return b.put("agent, resident memory for events, "+l.name, memory, "MiB")
}

// growth returns how much more memory the agent that reports has than the other one.
func (b *bench) growth() (float64, error) {
	with, err := b.reports.node.Memory()
	if err != nil {
		return 0, err
	}
	without, err := b.silent.node.Memory()
	return with["VmRSS"] - without["VmRSS"], err
}

// sample is one round: the events, and the CPU time of both agents meanwhile.
type sample struct {
	events              float64
	lasted              time.Duration
	reporting, silently time.Duration
	// growth is how much more memory the agent that reports has. It changes with each garbage collection of either agent.
	growth float64
}

// cost returns the difference of the CPU times for 1,000 events a second, in percent of a core.
func (s sample) cost() float64 {
	return 100 * (s.reporting - s.silently).Seconds() / (s.events / 1000)
}

func (s sample) with() float64    { return 100 * s.reporting.Seconds() / s.lasted.Seconds() }
func (s sample) without() float64 { return 100 * s.silently.Seconds() / s.lasted.Seconds() }

func median(all []sample, of func(sample) float64) float64 {
	var values []float64
	for _, s := range all {
		values = append(values, of(s))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// round sends the same packets on both nodes at the same time.
func (b *bench) round(ctx context.Context) (s sample, err error) {
	before, _, err := readers.Count(b.reports.node)
	if err != nil {
		return s, err
	}
	began := time.Now()
	used, err := b.cpu()
	if err != nil {
		return s, err
	}
	var sending sync.WaitGroup
	var errs [2]error
	for i, at := range []*side{&b.reports, &b.silent} {
		sending.Go(func() { errs[i] = send(ctx, at.syns, b.lasts) })
	}
	sending.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return s, err
	}
	time.Sleep(ringTime)
	usedNow, err := b.cpu()
	if err != nil {
		return s, err
	}
	s.lasted, s.reporting, s.silently = time.Since(began), usedNow[0]-used[0], usedNow[1]-used[1]
	if s.growth, err = b.growth(); err != nil {
		return s, err
	}
	after, _, err := readers.Count(b.reports.node)
	if err != nil {
		return s, err
	}
	e := after.Since(before)
	if s.events = float64(e.Seen); e.Limited+e.Lost > 0 {
		return s, fmt.Errorf("not all events were delivered: %+v", e)
	}
	return s, nil
}

// cpu returns the CPU times of both agents.
func (b *bench) cpu() (used [2]time.Duration, err error) {
	for i, n := range []*cluster.Node{b.reports.node, b.silent.node} {
		if used[i], err = n.CPUTime(); err != nil {
			return used, err
		}
	}
	return used, nil
}

// send opens connections to both ports of the server. No source port comes again within the life of a flow.
func send(ctx context.Context, syns *traffic.SYNs, lasts time.Duration) error {
	return traffic.Pace(ctx, segmentRate, lasts, func(n int) error {
		if n%2 == 0 {
			return syns.Send(openPort)
		}
		return syns.Send(closedPort)
	})
}
