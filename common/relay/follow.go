// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/relay"
	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/relay/redact"
)

const (
	// hold is how long a flow waits for older flows of other nodes. Agents read events five times a second.
	hold = 700 * time.Millisecond
	// maxWaiting bounds the flows that wait for a client.
	maxWaiting = 16384
	// maxCollect is how long kept flows are collected at most: one node that goes on sending old flows delays no others.
	maxCollect = 3 * time.Second
)

func stamp(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t) }

// follow sends kept flows, then new ones of all nodes, in order of time.
func (r *Relay) follow(ctx context.Context, request *observer.GetFlowsRequest, view *redact.View,
	stream grpc.ServerStreamingServer[observer.GetFlowsResponse], all []answer) error {
	ctx, cancel := context.WithCancel(ctx)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	if u := request.GetUntil(); u != nil {
		var end context.CancelFunc
		ctx, end = context.WithDeadline(ctx, u.AsTime().Add(hold))
		defer end()
	}
	f := &follower{pool: r.pool, view: view, request: view.Request(),
		in: make(chan *observer.GetFlowsResponse, 256), readers: &readers, known: make(map[string]known)}
	for _, a := range all {
		f.start(ctx, a.node, a.err == nil)
	}
	begin := time.Now()
	m, last := newMerger(hold, maxWaiting), &newest{limit: int(min(request.GetNumber(), maxLast))}
	// Until the agents have sent their kept flows, only the newest ones of all nodes are selected, and new flows wait.
	collecting, lastKept := last.limit > 0 && request.GetSince() == nil, begin
	release := func(now time.Time) error {
		var due []*observer.GetFlowsResponse
		if collecting && (now.Sub(lastKept) >= hold || now.Sub(begin) >= maxCollect || m.full()) {
			collecting, due = false, last.all()
		}
		if !collecting {
			due = append(due, m.due(now)...)
		}
		return sendAll(stream, due)
	}
	tick := time.NewTicker(hold / 7)
	defer tick.Stop()
	for next := begin.Add(retryEvery); ; {
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) && stream.Context().Err() == nil {
				return sendAll(stream, append(last.all(), m.all()...)) // until has passed
			}
			return stream.Context().Err()
		case a := <-f.in:
			switch {
			case a.GetFlow() == nil:
				if err := stream.Send(a); err != nil {
					return err
				}
			case collecting && !a.GetTime().AsTime().After(begin):
				last.add(a)
				lastKept = time.Now()
			default:
				now := time.Now()
				if m.add(a, now); m.full() {
					if err := release(now); err != nil {
						return err
					}
				}
			}
			continue
		case now := <-tick.C:
			if now.After(next) {
				next = now.Add(retryEvery)
				f.refresh(ctx)
			}
			if err := release(now); err != nil {
				return err
			}
		}
	}
}

func sendAll(stream grpc.ServerStreamingServer[observer.GetFlowsResponse], list []*observer.GetFlowsResponse) error {
	for _, a := range list {
		if err := stream.Send(a); err != nil {
			return err
		}
	}
	return nil
}

// follower reads the streams of all nodes for one client.
type follower struct {
	pool *Pool
	view *redact.View
	// request is the request that agents get.
	request *observer.GetFlowsRequest
	in      chan *observer.GetFlowsResponse
	readers *sync.WaitGroup
	known   map[string]known
}

// known is a node whose stream a follower reads.
type known struct {
	node   *node
	cancel context.CancelFunc
}

func (f *follower) start(ctx context.Context, n *node, connected bool) {
	ctx, cancel := context.WithCancel(ctx)
	f.known[n.name] = known{n, cancel}
	f.readers.Go(func() { f.read(ctx, n, connected) })
}

// refresh follows changes of the nodes.
func (f *follower) refresh(ctx context.Context) {
	now := make(map[string]bool)
	for _, n := range f.pool.list() {
		now[n.name] = true
		if k, ok := f.known[n.name]; ok {
			if k.node == n {
				continue
			}
			k.cancel() // the node has another address
		}
		f.start(ctx, n, false)
	}
	for name, k := range f.known {
		if !now[name] {
			k.cancel()
			delete(f.known, name)
			f.readers.Go(func() { f.send(ctx, change(relay.NodeState_NODE_GONE, "", name)) })
		}
	}
}

// send hands over an answer, and reports whether the client is still there.
func (f *follower) send(ctx context.Context, a *observer.GetFlowsResponse) bool {
	select {
	case f.in <- a:
		return true
	case <-ctx.Done():
		return false
	}
}

// read follows a node. After a failure it connects again, and continues after the last answer. An agent that has restarted
// continues with the flow after the last one if it still has it. connected is what the client knows.
func (f *follower) read(ctx context.Context, n *node, connected bool) {
	request := f.request
	var after hubble.Position
	for {
		if _, err := n.status(ctx); err == nil {
			if !connected && !f.send(ctx, change(relay.NodeState_NODE_CONNECTED, "", n.name)) {
				return
			}
			connected = true
			began := time.Now()
			last, err := f.copy(ctx, n, request, &after)
			if last.IsZero() && request == f.request && request.GetSince() == nil {
				last = began // the kept flows were none, or not wanted
			}
			if !last.IsZero() {
				request = withSince(f.request, last.Add(1))
			}
			if u := f.request.GetUntil(); u != nil && errors.Is(err, io.EOF) {
				return
			}
			if ctx.Err() != nil || !f.send(ctx, change(relay.NodeState_NODE_UNAVAILABLE, reason(err), n.name)) {
				return
			}
			connected = false
		} else if connected && ctx.Err() == nil {
			if !f.send(ctx, change(relay.NodeState_NODE_UNAVAILABLE, reason(err), n.name)) {
				return
			}
			connected = false
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryEvery):
		}
	}
}

// copy hands over what a node sends until the stream ends. It returns the time of the last flow.
func (f *follower) copy(ctx context.Context, n *node, request *observer.GetFlowsRequest, after *hubble.Position) (last time.Time, err error) {
	stream, err := resume(ctx, n, request, f.view, after)
	for err == nil {
		var a *observer.GetFlowsResponse
		if a, err = stream.Recv(); err != nil {
			break
		}
		if t := earlier(a.GetTime().AsTime(), time.Now()); a.GetFlow() != nil && t.After(last) { // its clock may be corrected
			last = t
		}
		if !f.send(ctx, a) {
			return last, ctx.Err()
		}
	}
	return last, err
}
