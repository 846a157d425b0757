// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// written is the number of packets in a measurement of which each writes an event. The ring has room for all.
const written = 4_000

// eventLoads is how often the programs and maps are loaded again. Where the kernel places them in memory changes a
// packet by some per cent, so few loads would measure that.
const eventLoads = 45

// eventTurns is how often the programs with and without events take turns in a round. Short turns meet the same neighbours on a
// virtual machine.
const eventTurns = 10

// eventBench are the same programs and maps, loaded with and without flow events.
type eventBench struct {
	// off has no events, limited those of the defaults, every one for every packet.
	off, limited, every *bench
}

// newEventBench loads the programs. swap changes the order of the first two.
func newEventBench(repeat int, swap bool) (*eventBench, error) {
	e := &eventBench{}
	loads := []struct {
		to     **bench
		events loader.Events
	}{{&e.off, loader.Events{}}, {&e.limited, loader.DefaultEvents()},
		{&e.every, loader.Events{Rate: loader.MaxEventRate, Burst: loader.MaxEventBurst, Allowed: true}}}
	if swap {
		loads[0], loads[1] = loads[1], loads[0]
	}
	for _, l := range loads {
		settings := longLived
		settings.Events = l.events
		b, err := newBenchWith(repeat, settings)
		if err != nil {
			e.close()
			return nil, err
		}
		*l.to = b
	}
	return e, nil
}

func (e *eventBench) close() {
	for _, b := range []*bench{e.off, e.limited, e.every} {
		if b != nil {
			b.close()
		}
	}
}

// eventCases are kinds of packets. Established ones cause no event. A burst of new flows is over the limit of its pod
// after the first hundred.
func eventCases() []benchCase {
	return []benchCase{
		{name: "established, 1,000 flows", flows: 1000, addresses: 1000, table: allowTable, passes: true, goal: goal{times: 1}},
		{name: "new flow, denied, 1,000 addresses", flows: 1000, addresses: 1000, table: denyTable, opens: true, goal: goal{times: 1.02}},
		{name: "new flow, allowed, full flow table", flows: 60_000_000, addresses: 1000, table: allowTable, opens: true, passes: true, goal: goal{times: 1.02}},
	}
}

// eventFigures are the figures of one case. few is off, over as many packets as every.
type eventFigures struct{ off, limited, few, every figure }

// eventCosts compares the programs with events to those without, in the same rounds.
func eventCosts(ctx context.Context, rounds, repeat int) (rows []row, err error) {
	all := make([]eventFigures, len(eventCases()))
	for n := range eventLoads {
		e, err := newEventBench(repeat, n%2 == 1)
		if err != nil {
			return nil, err
		}
		for i, c := range eventCases() {
			if err = errors.Join(ctx.Err(), e.measure(c, max(rounds/4, 1), &all[i])); err != nil {
				err = fmt.Errorf("%s: %w", c.name, err)
				break
			}
		}
		e.close()
		if err != nil {
			return nil, err
		}
	}
	for i, c := range eventCases() {
		f := all[i]
		rows = append(rows, newRow("flow events", c.name+", events off", "ns", f.off),
			newRow("flow events", c.name+", events on", "ns", f.limited).beside("events off", f.off, c.goal))
		if eachWrites(c) {
			rows = append(rows, newRow("flow events", c.name+", each writes an event", "ns", f.every).beside("events off", f.few, goal{}))
		}
	}
	return rows, nil
}

// measure adds the figures of some rounds. Every other turn begins with events.
func (e *eventBench) measure(c benchCase, rounds int, f *eventFigures) error {
	for _, b := range []*bench{e.off, e.limited, e.every} {
		if err := errors.Join(b.prepare(c), b.visit(b.path.Program(model.Egress), c)); err != nil {
			return err
		}
		if _, err := b.drain(); err != nil {
			return err
		}
	}
	for n := range rounds {
		for turn := range eventTurns {
			order := []eventRun{{e.off, e.off.repeat / eventTurns, &f.off}, {e.limited, e.limited.repeat / eventTurns, &f.limited}}
			if turn%2 == 1 {
				slices.Reverse(order)
			}
			if err := e.run(c, order); err != nil {
				return err
			}
		}
		if !eachWrites(c) {
			continue
		}
		order := []eventRun{{e.off, written, &f.few}, {e.every, written, &f.every}}
		if n%2 == 1 {
			slices.Reverse(order)
		}
		if err := e.run(c, order); err != nil {
			return err
		}
	}
	return nil
}

// eventRun is one measurement: the programs, the number of packets, and the figure that it adds to.
type eventRun struct {
	of   *bench
	runs int
	to   *figure
}

func (e *eventBench) run(c benchCase, order []eventRun) error {
	for _, r := range order {
		ns, events, err := r.of.cost(c, r.runs)
		if err != nil {
			return err
		}
		if r.of == e.every && events < written {
			return fmt.Errorf("%d packets wrote %d events", written, events)
		}
		*r.to = append(*r.to, ns)
	}
	return nil
}

// eachWrites reports whether each packet of a case can write an event. The flows that fill a flow table use up every limit.
func eachWrites(c benchCase) bool { return c.opens && !c.passes }

// cost returns the cost of one packet and the number of events, and empties the ring.
func (b *bench) cost(c benchCase, runs int) (ns float64, events int, err error) {
	repeat := b.repeat
	b.repeat = runs
	defer func() { b.repeat = repeat }()
	frame := b.frame(c)
	nothing, around, err := b.overhead(frame)
	if err != nil {
		return 0, 0, err
	}
	if ns, err = b.through(b.path.Program(model.Egress), frame, c.passes); err != nil {
		return 0, 0, err
	}
	events, err = b.drain()
	return ns - around + nothing, events, err
}

// drain reads the events in the ring, and returns their number.
func (b *bench) drain() (events int, err error) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	err = b.path.ReadEvents(ended, func(records [][]byte) { events += len(records) })
	return events, err
}
