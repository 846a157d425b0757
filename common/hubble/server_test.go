// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/peer"
	"github.com/isthmus-net/isthmus/common/api/hubble/relay"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

// rig is a served Server over a store of flows.
type rig struct {
	t       *testing.T
	server  *Server
	store   *observe.Store
	client  observer.ObserverClient
	conn    *grpc.ClientConn
	source  atomic.Pointer[error] // of Config.Source
	current atomic.Pointer[model.Snapshot]
	address string
	stop    func() error
}

func serve(t *testing.T, edit func(*Config), unavailable ...error) *rig {
	r := &rig{t: t, address: filepath.Join(t.TempDir(), "hubble")}
	r.current.Store(cluster())
	for _, why := range unavailable {
		r.source.Store(&why)
	}
	r.store = observe.NewStore(observe.Config{Keep: 100}, slog.New(slog.DiscardHandler), r.current.Load)
	cfg := Config{Node: "n1", Version: "1.2.3", History: 1024, Port: 4244, Snapshot: r.current.Load,
		Source: func() (*observe.Store, error) {
			if err := r.source.Load(); err != nil {
				return nil, *err
			}
			return r.store, nil
		}}
	if edit != nil {
		edit(&cfg)
	}
	var err error
	if r.server, err = New(cfg, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", r.address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.server.Serve(ctx, Listener{Listener: l}) }()
	r.stop = func() error { cancel(); return <-ended }
	if r.conn, err = grpc.NewClient("unix://"+r.address, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	r.client = observer.NewObserverClient(r.conn)
	t.Cleanup(func() {
		r.conn.Close()
		cancel()
	})
	return r
}

// add adds n denied flows and waits until the server has them.
func (r *rig) add(n int) {
	r.t.Helper()
	seen := func() uint64 { return r.server.ring.Stats(time.Now()).Seen }
	before := seen()
	for i := range n {
		f := denied().FlowEvent
		f.Time, f.SrcPort = time.Now(), uint16(i)
		r.store.Add([]model.FlowEvent{f})
		if i%500 == 499 || i == n-1 { // the queue between store and server is bounded
			wait(r.t, "flows", func() bool { return seen() >= before+uint64(i)+1 })
		}
	}
}

func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s for 30 seconds", what)
		}
	}
}

// available waits until the server follows its store.
func (r *rig) available() {
	r.t.Helper()
	if _, err := r.client.ServerStatus(r.t.Context(), &observer.ServerStatusRequest{}); err != nil { // no answer before the server follows its store
		r.t.Fatal(err)
	}
	wait(r.t, "flows", func() bool { return r.server.unavailable.Load() == nil })
}

// flows returns all answers to a request.
func (r *rig) flows(q *observer.GetFlowsRequest) (list []*observer.GetFlowsResponse) {
	r.t.Helper()
	stream, err := r.client.GetFlows(r.t.Context(), q)
	for err == nil {
		var m *observer.GetFlowsResponse
		if m, err = stream.Recv(); err == nil {
			list = append(list, m)
		}
	}
	if !errors.Is(err, io.EOF) {
		r.t.Fatalf("%v: %v", q, err)
	}
	return list
}

