// SPDX-License-Identifier: Apache-2.0

package readers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/test/cluster"
)

// Uneven are speeds of readers of which some are slow: how long each pauses after an event.
var Uneven = []time.Duration{0, 0, 50 * time.Microsecond, 0, 200 * time.Microsecond, 0, time.Millisecond, 2 * time.Millisecond}

const (
	// reported bounds the time until an agent has reported events that the data path did not deliver: it counts them every 5
	// seconds.
	reported = 7 * time.Second
	// patience bounds the time until slow readers have caught up.
	patience = 90 * time.Second
	poll     = 100 * time.Millisecond
)

// Group are readers of one node.
type Group struct {
	node    *cluster.Node
	Readers []*Reader
	// stalling are those that Stall stops.
	stalling []*Reader
}

// Start starts readers of both kinds. Close ends them. Those of a kind have these pauses, in turn; without pauses all are
// fast. The first one of a kind stalls when Stall is called.
func Start(ctx context.Context, n *cluster.Node, hubble, inspect int, pauses []time.Duration) (*Group, error) {
	g := &Group{node: n}
	if len(pauses) == 0 {
		pauses = []time.Duration{0}
	}
	for kind, count := range map[string]int{"hubble": hubble, "inspect": inspect} {
		start := Hubble
		if kind == "inspect" {
			start = Inspect
		}
		for i := range count {
			pause := pauses[i%len(pauses)]
			name := fmt.Sprintf("%s %d, pause %s", kind, i+1, pause)
			if i == 0 && count > 1 {
				name = fmt.Sprintf("%s %d, stalls", kind, i+1)
			}
			r, err := start(ctx, n, name, pause)
			if err != nil {
				return nil, errors.Join(err, g.Close())
			}
			g.Readers = append(g.Readers, r)
			if i == 0 {
				g.stalling = append(g.stalling, r)
			}
		}
	}
	slices.SortFunc(g.Readers, func(a, b *Reader) int { return slices.Compare([]byte(a.Name), []byte(b.Name)) })
	return g, nil
}

// Close ends the readers.
func (g *Group) Close() error {
	var errs []error
	for _, r := range g.Readers {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// Stall stops the first reader of each kind, until Resume.
func (g *Group) Stall() {
	for _, r := range g.stalling {
		r.Stall()
	}
}

// Resume ends Stall.
func (g *Group) Resume() {
	for _, r := range g.stalling {
		r.Resume()
	}
}

// Begin returns when every reader follows: poke causes an event until each of them has received one.
func (g *Group) Begin(ctx context.Context, poke func() error) error {
	for deadline := time.Now().Add(patience); ; {
		if err := poke(); err != nil {
			return err
		}
		all, err := g.counts()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(all, func(c Counts) bool { return c.Received == 0 }) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("some readers receive nothing: %+v", all)
		}
		if err := wait(ctx, 2*poll); err != nil {
			return err
		}
	}
}

// Check compares what every reader got, and the counters of events, with what the programs decided. d is the difference
// of two quiet Accounts.
func (g *Group) Check(d Account) error {
	var errs []error
	e := d.Emitted
	if e.Events() != e.Decided {
		errs = append(errs, fmt.Errorf("the programs decided %d packets, and there were %d events: %+v", e.Decided, e.Events(), e))
	}
	for i, r := range g.Readers {
		c := d.Counts[i]
		if c.Sum() != e.Decided {
			errs = append(errs, fmt.Errorf("reader %s knows of %d events of %d: %+v", r.Name, c.Sum(), e.Decided, c))
		}
		// On a busy machine the queue of the server may lose so much that the reader's own buffer is never full.
		if slices.Contains(g.stalling, r) && c.Slow+c.Queue == 0 {
			errs = append(errs, fmt.Errorf("reader %s stalled and missed nothing: %+v", r.Name, c))
		}
	}
	return errors.Join(errs...)
}

// Account is the state of all counters at a time.
type Account struct {
	Emitted Emitted
	Counts  []Counts // by reader
}

// Quiet waits until nothing changes, long enough for every report to arrive, and returns the counters. That time begins when
// the agent has read the counters of its programs after the last change.
func (g *Group) Quiet(ctx context.Context) (Account, error) {
	var last Account
	began := time.Now()
	changed, outdated := began, began // when the counters were last so
	for deadline := began.Add(patience); ; {
		now, at, err := g.read()
		if err != nil {
			return now, err
		}
		if now.Emitted != last.Emitted || !slices.Equal(now.Counts, last.Counts) {
			last, changed = now, time.Now()
		}
		if at.Before(changed) {
			outdated = time.Now()
		}
		if time.Since(outdated) > reported {
			return now, nil
		}
		if time.Now().After(deadline) {
			return now, fmt.Errorf("the counters are not quiet after %s: they changed at %s, the agent has read them at %s: %+v", patience, changed, at, now)
		}
		if err := wait(ctx, poll); err != nil {
			return now, err
		}
	}
}

func (g *Group) read() (a Account, at time.Time, err error) {
	if a.Emitted, at, err = Count(g.node); err != nil {
		return a, at, err
	}
	a.Counts, err = g.counts()
	return a, at, err
}

func (g *Group) counts() (all []Counts, err error) {
	for _, r := range g.Readers {
		c, err := r.Counts()
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// Since returns the difference to an earlier Account of the same group.
func (a Account) Since(before Account) Account {
	d := Account{Emitted: a.Emitted.Since(before.Emitted)}
	for i, c := range a.Counts {
		b := before.Counts[i]
		d.Counts = append(d.Counts, Counts{c.Received - b.Received, c.Slow - b.Slow, c.Queue - b.Queue, c.Undelivered - b.Undelivered})
	}
	return d
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
