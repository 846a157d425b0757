// SPDX-License-Identifier: Apache-2.0

package etw

import (
	"context"
	"sync/atomic"
	"time"
)

// Source delivers decoded events.
type Source interface {
	// Read calls f with new events, in order, until the context is done. Only one Read may run at a time. Events are
	// lost, and counted, while none runs or f is slow. An error means that nothing is delivered any more.
	Read(ctx context.Context, f func([]Event)) error
	// Lost returns the number of events that were lost so far. It is safe for concurrent use.
	Lost() uint64
}

const (
	// queueSize bounds the events that wait for the reader.
	queueSize = 4096
	// collect is how long events are collected for one call of the reader.
	collect = 100 * time.Millisecond
)

// Queue passes events from the goroutine that gets them to a reader. Put never blocks.
type Queue struct {
	events chan Event
	lost   atomic.Uint64
}

// NewQueue returns an empty Queue.
func NewQueue() *Queue { return &Queue{events: make(chan Event, queueSize)} }

// Put appends an event, or counts it as lost if the queue is full.
func (q *Queue) Put(e Event) {
	select {
	case q.events <- e:
	default:
		q.lost.Add(1)
	}
}

// Lost returns the number of events that did not fit.
func (q *Queue) Lost() uint64 { return q.lost.Load() }

// Drain calls f with batches of events until the context is done, and then with those that are left.
func (q *Queue) Drain(ctx context.Context, f func([]Event)) {
	var batch []Event
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case e := <-q.events:
			batch = append(batch[:0], e)
			timer := time.NewTimer(collect)
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
			timer.Stop()
			f(q.take(batch))
		}
	}
	if rest := q.take(batch[:0]); len(rest) > 0 {
		f(rest)
	}
}

// take appends the events that wait now.
func (q *Queue) take(batch []Event) []Event {
	for range queueSize {
		select {
		case e := <-q.events:
			batch = append(batch, e)
		default:
			return batch
		}
	}
	return batch
}
