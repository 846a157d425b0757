// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/observe"
)

// feedRetry is the interval of trying to get flows that are not available.
const feedRetry = time.Second

// feed copies flows from the source into the ring until the context is done. It calls asked when the source has answered.
func (s *Server) feed(ctx context.Context, asked func()) {
	for ctx.Err() == nil {
		store, err := s.cfg.Source()
		if err == nil {
			err = s.follow(ctx, store, asked)
		}
		if err != nil {
			s.unavailable.Store(&err)
			asked()
		}
		select {
		case <-ctx.Done():
		case <-time.After(feedRetry):
		}
	}
}

// follow copies flows until the store stops.
func (s *Server) follow(ctx context.Context, store *observe.Store, asked func()) error {
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
	var kept []observe.Delivery
	for _, d := range past {
		if d.Flow != nil && d.Flow.Time.After(s.newest) { // not if the store was followed before
			kept = append(kept, observe.Delivery{Flow: d.Flow})
		}
	}
	s.deliver(kept)
	asked()
	for {
		list, err := reader.Next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		s.deliver(list)
	}
}

// deliver adds flows, and reports of those that did not come. Clients wake up once for all of them.
func (s *Server) deliver(list []observe.Delivery) {
	now := time.Now()
	events := make([]Event, 0, len(list)+1)
	var newest [observe.Observed + 1]*Kept
	for _, d := range list {
		if d.Undelivered > 0 {
			events = append(events, s.lost(flow.LostEventSource_PERF_EVENT_RING_BUFFER, d.Undelivered, now))
		}
		if d.Missed > 0 {
			events = append(events, s.lost(flow.LostEventSource_OBSERVER_EVENTS_QUEUE, d.Missed, now))
		}
		f := d.Flow
		if f == nil {
			continue
		}
		if f.Time.After(s.newest) {
			s.newest = f.Time
		}
		k := s.mapper.Keep(f)
		events = append(events, Event{Time: f.Time, Flow: k})
		newest[f.Outcome()] = k
	}
	s.ring.Add(events...)
	for o, k := range newest { // now that clients find them
		if k != nil && s.cfg.Newest != nil {
			s.cfg.Newest.Set(observe.Outcome(o), observe.Identified{ID: k.uuid(), Time: k.flow.Time})
		}
	}
}

// lost reports flows that were lost after the newest flow.
func (s *Server) lost(source flow.LostEventSource, n uint64, now time.Time) Event {
	l := &flow.LostEvent{Source: source, NumEventsLost: n, Last: timestamppb.New(now)}
	if s.newest.Before(now) && !s.newest.IsZero() {
		l.First = timestamppb.New(s.newest)
	}
	return Event{Time: now, Lost: l}
}
