// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"sort"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
)

// Event is a flow, or a report of lost ones. Exactly one of Flow and Lost is set. It is immutable.
type Event struct {
	Time time.Time
	Flow *Kept
	Lost *flow.LostEvent
	// position is the number of flows up to this event, with lost ones. Ring.Add sets it.
	position uint64
}

// weight returns the number of flows for which an event stands.
func (e *Event) weight() uint64 {
	if e.Lost != nil {
		return e.Lost.GetNumEventsLost()
	}
	return 1
}

// Ring keeps the last events. It is safe for concurrent use. A reader costs nothing until it reads: it holds a
// Cursor. If the Ring has overwritten the next event of a reader, the reader learns how many flows it missed.
type Ring struct {
	mutex sync.Mutex
	slots []slot
	end   Cursor // after the newest event
	flows uint64 // number of flows so far
	wake  chan struct{}
	ready chan struct{} // is closed
}

// slot holds an event and the Cursor before it.
type slot struct {
	event Event
	at    Cursor
}

// Cursor is a position between two events. The zero value is that before the first event.
type Cursor struct {
	// event is the number of events before it, flows that of the flows for which they stand.
	event, flows uint64
}

// NewRing returns an empty Ring of a size of 1 or more.
func NewRing(size int) *Ring {
	r := &Ring{slots: make([]slot, size), wake: make(chan struct{}), ready: make(chan struct{})}
	close(r.ready)
	return r
}

// Add appends events and wakes the readers.
func (r *Ring) Add(list ...Event) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, e := range list {
		e.position = r.end.flows + e.weight()
		r.slots[r.end.event%uint64(len(r.slots))] = slot{e, r.end}
		r.forget()
		r.end.event++
		r.end.flows += e.weight()
		if e.Flow != nil {
			r.flows++
		}
	}
	close(r.wake)
	r.wake = make(chan struct{})
}

// recent is the number of newest events whose messages the Ring keeps once a client has read them: those of the last
// batches, which all clients that follow read.
const recent = 2 * batch

// forget releases the message of the event that is no longer recent.
func (r *Ring) forget() {
	if r.end.event < recent || recent >= len(r.slots) {
		return
	}
	if k := r.slots[(r.end.event-recent)%uint64(len(r.slots))].event.Flow; k != nil {
		k.Forget()
	}
}

// Read returns up to limit events after a Cursor, the Cursor after them, and how many flows were overwritten before
// them. The channel is closed when it is time to read again: at once if there were events.
func (r *Ring) Read(from Cursor, limit int) (list []Event, next Cursor, lost uint64, more <-chan struct{}) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if oldest := r.oldest(); from.event < oldest.event {
		lost, from = oldest.flows-from.flows, oldest
	}
	n := min(r.end.event-from.event, uint64(limit))
	if n == 0 {
		return nil, from, lost, r.wake
	}
	list = make([]Event, n)
	for i := range n {
		s := &r.slots[(from.event+i)%uint64(len(r.slots))]
		list[i] = s.event
		next = Cursor{s.at.event + 1, s.at.flows + s.event.weight()}
	}
	return list, next, lost, r.ready
}

// After returns the Cursor of the first event after a position. If it is overwritten, Read reports all flows after the
// position that are.
func (r *Ring) After(position uint64) Cursor {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	oldest := r.oldest()
	if position < oldest.flows {
		return Cursor{oldest.event - 1, position}
	}
	kept := int(r.end.event - oldest.event)
	at := func(i int) Cursor { return r.slots[(oldest.event+uint64(i))%uint64(len(r.slots))].at }
	if i := sort.Search(kept, func(i int) bool { return at(i).flows >= position }); i < kept {
		return at(i)
	}
	return r.end
}

// oldest returns the Cursor before the oldest kept event.
func (r *Ring) oldest() Cursor {
	if r.end.event < uint64(len(r.slots)) {
		return Cursor{}
	}
	return r.slots[r.end.event%uint64(len(r.slots))].at
}

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
	list, _, _, _ := r.Read(Cursor{}, len(r.slots))
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
		for _, end := range []*flow.Endpoint{e.Flow.local, e.Flow.remote} {
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
