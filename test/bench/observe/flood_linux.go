// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/isthmus-net/isthmus/test/cluster/readers"
	"github.com/isthmus-net/isthmus/test/traffic"
)

const (
	// floodRate bounds the flood, in segments a second; floodTime its duration.
	floodRate = 50_000
	floodTime = time.Minute
	// perPort is the number of segments to one port. SYNs does not repeat a source port within it.
	perPort = 50_000
)

// measureFlood floods a pod with SYNs that policy denies, with 16 readers.
func (b *bench) measureFlood(ctx context.Context) (err error) {
	group, err := readers.Start(ctx, b.reports.node, 8, 8, readers.Uneven)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, group.Close()) }()
	syns := b.reports.syns
	if err := group.Begin(ctx, func() error { return syns.Send(closedPort) }); err != nil {
		return err
	}
	before, err := group.Quiet(ctx)
	if err != nil {
		return err
	}
	used, err := b.reports.node.CPUTime()
	if err != nil {
		return err
	}
	took, err := b.flood(ctx, group, syns)
	if err != nil {
		return err
	}
	usedNow, err := b.reports.node.CPUTime()
	if err != nil {
		return err
	}
	after, err := group.Quiet(ctx)
	if err != nil {
		return err
	}
	return b.putFlood(group, after.Since(before), took, usedNow-used)
}

// flood sends the segments while some readers stall. It returns how long that took.
func (b *bench) flood(ctx context.Context, group *readers.Group, syns *traffic.SYNs) (time.Duration, error) {
	group.Stall()
	defer group.Resume()
	began, first := time.Now(), syns.Sent()
	bounded, cancel := context.WithTimeout(ctx, floodTime)
	defer cancel()
	lasts := time.Duration(float64(b.options.flood) / floodRate * float64(time.Second))
	err := traffic.Pace(bounded, floodRate, lasts, func(n int) error {
		if bounded.Err() != nil {
			return bounded.Err()
		}
		return syns.Send(uint16(20_000 + n/perPort))
	})
	if err != nil && !errors.Is(bounded.Err(), context.DeadlineExceeded) {
		return 0, err
	}
	took := time.Since(began)
	return took, b.put("flood, segments", float64(syns.Sent()-first), "")
}

// putFlood prints what the readers got, and compares it with what the programs decided.
func (b *bench) putFlood(group *readers.Group, d readers.Account, took, used time.Duration) error {
	e := d.Emitted
	if e.Limited == 0 {
		return fmt.Errorf("the flood is too slow: no event is over the limit: %+v", e)
	}
	for _, f := range []figure{
		{Name: "flood, duration", Value: round(took.Seconds()), Unit: "s"},
		{Name: "flood, events", Value: float64(e.Decided)},
		{Name: "flood, events that the agent got", Value: float64(e.Seen)},
		{Name: "flood, events over the limit of a pod", Value: float64(e.Limited)},
		{Name: "flood, events not read from the kernel in time", Value: float64(e.Lost)},
		{Name: "flood, agent, CPU", Value: round(100 * used.Seconds() / took.Seconds()), Unit: "% of a core"},
	} {
		if err := b.write(f); err != nil {
			return err
		}
	}
	if err := b.putGoal("flood, events that the counters of events lack", distance(e.Events(), e.Decided), "", 0); err != nil {
		return err
	}
	for i, r := range group.Readers {
		c := d.Counts[i]
		if err := b.put("flood, reader "+r.Name+", received", float64(c.Received), ""); err != nil {
			return err
		}
		if err := b.putGoal("flood, reader "+r.Name+", events that it does not know of", distance(c.Sum(), e.Decided), "", 0); err != nil {
			return err
		}
	}
	return group.Check(d)
}

func distance(a, b uint64) float64 { return float64(max(a, b) - min(a, b)) }
