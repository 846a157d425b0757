// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
)

// Config configures a Store.
type Config struct {
	// Keep is the number of flows that the Store keeps for later queries.
	Keep int
	// LogDenied logs denied and dropped packets.
	LogDenied bool
}

const (
	// maxReaders bounds the concurrent followers. queue bounds the flows that wait for each; it misses
	// further ones.
	maxReaders = 16
	queue      = 1024
	// ownersFor is how long resolved names of addresses may be out of date: resolving them walks all pods
	// of the cluster.
	ownersFor = time.Second
)

// Store keeps the last flows and sends new ones to followers. It is safe for concurrent use. A slow follower
// misses flows and delays nothing.
type Store struct {
	cfg Config
	log *slog.Logger
	// latest returns the newest snapshot, or nil.
	latest func() *model.Snapshot

	mutex   sync.Mutex
	kept    []keptFlow // a ring of Keep flows
	next    int        // index of the oldest flow, once the ring is full
	readers map[*Reader]bool
	stopped bool
	seen    [Observed + 1]uint64 // by outcome
	missed  uint64               // by followers that were too slow
	// undelivered is the number of flows that the data path did not deliver.
	undelivered uint64
	// incomplete says which flows the data path does not report.
	incomplete string
	// owners belongs to the snapshot resolved, as of resolvedAt.
	owners     model.Owners
	resolved   *model.Snapshot
	resolvedAt time.Time
}

// keptFlow is a flow, with the number of flows that were not delivered before it.
type keptFlow struct {
	*Flow
	before uint64
}

// Delivery is a flow for a follower, or the number of flows that it does not get.
type Delivery struct {
	// Flow is nil if the Delivery has numbers only, which come before it.
	Flow *Flow
	// Missed is the number of selected flows, at this place, that the follower was too slow for.
	Missed uint64
	// Undelivered is the number of flows, of any pod, that the data path did not deliver to the Store. They were
	// not seen, so no filter applies.
	Undelivered uint64
}

// Reader is one follower. Its holder calls Next until it calls Close.
type Reader struct {
	store  *Store
	filter Filter
	// ready has a token if Next has something to return.
	ready chan struct{}
	// waiting are at most queue deliveries. missed and undelivered count what came after them. The mutex of the Store
	// guards them.
	waiting             []Delivery
	missed, undelivered uint64
}

// NewStore returns an empty Store. It resolves addresses by the snapshot that latest returns, which may be
// nil.
func NewStore(cfg Config, log *slog.Logger, latest func() *model.Snapshot) *Store {
	return &Store{cfg: cfg, log: log, latest: latest, readers: make(map[*Reader]bool)}
}

// Add stores events of the data path and sends them to followers.
func (s *Store) Add(list []model.FlowEvent) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for i := range list {
		f := s.named(list[i])
		s.seen[f.Outcome()]++
		s.keep(f)
		for r := range s.readers {
			if r.filter.Matches(f) {
				s.missed += r.offer(f)
			}
		}
		if s.cfg.LogDenied && f.Outcome() != Allowed {
			logDenied(s.log, f)
		}
	}
	for r := range s.readers { // once for all events
		if len(r.waiting) > 0 {
			r.wake()
		}
	}
}

// named resolves the remote address of an event to a pod or node.
func (s *Store) named(e model.FlowEvent) *Flow {
	if latest := s.latest(); latest != nil && latest != s.resolved && time.Since(s.resolvedAt) >= ownersFor {
		s.owners, s.resolved, s.resolvedAt = latest.Owners(), latest, time.Now()
	}
	f := &Flow{FlowEvent: e}
	remote := e.Remote()
	if p := s.owners.Pods[remote]; p != nil {
		f.Peer = p.PodID
	} else if n := s.owners.Nodes[remote]; n != nil {
		f.PeerNode = n.Name
	}
	return f
}

func (s *Store) keep(f *Flow) {
	k := keptFlow{f, s.undelivered}
	switch {
	case s.cfg.Keep == 0:
	case len(s.kept) < s.cfg.Keep:
		s.kept = append(s.kept, k)
	default:
		s.kept[s.next] = k
		s.next = (s.next + 1) % len(s.kept)
	}
}

