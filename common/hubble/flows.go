// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/relay"
)

// batch is the number of events that a stream takes from the ring at once. The others stay in the ring, where
// they cost no memory per client.
const batch = 256

// enter counts a new stream. The caller calls leave at its end.
func (s *Server) enter() (leave func(), err error) {
	select {
	case s.streams <- struct{}{}:
		return func() { <-s.streams }, nil
	default:
		return nil, status.Errorf(codes.ResourceExhausted, "%d streams are open already: end one of them", MaxStreams)
	}
}

// GetFlows implements observer.ObserverServer.
func (s *Server) GetFlows(r *observer.GetFlowsRequest, stream grpc.ServerStreamingServer[observer.GetFlowsResponse]) error {
	q, err := NewQuery(r)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	past, next := s.past(q)
	resumed, asked := resumption(stream.Context())
	if q.positions = asked && q.Follow; q.positions {
		if resumed.run == s.run() {
			past, next, q.Since = nil, s.ring.After(resumed.flows), time.Time{}
		}
		at := Position{s.run(), next.flows}
		if len(past) > 0 {
			at.flows = past[0].position - past[0].weight()
		}
		if err := stream.SendHeader(metadata.Pairs(positionHeader, at.String())); err != nil {
			return fmt.Errorf("send the position: %w", err)
		}
	}
	if why := s.unavailable.Load(); why != nil {
		if err := stream.Send(s.nodeError(*why)); err != nil {
			return err
		}
	}
	if err := s.send(stream, q, past); err != nil || !q.Follow {
		return err
	}
	return s.stream(stream, q, next)
}

// past returns the selected kept events, and the Cursor after the kept ones.
func (s *Server) past(q *Query) (list []Event, next Cursor) {
	kept, next, _, _ := s.ring.Read(Cursor{}, s.cfg.History)
	return q.past(kept), next
}

// nodeError reports that this node has no flows, or not all, and why.
func (s *Server) nodeError(why error) *observer.GetFlowsResponse {
	return &observer.GetFlowsResponse{NodeName: s.cfg.Node, Time: timestamppb.Now(), ResponseTypes: &observer.GetFlowsResponse_NodeStatus{
		NodeStatus: &relay.NodeStatusEvent{StateChange: relay.NodeState_NODE_ERROR, NodeNames: []string{s.cfg.Node}, Message: why.Error()}}}
}

// stream sends the selected events after a Cursor, until the client leaves or q.Until has passed.
func (s *Server) stream(stream grpc.ServerStreamingServer[observer.GetFlowsResponse], q *Query, next Cursor) error {
	ctx := stream.Context()
	if !q.Until.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, q.Until)
		defer cancel()
	}
	for {
		list, following, lost, more := s.ring.Read(next, batch)
		if lost > 0 {
			now := time.Now()
			missed := Event{Time: now, position: next.flows + lost,
				Lost: &flow.LostEvent{Source: flow.LostEventSource_HUBBLE_RING_BUFFER, NumEventsLost: lost, Last: timestamppb.New(now)}}
			if err := s.send(stream, q, []Event{missed}); err != nil {
				return err
			}
		}
		selected := list[:0]
		for _, e := range list {
			if q.matches(&e) {
				selected = append(selected, e)
			}
		}
		if err := s.send(stream, q, selected); err != nil {
			return err
		}
		next = following
		select {
		case <-s.stopping:
			return status.Error(codes.Unavailable, "the agent is stopping")
		case <-ctx.Done():
			return stream.Context().Err()
		case <-more:
		}
	}
}

func (s *Server) send(stream grpc.ServerStreamingServer[observer.GetFlowsResponse], q *Query, list []Event) error {
	for _, e := range list {
		m := &observer.GetFlowsResponse{NodeName: s.cfg.Node}
		if q.positions {
			m.IsthmusPosition = e.position
		}
		if e.Lost != nil {
			m.Time, m.ResponseTypes = timestamppb.New(e.Time), &observer.GetFlowsResponse_LostEvents{LostEvents: e.Lost}
		} else {
			f := e.Flow.Message()
			m.Time, m.ResponseTypes = f.GetTime(), &observer.GetFlowsResponse_Flow{Flow: q.Mask.Apply(f)}
		}
		if err := stream.Send(m); err != nil {
			return fmt.Errorf("send flows: %w", err)
		}
	}
	return nil
}

// GetAgentEvents implements observer.ObserverServer.
func (s *Server) GetAgentEvents(*observer.GetAgentEventsRequest, grpc.ServerStreamingServer[observer.GetAgentEventsResponse]) error {
	return status.Error(codes.Unimplemented, "Isthmus reports no events of agents: see its metrics and log")
}

// GetDebugEvents implements observer.ObserverServer.
func (s *Server) GetDebugEvents(*observer.GetDebugEventsRequest, grpc.ServerStreamingServer[observer.GetDebugEventsResponse]) error {
	return status.Error(codes.Unimplemented, "Isthmus reports no debug events: use isthmusctl")
}
