// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/cniapi"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// FlowsConfig says what is done with what the data path tells of single flows.
type FlowsConfig struct {
	// Off: nobody listens.
	Off bool
	// Keep is how many events are remembered for who asks.
	Keep int
	// LogDenied writes what was denied or dropped to the log.
	LogDenied bool
}

const (
	// flowReaders bounds those who follow at one time, flowQueue what each may be
	// behind before it misses events.
	flowReaders = 16
	flowQueue   = 1024
	// ownersFor is how long names of addresses may be out of date: resolving them
	// walks through all pods of the cluster.
	ownersFor = time.Second
	// watchPatience is how long the policies of the cluster are waited for, so that
	// events from before the start can be explained by them.
	watchPatience = 5 * time.Second
)

// flows remembers the last events and hands new ones to who follows. Its methods
// may be called from any goroutine; nobody who is slow holds it up.
type flows struct {
	cfg FlowsConfig
	log *slog.Logger
	// latest returns the newest snapshot, or nil.
	latest func() *model.Snapshot

	mutex   sync.Mutex
	kept    []*cniapi.FlowEvent // a ring of Keep events
	next    int                 // its oldest, once it is full
	readers map[*flowReader]bool
	stopped bool
	seen    map[string]uint64 // by verdict
	missed  uint64            // by readers that were too slow
	// owners are of the snapshot resolved, as of resolvedAt.
	owners     model.Owners
	resolved   *model.Snapshot
	resolvedAt time.Time
}

// flowReader is somebody who follows.
type flowReader struct {
	wants  func(*cniapi.FlowEvent) bool
	events chan *cniapi.WatchFlowsResponse // closed when the agent stops
	missed uint64
}

func newFlows(cfg FlowsConfig, log *slog.Logger, latest func() *model.Snapshot) *flows {
	f := &flows{cfg: cfg, log: log, latest: latest, readers: make(map[*flowReader]bool), seen: make(map[string]uint64)}
	for _, v := range flowVerdicts {
		f.seen[v] = 0
	}
	return f
}

// take hands over what the data path tells.
func (f *flows) take(list []model.FlowEvent) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for i := range list {
		e := describeFlow(&list[i])
		f.name(e, &list[i])
		f.seen[e.Verdict]++
		f.keep(e)
		for r := range f.readers {
			if r.wants(e) {
				f.missed += r.offer(e)
			}
		}
		if f.cfg.LogDenied && e.Verdict != verdictAllow {
			logFlow(f.log, e)
		}
	}
}

func (f *flows) keep(e *cniapi.FlowEvent) {
	switch {
	case f.cfg.Keep == 0:
	case len(f.kept) < f.cfg.Keep:
		f.kept = append(f.kept, e)
	default:
		f.kept[f.next] = e
		f.next = (f.next + 1) % len(f.kept)
	}
}

// offer gives an event to a reader if that has room, and returns how many events
// it missed by it.
func (r *flowReader) offer(e *cniapi.FlowEvent) uint64 {
	select {
	case r.events <- &cniapi.WatchFlowsResponse{Event: e, Missed: r.missed}:
		r.missed = 0
		return 0
	default:
		r.missed++
		return 1
	}
}

// name says who has the address at the other end.
func (f *flows) name(e *cniapi.FlowEvent, of *model.FlowEvent) {
	if s := f.latest(); s != nil && s != f.resolved && time.Since(f.resolvedAt) >= ownersFor {
		f.owners, f.resolved, f.resolvedAt = s.Owners(), s, time.Now()
	}
	remote := of.Remote()
	if p := f.owners.Pods[remote]; p != nil {
		e.PeerNamespace, e.PeerName = p.Namespace, p.Name
	} else if n := f.owners.Nodes[remote]; n != nil {
		e.PeerNode = n.Name
	}
}

// past returns the last events that are wanted, the oldest first; at most n.
func (f *flows) past(n int, wants func(*cniapi.FlowEvent) bool) (found []*cniapi.FlowEvent) {
	for i := range f.kept {
		if e := f.kept[(f.next+i)%len(f.kept)]; wants(e) {
			found = append(found, e)
		}
	}
	return found[max(0, len(found)-n):]
}

// follow returns the last events that are wanted and, if asked for, a reader of
// those that come, without one in between that is in neither. end is to be called
// with the reader.
func (f *flows) follow(last int, wants func(*cniapi.FlowEvent) bool, follow bool) ([]*cniapi.FlowEvent, *flowReader, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if !follow {
		return f.past(last, wants), nil, nil
	}
	if len(f.readers) == flowReaders || f.stopped {
		return nil, nil, errFlowReaders
	}
	r := &flowReader{wants: wants, events: make(chan *cniapi.WatchFlowsResponse, flowQueue)}
	f.readers[r] = true
	return f.past(last, wants), r, nil
}

var errFlowReaders = fmt.Errorf("%d others follow the flows of this node already: end one of them", flowReaders)

func (f *flows) end(r *flowReader) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	delete(f.readers, r)
}

// stop ends who follows.
func (f *flows) stop() {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.stopped = true
	for r := range f.readers {
		close(r.events)
		delete(f.readers, r)
	}
}

// totals returns the events that were seen, by verdict, and those that readers
// missed.
func (f *flows) totals() (seen map[string]uint64, missed uint64) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	seen = make(map[string]uint64, len(f.seen))
	for v, n := range f.seen {
		seen[v] = n
	}
	return seen, f.missed
}

// watching is the goroutine that listens to the data path.
type watching struct {
	opened time.Time
	stop   context.CancelFunc // nil until it runs
	done   chan struct{}
}

// watch begins to listen to the data path, if it tells of flows and they can be
// explained by now.
func (l *loop) watch() {
	w, ok := l.backend.(dataplane.Watcher)
	if !ok || l.cfg.Flows.Off || l.watching.stop != nil ||
		l.enforced.inForce == nil && time.Since(l.watching.opened) < watchPatience {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.watching.stop, l.watching.done = cancel, make(chan struct{})
	go func() {
		defer close(l.watching.done)
		for ctx.Err() == nil {
			if err := w.Watch(ctx, l.agent.flows.take); err != nil {
				l.log.Error("watch flows", "error", err, "again in", l.cfg.RetryMax)
			}
			select {
			case <-ctx.Done():
			case <-time.After(l.cfg.RetryMax):
			}
		}
	}()
}

// unwatch waits until nobody listens any more.
func (l *loop) unwatch() {
	if l.watching.stop != nil {
		l.watching.stop()
		<-l.watching.done
	}
}
