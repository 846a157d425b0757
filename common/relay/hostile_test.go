// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/peer"
	"github.com/isthmus-net/isthmus/common/api/hubble/relay"
)

// scripted is an agent whose stream of flows is a function.
type scripted struct {
	observer.UnimplementedObserverServer
	flows func(observer.Observer_GetFlowsServer) error
	// requests gets each request, if it is not nil.
	requests chan<- *observer.GetFlowsRequest
}

func (scripted) ServerStatus(context.Context, *observer.ServerStatusRequest) (*observer.ServerStatusResponse, error) {
	return &observer.ServerStatusResponse{}, nil
}

func (s scripted) GetFlows(q *observer.GetFlowsRequest, stream observer.Observer_GetFlowsServer) error {
	if s.requests != nil {
		s.requests <- q
	}
	return s.flows(stream)
}

// serveFake serves what register registers, and returns the address.
func serveFake(t *testing.T, register func(*grpc.Server)) string {
	t.Helper()
	address := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	register(s)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return "unix://" + address
}

// dated returns a flow of a time and a pod.
func dated(t time.Time, pod string) *observer.GetFlowsResponse {
	f := &flow.Flow{Time: stamp(t), Source: &flow.Endpoint{Namespace: "shop", PodName: pod}}
	return &observer.GetFlowsResponse{Time: f.Time, NodeName: "n", ResponseTypes: &observer.GetFlowsResponse_Flow{Flow: f}}
}

// pods receives until a flow of a pod comes, and returns the pods of all flows. It fails after a time.
func pods(t *testing.T, c observer.ObserverClient, q *observer.GetFlowsRequest, until string, within time.Duration) (list []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	stream, err := c.GetFlows(ctx, q)
	for err == nil {
		var m *observer.GetFlowsResponse
		if m, err = stream.Recv(); err == nil && m.GetFlow() != nil {
			list = append(list, m.GetFlow().GetSource().GetPodName())
			if list[len(list)-1] == until {
				return list
			}
		}
	}
	t.Fatalf("%v, after %d flows, before one of %s", err, len(list), until)
	return nil
}