func TestServer(t *testing.T) {
	r := serve(t, nil)
	r.store.Add([]model.FlowEvent{denied().FlowEvent}) // perhaps before the server follows
	r.available()
	r.add(9)
	ctx := t.Context()
	var header metadata.MD
	s, err := r.client.ServerStatus(ctx, &observer.ServerStatusRequest{}, grpc.Header(&header))
	if err != nil || s.GetNumFlows() != 10 || s.GetMaxFlows() != 1024 || s.GetSeenFlows() != 10 || s.GetVersion() != "isthmus 1.2.3" || s.GetUptimeNs() == 0 {
		t.Errorf("status %v, %v", s, err)
	}
	if v := header.Get(versionHeader); !slices.Equal(v, []string{apiVersion}) {
		t.Errorf("%s is %q", versionHeader, v)
	}
	h, err := healthpb.NewHealthClient(r.conn).Check(ctx, &healthpb.HealthCheckRequest{Service: ServiceName})
	if err != nil || h.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health %v, %v", h, err)
	}
	n, err := r.client.GetNamespaces(ctx, &observer.GetNamespacesRequest{})
	if err != nil || fmt.Sprint(n.GetNamespaces()) != fmt.Sprint([]*observer.Namespace{{Cluster: "default", Namespace: "shop"}}) {
		t.Errorf("namespaces %v, %v", n, err)
	}
	nodes, err := r.client.GetNodes(ctx, &observer.GetNodesRequest{})
	if err != nil || len(nodes.GetNodes()) != 1 || nodes.GetNodes()[0].GetName() != "default/n1" || nodes.GetNodes()[0].GetAddress() != "192.0.2.1:4244" ||
		nodes.GetNodes()[0].GetState() != relay.NodeState_NODE_CONNECTED {
		t.Errorf("nodes %v, %v", nodes, err)
	}
	list := r.flows(&observer.GetFlowsRequest{Number: 3, FieldMask: mask("l4.TCP.source_port")})
	if len(list) != 3 || list[2].GetFlow().GetL4().GetTCP().GetSourcePort() != 8 || list[2].GetFlow().GetUuid() != "" || list[2].GetNodeName() != "n1" || list[2].GetTime() == nil {
		t.Errorf("flows %v", list)
	}
	for request, want := range map[*observer.GetFlowsRequest]codes.Code{{First: true, Follow: true}: codes.InvalidArgument, {Whitelist: []*flow.FlowFilter{{SourcePort: []string{"x"}}}}: codes.InvalidArgument} {
		stream, err := r.client.GetFlows(ctx, request)
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != want {
			t.Errorf("%v: %v", request, err)
		}
	}
	agent, err := r.client.GetAgentEvents(ctx, &observer.GetAgentEventsRequest{})
	if err == nil {
		_, err = agent.Recv()
	}
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("agent events: %v", err)
	}
	debug, err := r.client.GetDebugEvents(ctx, &observer.GetDebugEventsRequest{})
	if err == nil {
		_, err = debug.Recv()
	}
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("debug events: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// TestFollow follows from the kept flows to new ones without a gap or a repetition, until the server stops.
func TestFollow(t *testing.T) {
	r := serve(t, nil)
	r.available()
	r.add(5)
	stream, err := r.client.GetFlows(t.Context(), &observer.GetFlowsRequest{Number: 2, Follow: true, Blacklist: []*flow.FlowFilter{{SourcePort: []string{"7"}}}})
	if err != nil {
		t.Fatal(err)
	}
	next := func() uint32 {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return m.GetFlow().GetL4().GetTCP().GetSourcePort()
	}
	got := []uint32{next(), next()}
	r.add(9)
	for range 8 {
		got = append(got, next())
	}
	if want := []uint32{3, 4, 0, 1, 2, 3, 4, 5, 6, 8}; !slices.Equal(got, want) {
		t.Errorf("followed %v, want %v", got, want)
	}
	until, err := r.client.GetFlows(t.Context(), &observer.GetFlowsRequest{Follow: true, Until: timestamppb.New(time.Now().Add(100 * time.Millisecond))})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := until.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the end of a time: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("a follower of a server that stops: %v", err)
	}
}

// TestSlowClients has 16 clients that do not read while many flows come. Each then learns of every flow: as a flow
// or as a lost one.
func TestSlowClients(t *testing.T) {
	const clients, total = 16, 4000
	r := serve(t, func(c *Config) { c.History = 64 })
	r.available()
	streams := make([]grpc.ServerStreamingClient[observer.GetFlowsResponse], clients)
	for i := range streams {
		var err error
		if streams[i], err = r.client.GetFlows(t.Context(), &observer.GetFlowsRequest{Follow: true}); err != nil {
			t.Fatal(err)
		}
	}
	wait(t, "streams", func() bool { return len(r.server.streams) == clients })
	time.Sleep(100 * time.Millisecond)
	r.add(total)
	for i, s := range streams {
		var got, lost, reports uint64
		for got+lost < total {
			m, err := s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if l := m.GetLostEvents(); l != nil {
				if l.GetSource() != flow.LostEventSource_HUBBLE_RING_BUFFER {
					t.Fatalf("lost %v", l)
				}
				lost += l.GetNumEventsLost()
				reports++
			} else {
				got++
			}
		}
		if got+lost != total || lost == 0 || reports > got+1 {
			t.Errorf("client %d got %d flows and %d lost ones in %d reports of %d", i, got, lost, reports, total)
		}
	}
}

