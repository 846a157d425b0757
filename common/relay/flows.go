// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/relay"
	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/relay/redact"
)

const (
	// maxLast bounds the flows of a request for the newest ones: the relay holds them in memory.
	maxLast = 65536
	// unlimited is the number of flows from which on a request has no limit.
	unlimited = 1 << 32
	// stall is how long a node may send nothing while others wait for its next kept flow.
	stall = 10 * time.Second
)

// GetFlows implements observer.ObserverServer.
func (r *Relay) GetFlows(request *observer.GetFlowsRequest, stream grpc.ServerStreamingServer[observer.GetFlowsResponse]) (failed error) {
	defer func() { r.metrics.ended("flows", failed) }()
	if _, err := hubble.NewQuery(request); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if n := request.GetNumber(); n > maxLast && n < unlimited {
		return status.Errorf(codes.InvalidArgument, "number %d: give at most %d", n, maxLast)
	}
	user, scope, err := r.scope(stream.Context(), request)
	if err != nil {
		return err
	}
	view, err := redact.NewView(scope, request, r.key)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	leave, err := r.enter(user.Name)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	go func() {
		select {
		case <-r.stopping:
			cancel(status.Error(codes.Unavailable, "the relay is stopping"))
		case <-ctx.Done():
		}
	}()
	go r.guard(ctx, cancel, request, scope)
	err = r.flows(ctx, request, view, shown{stream, view, r.metrics})
	if cause, ok := status.FromError(context.Cause(ctx)); ok && cause.Code() != codes.OK {
		return cause.Err()
	}
	return err
}

// flows sends the states of nodes and the flows of a request.
func (r *Relay) flows(ctx context.Context, request *observer.GetFlowsRequest, view *redact.View,
	stream grpc.ServerStreamingServer[observer.GetFlowsResponse]) error {
	all := r.statuses(ctx)
	connected, err := sendStates(stream.Send, all)
	switch {
	case err != nil:
		return err
	case request.GetFollow():
		return r.follow(ctx, request, view, stream, all)
	}
	return r.past(ctx, request, view, stream, connected)
}

// source is the stream of kept flows of a node.
type source struct {
	node *node
	// answers is closed at the end; failed is then the error, if there was one.
	answers chan *observer.GetFlowsResponse
	failed  error
	head    *observer.GetFlowsResponse
	cancel  context.CancelFunc
}

// open starts to read kept flows of a node.
func open(ctx context.Context, n *node, view *redact.View) *source {
	s := &source{node: n, answers: make(chan *observer.GetFlowsResponse, 16)}
	ctx, s.cancel = context.WithCancel(ctx)
	go func() {
		defer close(s.answers)
		stream, err := read(ctx, n, view.Request(), view)
		for err == nil {
			var m *observer.GetFlowsResponse
			if m, err = stream.Recv(); err == nil {
				select {
				case s.answers <- m:
				case <-ctx.Done():
				}
			}
		}
		if !errors.Is(err, io.EOF) {
			s.failed = err
		}
	}()
	return s
}

// advance reads the next flow of a node into head, nil at the end. It sends answers that are not flows.
func (s *source) advance(ctx context.Context, send func(*observer.GetFlowsResponse) error) error {
	s.head = nil
	timer := time.NewTimer(stall)
	defer timer.Stop()
	for {
		select {
		case m, ok := <-s.answers:
			switch {
			case !ok && s.failed != nil && ctx.Err() == nil:
				return send(change(relay.NodeState_NODE_UNAVAILABLE, reason(s.failed), s.node.name))
			case !ok:
				return nil
			case m.GetFlow() != nil:
				s.head = m
				return nil
			}
			if err := send(m); err != nil {
				return err
			}
		case <-timer.C:
			s.cancel()
			return send(change(relay.NodeState_NODE_UNAVAILABLE, "the node sent nothing for "+stall.String(), s.node.name))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// past merges the kept flows of nodes. It holds one flow of each node, and the newest ones if they are requested.
func (r *Relay) past(ctx context.Context, request *observer.GetFlowsRequest, view *redact.View,
	stream grpc.ServerStreamingServer[observer.GetFlowsResponse], nodes []*node) error {
	var sources []*source
	for _, n := range nodes {
		s := open(ctx, n, view)
		defer s.cancel()
		sources = append(sources, s)
	}
	for _, s := range sources {
		if err := s.advance(ctx, stream.Send); err != nil {
			return err
		}
	}
	number := request.GetNumber()
	if number >= unlimited {
		number = 0
	}
	last := &newest{limit: int(number)}
	newestOnly := number > 0 && !request.GetFirst() && request.GetSince() == nil
	for sent := uint64(0); ; {
		s := oldest(sources)
		if s == nil || !newestOnly && number > 0 && sent == number {
			break
		}
		if newestOnly {
			last.add(s.head)
		} else if err := stream.Send(s.head); err != nil {
			return err
		}
		sent++
		if err := s.advance(ctx, stream.Send); err != nil {
			return err
		}
	}
	return sendAll(stream, last.all())
}

// oldest returns the source whose next flow is the oldest one; nil if all have ended.
func oldest(sources []*source) (first *source) {
	for _, s := range sources {
		if s.head != nil && (first == nil || s.head.GetTime().AsTime().Before(first.head.GetTime().AsTime())) {
			first = s
		}
	}
	return first
}

// withSince returns a copy of a request for flows from a time on.
func withSince(request *observer.GetFlowsRequest, t time.Time) *observer.GetFlowsRequest {
	next := proto.CloneOf(request)
	next.Since, next.Number = stamp(t), 0
	return next
}