// Undelivered reports flows that the data path did not deliver to all followers.
func (s *Store) Undelivered(n uint64) {
	if n == 0 {
		return
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.undelivered += n
	for r := range s.readers {
		r.undelivered += n
		r.wake()
	}
}

// offer adds a flow to the queue of a follower, if it has room. It returns the number of flows that the follower
// missed: 0 or 1.
func (r *Reader) offer(f *Flow) uint64 {
	if len(r.waiting) >= queue {
		r.missed++
		return 1
	}
	if r.undelivered > 0 {
		r.waiting = append(r.waiting, Delivery{Undelivered: r.undelivered})
		r.undelivered = 0
	}
	r.waiting = append(r.waiting, Delivery{Flow: f})
	return 0
}

// wake lets Next return.
func (r *Reader) wake() {
	select {
	case r.ready <- struct{}{}:
	default: // it has not returned since the last time
	}
}

// Next waits until there is something for the follower, and returns all of it in order. The numbers of flows that did
// not fit into the queue are at the end, so that the follower learns of them even if no flow comes any more. The
// error is ErrStopped, or that of the context.
func (r *Reader) Next(ctx context.Context) ([]Delivery, error) {
	for {
		list, stopped := r.take()
		switch {
		case len(list) > 0:
			return list, nil
		case stopped:
			return nil, ErrStopped
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-r.ready:
		}
	}
}

// take empties the queue. It reports whether the Store is stopped.
func (r *Reader) take() (list []Delivery, stopped bool) {
	r.store.mutex.Lock()
	defer r.store.mutex.Unlock()
	list, r.waiting = r.waiting, nil
	if r.missed > 0 || r.undelivered > 0 {
		list = append(list, Delivery{Missed: r.missed, Undelivered: r.undelivered})
		r.missed, r.undelivered = 0, 0
	}
	return list, r.store.stopped
}

// Last returns up to n of the last flows that the filter selects, oldest first, and the numbers of flows between and after
// them that were not delivered. With fewer than n flows these are all numbers since the oldest kept flow.
func (s *Store) Last(n int, filter Filter) []Delivery {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.last(n, filter)
}

func (s *Store) last(n int, filter Filter) (list []Delivery) {
	if n <= 0 {
		return nil
	}
	var found []keptFlow
	for i := range s.kept {
		if k := s.kept[(s.next+i)%len(s.kept)]; filter.Matches(k.Flow) {
			found = append(found, k)
		}
	}
	var counted uint64 // flows that were not delivered
	switch {
	case len(found) >= n:
		found = found[len(found)-n:]
		counted = found[0].before
	case len(s.kept) > 0 && len(s.kept) == s.cfg.Keep: // older flows were forgotten
		counted = s.kept[s.next].before
	}
	for _, k := range found {
		list = append(list, Delivery{Flow: k.Flow, Undelivered: k.before - counted})
		counted = k.before
	}
	if s.undelivered > counted {
		list = append(list, Delivery{Undelivered: s.undelivered - counted})
	}
	return list
}

// Follow is Last, and returns a Reader of later flows, without a gap in between. The caller must close the
// Reader. The error is ErrReaders.
func (s *Store) Follow(n int, filter Filter) ([]Delivery, *Reader, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if len(s.readers) == maxReaders || s.stopped {
		return nil, nil, ErrReaders
	}
	r := &Reader{store: s, filter: filter, ready: make(chan struct{}, 1)}
	s.readers[r] = true
	return s.last(n, filter), r, nil
}

// ErrReaders is the error of Follow while the Store has maxReaders followers, or after Stop.
var ErrReaders = fmt.Errorf("%d clients already follow the flows of this node: end one of them", maxReaders)

// ErrStopped is the error of Next after the last flow of a Store that was stopped.
var ErrStopped = errors.New("the agent is stopping")

// Close ends a follower.
func (r *Reader) Close() {
	r.store.mutex.Lock()
	defer r.store.mutex.Unlock()
	delete(r.store.readers, r)
}

// SetIncomplete says which flows the data path does not report, and why; empty if it reports all.
func (s *Store) SetIncomplete(why string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.incomplete = why
}

// Incomplete returns the text of SetIncomplete.
func (s *Store) Incomplete() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.incomplete
}

// Stop disconnects all followers. The Store accepts no more.
func (s *Store) Stop() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.stopped = true
	for r := range s.readers {
		r.wake()
		delete(s.readers, r)
	}
}

// Readers returns the number of followers.
func (s *Store) Readers() int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return len(s.readers)
}

// Totals returns the number of flows seen, by Outcome, and of those that followers missed.
func (s *Store) Totals() (seen [Observed + 1]uint64, missed uint64) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.seen, s.missed
}
