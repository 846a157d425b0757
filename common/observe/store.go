// SPDX-License-Identifier: Apache-2.0

package observe

import (
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
	// maxReaders bounds the concurrent followers. queue bounds the flows that each may lag behind before it
	// misses some.
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
	kept    []*Flow // a ring of Keep flows
	next    int     // index of the oldest flow, once the ring is full
	readers map[*Reader]bool
	stopped bool
	seen    [Observed + 1]uint64 // by outcome
	missed  uint64               // by followers that were too slow
	// incomplete says which flows the data path does not report.
	incomplete string
	// owners belongs to the snapshot resolved, as of resolvedAt.
	owners     model.Owners
	resolved   *model.Snapshot
	resolvedAt time.Time
}

// Delivery is a flow for a follower.
type Delivery struct {
	Flow *Flow
	// Missed is the number of flows before this one that the follower was too slow for.
	Missed uint64
}

// Reader is one follower. Its holder receives from Flows until it calls Close.
type Reader struct {
	// Flows is closed when the Store stops.
	Flows <-chan Delivery

	store  *Store
	flows  chan Delivery
	filter Filter
	missed uint64
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
	switch {
	case s.cfg.Keep == 0:
	case len(s.kept) < s.cfg.Keep:
		s.kept = append(s.kept, f)
	default:
		s.kept[s.next] = f
		s.next = (s.next + 1) % len(s.kept)
	}
}

// offer sends a flow to a follower whose queue has room. It returns the number of flows that the follower
// missed: 0 or 1.
func (r *Reader) offer(f *Flow) uint64 {
	select {
	case r.flows <- Delivery{f, r.missed}:
		r.missed = 0
		return 0
	default:
		r.missed++
		return 1
	}
}

// Last returns up to n of the last flows that the filter selects, oldest first.
func (s *Store) Last(n int, filter Filter) []*Flow {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.last(n, filter)
}

func (s *Store) last(n int, filter Filter) (found []*Flow) {
	for i := range s.kept {
		if f := s.kept[(s.next+i)%len(s.kept)]; filter.Matches(f) {
			found = append(found, f)
		}
	}
	return found[max(0, len(found)-n):]
}

// Follow is Last, and returns a Reader of later flows, without a gap in between. The caller must close the
// Reader. The error is ErrReaders.
func (s *Store) Follow(n int, filter Filter) ([]*Flow, *Reader, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if len(s.readers) == maxReaders || s.stopped {
		return nil, nil, ErrReaders
	}
	flows := make(chan Delivery, queue)
	r := &Reader{Flows: flows, store: s, flows: flows, filter: filter}
	s.readers[r] = true
	return s.last(n, filter), r, nil
}

// ErrReaders is the error of Follow while the Store has maxReaders followers, or after Stop.
var ErrReaders = fmt.Errorf("%d clients already follow the flows of this node: end one of them", maxReaders)

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
		close(r.flows)
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