// TestFollowOldFlows checks that a node that goes on sending old flows does not keep a follower from its beginning.
func TestFollowOldFlows(t *testing.T) {
	start := time.Now()
	address := serveFake(t, func(s *grpc.Server) {
		observer.RegisterObserverServer(s, scripted{flows: func(stream observer.Observer_GetFlowsServer) error {
			err := stream.Send(dated(time.Now(), "new"))
			for err == nil {
				err = stream.Send(dated(start.Add(-time.Hour), "old"))
				select {
				case <-stream.Context().Done():
				case <-time.After(hold / 2):
				}
			}
			return err
		}})
	})
	c, _, _ := serve(t, map[string]string{"n": address})
	got := pods(t, c, &observer.GetFlowsRequest{Follow: true, Number: 3}, "new", maxCollect+3*time.Second)
	if want := []string{"old", "old", "old", "new"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestFollowFlood checks that new flows beyond maxWaiting do not wait for kept ones.
func TestFollowFlood(t *testing.T) {
	stop := make(chan struct{})
	address := serveFake(t, func(s *grpc.Server) {
		observer.RegisterObserverServer(s, scripted{flows: func(stream observer.Observer_GetFlowsServer) error {
			err := stream.Send(dated(time.Now(), "first"))
			for i := 0; err == nil && i < maxWaiting; i++ {
				err = stream.Send(dated(time.Now(), "flood"))
			}
			for err == nil {
				err = stream.Send(dated(time.Unix(1, 0), "old"))
				select {
				case <-stop:
					return nil
				case <-stream.Context().Done():
				case <-time.After(hold / 2):
				}
			}
			return err
		}})
	})
	defer close(stop)
	c, _, _ := serve(t, map[string]string{"n": address})
	pods(t, c, &observer.GetFlowsRequest{Follow: true, Number: 3}, "first", maxCollect-500*time.Millisecond)
}

// TestLargeAnswers checks that a relay does not hold large answers of an agent, and reports them as lost.
func TestLargeAnswers(t *testing.T) {
	address := serveFake(t, func(s *grpc.Server) {
		observer.RegisterObserverServer(s, scripted{flows: func(stream observer.Observer_GetFlowsServer) error {
			large := dated(time.Now(), "large")
			large.GetFlow().Source.Labels = []string{strings.Repeat("l", maxAnswer)}
			return errors.Join(stream.Send(dated(time.Now(), "before")), stream.Send(large), stream.Send(dated(time.Now(), "after")))
		}})
	})
	c, _, _ := serve(t, map[string]string{"n": address})
	stream, err := c.GetFlows(t.Context(), &observer.GetFlowsRequest{})
	var got []string
	for err == nil {
		var m *observer.GetFlowsResponse
		if m, err = stream.Recv(); err != nil {
			break
		}
		if l := m.GetLostEvents(); l != nil {
			got = append(got, fmt.Sprint("lost ", l.GetNumEventsLost(), " of ", m.GetNodeName()))
		} else if f := m.GetFlow(); f != nil {
			got = append(got, f.GetSource().GetPodName())
		}
	}
	slices.Sort(got) // lost events do not wait for flows
	if want := []string{"after", "before", "lost 1 of n"}; !errors.Is(err, io.EOF) || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// announcer is an agent whose list of nodes is a function.
type announcer struct {
	peer.UnimplementedPeerServer
	notify func(peer.Peer_NotifyServer) error
}

func (a announcer) Notify(_ *peer.NotifyRequest, stream peer.Peer_NotifyServer) error {
	return a.notify(stream)
}

// TestDiscoverHostile checks that an agent whose list of nodes never ends neither blinds the relay nor fills its memory.
func TestDiscoverHostile(t *testing.T) {
	pool := NewPool(nil, quietLog)
	t.Cleanup(pool.Close)
	follow := func(notify func(peer.Peer_NotifyServer) error) chan error {
		address := serveFake(t, func(s *grpc.Server) { peer.RegisterPeerServer(s, announcer{notify: notify}) })
		conn, err := pool.dial(address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		ended := make(chan error, 1)
		go func() { ended <- pool.follow(t.Context(), peer.NewPeerClient(conn)) }()
		return ended
	}
	follow(func(stream peer.Peer_NotifyServer) error { // changes without a pause
		for {
			if err := stream.Send(&peer.ChangeNotification{Name: "a", Type: peer.ChangeNotificationType_PEER_UPDATED}); err != nil {
				return err
			}
			time.Sleep(quiet / 3)
		}
	})
	for deadline := time.Now().Add(maxPending + 3*time.Second); len(pool.list()) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("changes without a pause: the relay uses none of them")
		}
	}
	for want, name := range map[string]string{"names more than 5000 nodes": "n", "a name or an address of": strings.Repeat("n", 1000)} {
		ended := follow(func(stream peer.Peer_NotifyServer) error {
			for i := range 3 * maxNodes {
				if err := stream.Send(&peer.ChangeNotification{Name: fmt.Sprint(name, i), Type: peer.ChangeNotificationType_PEER_ADDED}); err != nil {
					return err
				}
			}
			<-stream.Context().Done()
			return nil
		})
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("no error, want %q", want)
		}
	}
}

// TestMalformedTimes checks that answers of an agent with times that are no dates arrive with dates: JSON has no form for others.
func TestMalformedTimes(t *testing.T) {
	malformed := []*timestamppb.Timestamp{nil, {Seconds: -1 << 62}, {Seconds: 1 << 40}, {Seconds: 1<<63 - 1}, {Nanos: -1}}
	address := serveFake(t, func(s *grpc.Server) {
		observer.RegisterObserverServer(s, scripted{flows: func(stream observer.Observer_GetFlowsServer) error {
			var errs []error
			for _, at := range malformed {
				f := dated(time.Now(), "web")
				f.Time, f.GetFlow().Time = at, at
				lost := &flow.LostEvent{NumEventsLost: 1, First: at, Last: at}
				errs = append(errs, stream.Send(f), stream.Send(&observer.GetFlowsResponse{Time: at, ResponseTypes: &observer.GetFlowsResponse_LostEvents{LostEvents: lost}}))
			}
			return errors.Join(errs...)
		}})
	})
	c, _, _ := serve(t, map[string]string{"n": address})
	stream, err := c.GetFlows(t.Context(), &observer.GetFlowsRequest{})
	count := 0
	for err == nil {
		var m *observer.GetFlowsResponse
		if m, err = stream.Recv(); err != nil {
			break
		}
		if m.GetNodeStatus() == nil {
			count++
		}
		if _, err := protojson.Marshal(m); err != nil {
			t.Errorf("%v: %v", m, err)
		}
		if age := time.Since(m.GetTime().AsTime()); age < 0 || age > time.Minute {
			t.Errorf("%v: its time is not that of its arrival", m)
		}
	}
	if !errors.Is(err, io.EOF) || count != 2*len(malformed) {
		t.Errorf("%d answers, want %d: %v", count, 2*len(malformed), err)
	}
}

// TestFutureFlows checks that flows of the future do not end the wait for flows of other nodes, and that the next request to their
// node is not for flows of the future.
func TestFutureFlows(t *testing.T) {
	m, now := newMerger(hold, maxWaiting), time.Now()
	for i := range 10 {
		m.add(dated(now.Add(24*time.Hour), "future"), now.Add(time.Duration(i)*hold/10))
	}
	m.add(dated(now.Add(hold-time.Millisecond), "new"), now.Add(hold-time.Millisecond))
	for _, a := range m.due(now.Add(hold)) {
		if a.GetFlow().GetSource().GetPodName() == "new" {
			t.Error("a flow did not wait for those of other nodes")
		}
	}
	requests := make(chan *observer.GetFlowsRequest, 16)
	address := serveFake(t, func(s *grpc.Server) {
		observer.RegisterObserverServer(s, scripted{requests: requests, flows: func(stream observer.Observer_GetFlowsServer) error {
			return stream.Send(dated(time.Now().Add(24*time.Hour), "future"))
		}})
	})
	c, _, _ := serve(t, map[string]string{"n": address})
	if _, err := c.GetFlows(t.Context(), &observer.GetFlowsRequest{Follow: true}); err != nil {
		t.Fatal(err)
	}
	<-requests
	if since := (<-requests).GetSince().AsTime(); since.After(time.Now()) {
		t.Errorf("the second request is for flows since %s", since)
	}
}

// TestMalformedError checks that the error of an agent that is long or not UTF-8 neither ends the stream of a client nor fills it.
func TestMalformedError(t *testing.T) {
	address := serveFake(t, func(s *grpc.Server) {
		observer.RegisterObserverServer(s, scripted{flows: func(observer.Observer_GetFlowsServer) error {
			return status.Error(codes.Internal, strings.Repeat("\xff", 3<<10))
		}})
	})
	c, _, _ := serve(t, map[string]string{"n": address})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stream, err := c.GetFlows(ctx, &observer.GetFlowsRequest{Follow: true})
	for seen := 0; err == nil && seen < 2; {
		var m *observer.GetFlowsResponse
		if m, err = stream.Recv(); err == nil && m.GetNodeStatus().GetMessage() != "" {
			seen++
			if n := len(m.GetNodeStatus().GetMessage()); n > 1<<10 {
				t.Errorf("a message of %d bytes", n)
			}
		}
	}
	if err != nil {
		t.Error(err)
	}
	if _, err := proto.Marshal(change(relay.NodeState_NODE_UNAVAILABLE, "\xff", "n")); err != nil { // as from another implementation of gRPC
		t.Error(err)
	}
}
