// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
)

// Event is a flow, or a report of lost ones. Exactly one of Flow and Lost is set. It is immutable.
type Event struct {
	Time time.Time
	Flow *flow.Flow
	Lost *flow.LostEvent
}

// Ring keeps the last events. It is safe for concurrent use. A reader costs nothing until it reads: it holds
// the number of its next event. If the Ring has overwritten that event, the reader learns how many it missed.
type Ring struct {
	mutex sync.Mutex
	slots []Event
	next  uint64 // number of events so far
	flows uint64 // number of flows so far
	wake  chan struct{}
	ready chan struct{} // is closed
}

// NewRing returns an empty Ring of a size of 1 or more.
func NewRing(size int) *Ring {
	r := &Ring{slots: make([]Event, size), wake: make(chan struct{}), ready: make(chan struct{})}
	close(r.ready)
	return r
}

// Add appends events and wakes the readers.
func (r *Ring) Add(list ...Event) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, e := range list {
		r.slots[r.next%uint64(len(r.slots))] = e
		r.next++
		if e.Flow != nil {
			r.flows++
		}
	}
	close(r.wake)
	r.wake = make(chan struct{})
}

// Read returns up to limit events from number from on, the number after the last one, and how many events were
// overwritten before the first. The channel is closed when it is time to read again: at once if there were events.
func (r *Ring) Read(from uint64, limit int) (list []Event, next, lost uint64, more <-chan struct{}) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if oldest := r.oldest(); from < oldest {
		lost, from = oldest-from, oldest
	}
	n := min(r.next-from, uint64(limit))
	if n == 0 {
		return nil, from, lost, r.wake
	}
	list = make([]Event, n)
	for i := range n {
		list[i] = r.slots[(from+i)%uint64(len(r.slots))]
	}
	return list, from + n, lost, r.ready
}

func (r *Ring) oldest() uint64 { return r.next - min(r.next, uint64(len(r.slots))) }

// Stats are facts about the content of a Ring.
type Stats struct {
	// Kept and Seen count flows; Size is the most that can be kept.
	Kept, Size, Seen uint64
	// Rate is the number of flows per second during the last minute.
	Rate float64
	// Namespaces are those of pods of kept flows.
	Namespaces map[string]bool
}

// Stats returns facts about the content at a time.
func (r *Ring) Stats(now time.Time) Stats {
	list, _, _, _ := r.Read(0, len(r.slots))
	s := Stats{Size: uint64(len(r.slots)), Namespaces: make(map[string]bool)}
	r.mutex.Lock()
	s.Seen = r.flows
	r.mutex.Unlock()
	recent, since := 0, now.Add(-time.Minute)
	for i, e := range list {
		if e.Flow == nil {
			continue
		}
		s.Kept++
		for _, end := range []*flow.Endpoint{e.Flow.GetSource(), e.Flow.GetDestination()} {
			if end.GetNamespace() != "" {
				s.Namespaces[end.GetNamespace()] = true
			}
		}
		if !e.Time.Before(since) {
			if recent++; i == 0 && len(list) == len(r.slots) {
				since = e.Time // the Ring holds less than a minute
			}
		}
	}
	if d := now.Sub(since).Seconds(); d > 0 {
		s.Rate = float64(recent) / d
	}
	return s
}
