// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/observe"
)

const (
	// feedRetry is the interval of trying to get flows that are not available.
	feedRetry = time.Second
	// missedEvery is the interval of reading how many events the data path did not deliver.
	missedEvery = 5 * time.Second
)

// feed copies flows from the source into the ring until the context is done.
func (s *Server) feed(ctx context.Context) {
	for ctx.Err() == nil {
		store, err := s.cfg.Source()
		if err == nil {
			err = s.follow(ctx, store)
		}
		if err != nil {
			s.unavailable.Store(&err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(feedRetry):
		}
	}
}

// follow copies flows until the store stops.
func (s *Server) follow(ctx context.Context, store *observe.Store) error {
	s.reportMissed(ctx) // before the first flow: clients learn of every event that is missed from now on
	past, reader, err := store.Follow(s.cfg.History, observe.Filter{})
	if err != nil {
		return err
	}
	defer reader.Close()
	if why := store.Incomplete(); why != "" {
		err := errors.New(why)
		s.unavailable.Store(&err)
	} else {
		s.unavailable.Store(nil)
	}
	for _, f := range past {
		if f.Time.After(s.newest) { // not if the store was followed before
			s.add(f)
		}
	}
	counting, cancel := context.WithCancel(ctx)
	var counter sync.WaitGroup
	counter.Go(func() { s.countMissed(counting) })
	defer func() {
		cancel()
		counter.Wait()
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case d, ok := <-reader.Flows:
			if !ok {
				return errors.New("the agent is stopping")
			}
			if d.Missed > 0 {
				s.lost(flow.LostEventSource_OBSERVER_EVENTS_QUEUE, d.Missed, time.Now())
			}
			s.add(d.Flow)
		}
	}
}

func (s *Server) add(f *observe.Flow) {
	if f.Time.After(s.newest) {
		s.newest = f.Time
	}
	m := s.mapper.Map(f)
	s.ring.Add(Event{Time: f.Time, Flow: m})
	if s.cfg.Newest != nil {
		s.cfg.Newest.Set(f.Outcome(), observe.Identified{ID: m.GetUuid(), Time: f.Time})
	}
}

func (s *Server) lost(source flow.LostEventSource, n uint64, now time.Time) {
	s.ring.Add(Event{Time: now, Lost: &flow.LostEvent{Source: source, NumEventsLost: n, Last: timestamppb.New(now)}})
}

// countMissed reports missed events, as one report per interval.
func (s *Server) countMissed(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(missedEvery):
			s.reportMissed(ctx)
		}
	}
}

// reportMissed adds a report of the events that the data path did not deliver since the call before. The first call
// that reads the counter only remembers it.
func (s *Server) reportMissed(ctx context.Context) {
	if s.cfg.Missed == nil {
		return
	}
	n, err := s.cfg.Missed(ctx)
	if err != nil {
		return
	}
	if s.counted && n > s.missed {
		s.lost(flow.LostEventSource_PERF_EVENT_RING_BUFFER, n-s.missed, time.Now())
	}
	s.counted, s.missed = true, n
}