// TestLost checks the reports of events that did not reach the server.
func TestLost(t *testing.T) {
	r := serve(t, nil)
	r.available()
	r.store.Undelivered(7)
	wait(t, "report", func() bool {
		for _, m := range r.flows(&observer.GetFlowsRequest{}) {
			if l := m.GetLostEvents(); l != nil {
				return l.GetNumEventsLost() == 7 && l.GetSource() == flow.LostEventSource_PERF_EVENT_RING_BUFFER
			}
		}
		return false
	})
	if s := r.server.ring.Stats(time.Now()); s.Kept != 0 || s.Seen != 0 {
		t.Errorf("reports count as flows: %+v", s)
	}
}

// TestUnavailable checks that a client learns why there are no flows, and gets them as soon as there are.
func TestUnavailable(t *testing.T) {
	why := errors.New("HNS of this node (windows, HNS 13.3) does not report single flows")
	r := serve(t, nil, why)
	wait(t, "reason", func() bool { e := r.server.unavailable.Load(); return e != nil && errors.Is(*e, why) })
	stream, err := r.client.GetFlows(t.Context(), &observer.GetFlowsRequest{Follow: true, Number: 1})
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if s := m.GetNodeStatus(); s.GetStateChange() != relay.NodeState_NODE_ERROR || s.GetMessage() != why.Error() || !slices.Equal(s.GetNodeNames(), []string{"n1"}) {
		t.Errorf("got %v", m)
	}
	r.source.Store(nil)
	r.available()
	r.add(1)
	if m, err := stream.Recv(); err != nil || m.GetFlow() == nil {
		t.Errorf("got %v, %v", m, err)
	}
}

func TestStreamsAreBounded(t *testing.T) {
	r := serve(t, nil)
	r.available()
	for range MaxStreams {
		r.server.streams <- struct{}{}
	}
	stream, err := r.client.GetFlows(t.Context(), &observer.GetFlowsRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "512 streams are open already") {
		t.Errorf("a stream too many: %v", err)
	}
}

func TestPeers(t *testing.T) {
	r := serve(t, nil)
	stream, err := peer.NewPeerClient(r.conn).Notify(t.Context(), &peer.NotifyRequest{})
	if err != nil {
		t.Fatal(err)
	}
	next := func() string {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.GetTls().GetServerName() != ServerName {
			t.Errorf("peer %v", m)
		}
		return fmt.Sprint(m.GetType(), " ", m.GetName(), " ", m.GetAddress())
	}
	got := []string{next(), next()}
	r.current.Store(model.MakeSnapshot(nil, []*model.Node{{Name: "n1"}, {Name: "n3"}}, nil, nil))
	got = append(got, next(), next(), next())
	want := []string{"PEER_ADDED n1 192.0.2.1:4244", "PEER_ADDED n2 [2001:db8::2]:4244", "PEER_UPDATED n1 ", "PEER_DELETED n2 [2001:db8::2]:4244", "PEER_ADDED n3 "}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestValidate(t *testing.T) {
	if _, err := New(Config{History: 3}, nil); err == nil || !strings.Contains(err.Error(), "history of 3 flows: give 64 to 65536") || !strings.Contains(err.Error(), "no name") || !strings.Contains(err.Error(), "no source") {
		t.Errorf("got %v", err)
	}
}

// TestIncomplete: a node that does not report all flows says so before it sends those that it has.
func TestIncomplete(t *testing.T) {
	r := serve(t, nil, errors.New("not yet"))
	const why = "this node reports denied flows only"
	r.store.SetIncomplete(why)
	r.source.Store(nil)
	r.add(2)
	list := r.flows(&observer.GetFlowsRequest{Number: 10})
	if len(list) != 3 || list[0].GetNodeStatus().GetMessage() != why || list[2].GetFlow() == nil {
		t.Errorf("a stream of %v", list)
	}
}

// The newest flow of each outcome has an identifier that a client finds.
func TestNewest(t *testing.T) {
	var newest observe.Newest
	r := serve(t, func(c *Config) { c.Newest = &newest })
	r.available()
	r.add(3)
	wait(t, "exemplar of the third flow", func() bool {
		id := newest.Get(observe.Denied).ID
		list := r.flows(&observer.GetFlowsRequest{Number: 10, Whitelist: []*flow.FlowFilter{{Uuid: []string{id}}}})
		return id != "" && len(list) == 1 && list[0].GetFlow().GetL4().GetTCP().GetSourcePort() == 2 && list[0].GetFlow().GetTime().AsTime().Equal(newest.Get(observe.Denied).Time)
	})
	if other := newest.Get(observe.Allowed); other.ID != "" {
		t.Errorf("no flow was allowed: %v", other)
	}
}
