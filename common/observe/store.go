// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// FlowsConfig configures what the agent does with flow events.
type FlowsConfig struct {
	// Off disables flow events: the agent does not read them.
	Off bool
	// Keep is the number of events that the agent keeps for later queries.
	Keep int
	// LogDenied logs denied and dropped packets.
	LogDenied bool
}

const (
	// flowReaders bounds the concurrent followers. flowQueue bounds the events that each may lag behind
	// before it misses some.
	flowReaders = 16
	flowQueue   = 1024
	// ownersFor is how long resolved names of addresses may be out of date: resolving them walks all pods
	// of the cluster.
	ownersFor = time.Second
	// watchPatience is how long the agent waits for the cluster's policies before it reads events. They
	// explain events from before the start.
	watchPatience = 5 * time.Second
)

// flows keeps the last events and sends new ones to followers. It is safe for concurrent use. A slow
// follower misses events and delays nothing.
type flows struct {
	cfg FlowsConfig
	log *slog.Logger
	// latest returns the newest snapshot, or nil.
	latest func() *model.Snapshot

	mutex   sync.Mutex
	kept    []*isthmusv1.FlowEvent // a ring of Keep events
	next    int                    // index of the oldest event, once the ring is full
	readers map[*flowReader]bool
	stopped bool
	seen    map[string]uint64 // by verdict
	missed  uint64            // by followers that were too slow
	// owners belongs to the snapshot resolved, as of resolvedAt.
	owners     model.Owners
	resolved   *model.Snapshot
	resolvedAt time.Time
}

// flowReader is one follower.
type flowReader struct {
	wants  func(*isthmusv1.FlowEvent) bool
	events chan *isthmusv1.WatchFlowsResponse // closed when the agent stops
	missed uint64
}

func newFlows(cfg FlowsConfig, log *slog.Logger, latest func() *model.Snapshot) *flows {
	f := &flows{cfg: cfg, log: log, latest: latest, readers: make(map[*flowReader]bool), seen: make(map[string]uint64)}
	for _, v := range flowVerdicts {
		f.seen[v] = 0
	}
	return f
}

// take stores events of the data path and sends them to followers.
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

func (f *flows) keep(e *isthmusv1.FlowEvent) {
	switch {
	case f.cfg.Keep == 0:
	case len(f.kept) < f.cfg.Keep:
		f.kept = append(f.kept, e)
	default:
		f.kept[f.next] = e
		f.next = (f.next + 1) % len(f.kept)
	}
}

// offer sends an event to a follower whose queue has room. It returns the number of events that the
// follower missed: 0 or 1.
func (r *flowReader) offer(e *isthmusv1.FlowEvent) uint64 {
	select {
	case r.events <- &isthmusv1.WatchFlowsResponse{Event: e, Missed: r.missed}:
		r.missed = 0
		return 0
	default:
		r.missed++
		return 1
	}
}

// name resolves the remote address to a pod or node.
func (f *flows) name(e *isthmusv1.FlowEvent, of *model.FlowEvent) {
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

// past returns up to n of the last events that match, oldest first.
func (f *flows) past(n int, wants func(*isthmusv1.FlowEvent) bool) (found []*isthmusv1.FlowEvent) {
	for i := range f.kept {
		if e := f.kept[(f.next+i)%len(f.kept)]; wants(e) {
			found = append(found, e)
		}
	}
	return found[max(0, len(found)-n):]
}

// follow returns the last events that match. With follow set it also returns a reader of later events,
// without a gap in between. The caller must call end with the reader.
func (f *flows) follow(last int, wants func(*isthmusv1.FlowEvent) bool, follow bool) ([]*isthmusv1.FlowEvent, *flowReader, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if !follow {
		return f.past(last, wants), nil, nil
	}
	if len(f.readers) == flowReaders || f.stopped {
		return nil, nil, errFlowReaders
	}
	r := &flowReader{wants: wants, events: make(chan *isthmusv1.WatchFlowsResponse, flowQueue)}
	f.readers[r] = true
	return f.past(last, wants), r, nil
}

var errFlowReaders = fmt.Errorf("%d clients already follow the flows of this node: end one of them", flowReaders)

func (f *flows) end(r *flowReader) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	delete(f.readers, r)
}

// stop disconnects all followers.
func (f *flows) stop() {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.stopped = true
	for r := range f.readers {
		close(r.events)
		delete(f.readers, r)
	}
}

// totals returns the number of events seen, by verdict, and of those that followers missed.
func (f *flows) totals() (seen map[string]uint64, missed uint64) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	seen = make(map[string]uint64, len(f.seen))
	for v, n := range f.seen {
		seen[v] = n
	}
	return seen, f.missed
}

// watching is the goroutine that reads flow events from the data path.
type watching struct {
	opened time.Time
	stop   context.CancelFunc // nil until it runs
	done   chan struct{}
}

// watch starts reading flow events, if the data path reports them and the policies that explain them are
// known.
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

// unwatch stops reading flow events and waits for the goroutine to end.
func (l *loop) unwatch() {
	if l.watching.stop != nil {
		l.watching.stop()
		<-l.watching.done
	}
}
