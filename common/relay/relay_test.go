// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/relay"
	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

var quietLog = slog.New(slog.DiscardHandler)

// agent serves the flows of a node.
type agent struct {
	t       *testing.T
	name    string
	address string
	store   *observe.Store
	history int
	known   func() *model.Snapshot
	stop    func()
}

// newAgent starts an agent on a socket.
func newAgent(t *testing.T, dir, name string, history int) *agent {
	a := &agent{t: t, name: name, address: filepath.Join(dir, name), history: history, known: func() *model.Snapshot { return nil },
		store: observe.NewStore(observe.Config{Keep: 4096}, quietLog, func() *model.Snapshot { return nil })}
	a.start()
	t.Cleanup(func() { a.stop() })
	return a
}

func (a *agent) start() {
	s, err := hubble.New(hubble.Config{Node: a.name, Version: "1", History: a.history, Source: func() (*observe.Store, error) { return a.store, nil }, Snapshot: a.known}, quietLog)
	if err != nil {
		a.t.Fatal(err)
	}
	l, err := net.Listen("unix", a.address)
	if err != nil {
		a.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, hubble.Listener{Listener: l}) }()
	a.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			a.t.Error(err)
		}
	})
}

// add makes a flow now. Its ports are its number.
func (a *agent) add(n int) {
	a.store.Add([]model.FlowEvent{{Time: time.Now(), Pod: model.PodID{Namespace: "shop", Name: a.name}, Verdict: model.Verdict(n % 2), Direction: model.Egress, Protocol: model.TCP,
		Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), SrcPort: uint16(n), DstPort: uint16(n >> 16)}})
}

func number(f *flow.Flow) int {
	return int(f.GetL4().GetTCP().GetSourcePort() | f.GetL4().GetTCP().GetDestinationPort()<<16)
}

// serve starts a relay over nodes and returns a client of it.
func serve(t *testing.T, nodes map[string]string) (observer.ObserverClient, *Pool, func()) {
	t.Helper()
	pool := NewPool(nil, quietLog)
	t.Cleanup(pool.Close)
	if err := pool.Set(nodes); err != nil {
		t.Fatal(err)
	}
	conn, stop := dial(t, New(pool, nil, "1.2.3", quietLog))
	return observer.NewObserverClient(conn), pool, stop
}

// dial serves a relay until the test ends or stop is called, and connects to it.
func dial(t *testing.T, r *Relay) (conn *grpc.ClientConn, stop func()) {
	t.Helper()
	address := filepath.Join(t.TempDir(), "relay")
	l, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(ctx, hubble.Listener{Listener: l}) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	if conn, err = grpc.NewClient("unix://"+address, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		stop()
	})
	return conn, stop
}

func addresses(agents ...*agent) map[string]string {
	all := make(map[string]string)
	for _, a := range agents {
		all[a.name] = "unix://" + a.address
	}
	return all
}

// flows returns the nodes and numbers of the answers to a request, and the states of nodes.
func flows(t *testing.T, c observer.ObserverClient, q *observer.GetFlowsRequest) (list, states []string) {
	t.Helper()
	stream, err := c.GetFlows(t.Context(), q)
	for err == nil {
		var m *observer.GetFlowsResponse
		if m, err = stream.Recv(); err != nil {
			break
		}
		if s := m.GetNodeStatus(); s != nil {
			states = append(states, fmt.Sprint(s.GetStateChange(), s.GetNodeNames()))
		} else {
			list = append(list, fmt.Sprint(m.GetNodeName(), " ", number(m.GetFlow())))
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatalf("%v: %v", q, err)
	}
	return list, states
}

func TestPast(t *testing.T) {
	dir := t.TempDir()
	a, b := newAgent(t, dir, "a", 100), newAgent(t, dir, "b", 100)
	nodes := addresses(a, b)
	nodes["gone"], nodes["deaf"] = "unix://"+filepath.Join(dir, "gone"), ""
	c, _, _ := serve(t, nodes)
	var all []string
	for n := range 20 {
		from := []*agent{a, b}[n/3%2]
		from.add(n)
		all = append(all, fmt.Sprint(from.name, " ", n))
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		s, err := c.ServerStatus(t.Context(), &observer.ServerStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if s.GetNumFlows() == 20 {
			if s.GetNumConnectedNodes().GetValue() != 2 || s.GetNumUnavailableNodes().GetValue() != 2 || !slices.Equal(s.GetUnavailableNodes(), []string{"deaf", "gone"}) || s.GetMaxFlows() != 200 {
				t.Errorf("status %v", s)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("status %v", s)
		}
	}
	odd := []*flow.FlowFilter{{Verdict: []flow.Verdict{flow.Verdict_FORWARDED}}}
	for _, q := range []struct {
		request *observer.GetFlowsRequest
		want    []string
	}{
		{&observer.GetFlowsRequest{}, all},
		{&observer.GetFlowsRequest{Number: 5}, all[15:]},
		{&observer.GetFlowsRequest{Number: 5, First: true}, all[:5]},
		{&observer.GetFlowsRequest{Number: 1 << 40}, all},
		{&observer.GetFlowsRequest{Number: 4, Blacklist: odd, First: true}, denied(all)[:4]},
		{&observer.GetFlowsRequest{Number: 4, Whitelist: odd}, nil},
	} {
		got, states := flows(t, c, q.request)
		if q.want == nil { // the other half
			q.want = slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(denied(all), s) })
			q.want = q.want[len(q.want)-4:]
		}
		if !slices.Equal(got, q.want) {
			t.Errorf("%v: got %q, want %q", q.request, got, q.want)
		}
		if want := []string{"NODE_CONNECTED [a b]", "NODE_UNAVAILABLE [deaf gone]"}; !slices.Equal(states, want) {
			t.Errorf("states %q, want %q", states, want)
		}
	}
	list, err := c.GetNodes(t.Context(), &observer.GetNodesRequest{})
	if err != nil || len(list.GetNodes()) != 4 || list.GetNodes()[0].GetName() != "default/a" || list.GetNodes()[0].GetState() != relay.NodeState_NODE_CONNECTED || list.GetNodes()[3].GetState() != relay.NodeState_NODE_UNAVAILABLE {
		t.Errorf("nodes %v, %v", list, err)
	}
	if n, err := c.GetNamespaces(t.Context(), &observer.GetNamespacesRequest{}); err != nil || len(n.GetNamespaces()) != 1 || n.GetNamespaces()[0].GetNamespace() != "shop" {
		t.Errorf("namespaces %v, %v", n, err)
	}
	for want, q := range map[string]*observer.GetFlowsRequest{"number 65537: give at most 65536": {Number: 65537}, "first and follow": {First: true, Follow: true}} {
		stream, err := c.GetFlows(t.Context(), q)
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", q, err)
		}
	}
}

// denied returns the flows with an even number, which model.Verdict denies.
func denied(all []string) (list []string) {
	for _, s := range all {
		var node string
		var n int
		fmt.Sscan(s, &node, &n)
		if model.Verdict(n%2) == model.Deny {
			list = append(list, s)
		}
	}
	return list
}

// addAndRestart adds flows to each agent, that many a second, and stops and starts the second agent meanwhile. The
// result waits for the end.
func addAndRestart(agents []*agent, each, rate int) (wait func()) {
	var writers sync.WaitGroup
	for i, a := range agents {
		writers.Go(func() {
			for n := range each {
				a.add(n)
				if i == 1 && n == each/3 {
					a.stop()
				}
				if i == 1 && n == each/2 {
					a.start()
				}
				time.Sleep(time.Second / time.Duration(rate))
			}
		})
	}
	return writers.Wait
}

// TestFollowThreeNodes follows three nodes at 200 flows a second each, while one of them stops and starts again. The
// flows of the others arrive once, in order, and soon. The relay reports both changes, and the flows that the node
// still has when it is back arrive too.
func TestFollowThreeNodes(t *testing.T) {
	const each, rate = 1200, 200
	dir := t.TempDir()
	agents := []*agent{newAgent(t, dir, "a", 4096), newAgent(t, dir, "b", 4096), newAgent(t, dir, "c", 4096)}
	c, _, _ := serve(t, addresses(agents...))
	stream, err := c.GetFlows(t.Context(), &observer.GetFlowsRequest{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || len(m.GetNodeStatus().GetNodeNames()) != 3 {
		t.Fatalf("got %v, %v", m, err)
	}
	time.Sleep(200 * time.Millisecond) // until the streams of the nodes are open
	wait := addAndRestart(agents, each, rate)
	seen := map[string]map[int]int{"a": {}, "b": {}, "c": {}}
	var lags []time.Duration
	var states []string
	var last time.Time
	disorder := 0
	done := func() bool { return len(seen["a"]) == each && len(seen["b"]) == each && len(seen["c"]) == each }
	for !done() {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if s := m.GetNodeStatus(); s != nil {
			states = append(states, fmt.Sprint(s.GetStateChange(), s.GetNodeNames()))
			continue
		}
		at := m.GetTime().AsTime()
		if m.GetNodeName() != "b" {
			lags = append(lags, time.Since(at))
			if at.Before(last) {
				disorder++
			}
			last = at
		}
		seen[m.GetNodeName()][number(m.GetFlow())]++
	}
	wait()
	slices.Sort(lags)
	p99 := lags[len(lags)*99/100]
	t.Logf("lag p50 %s, p99 %s, of %d flows; states %q", lags[len(lags)/2], p99, len(lags), states)
	if p99 > 1500*time.Millisecond || disorder > 0 {
		t.Errorf("lag p99 %s, %d flows out of order", p99, disorder)
	}
	for name, numbers := range seen {
		for n, times := range numbers {
			if times != 1 {
				t.Errorf("flow %d of node %s arrived %d times", n, name, times)
			}
		}
	}
	if want := []string{"NODE_UNAVAILABLE [b]", "NODE_CONNECTED [b]"}; !slices.Equal(states, want) {
		t.Errorf("states %q, want %q", states, want)
	}
}

// TestSlowClient checks that a client that does not read learns of every flow: as a flow or as a lost one.
func TestSlowClient(t *testing.T) {
	const total = 60000
	a := newAgent(t, t.TempDir(), "a", 64)
	c, _, _ := serve(t, addresses(a))
	stream, err := c.GetFlows(t.Context(), &observer.GetFlowsRequest{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	for n := range total {
		a.add(n)
	}
	time.Sleep(500 * time.Millisecond) // until the agent has read its queue; the next flow carries what it missed
	a.add(total)
	var got, lost uint64
	for got+lost < total+1 {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if l := m.GetLostEvents(); l != nil {
			lost += l.GetNumEventsLost()
		} else {
			got++
		}
	}
	t.Logf("%d flows, %d lost and reported", got, lost)
	if got+lost != total+1 || lost == 0 {
		t.Errorf("%d flows and %d lost ones, of %d", got, lost, total+1)
	}
}

// TestFollowKept checks that following begins with the newest kept flows of all nodes, and ends when the relay stops.
func TestFollowKept(t *testing.T) {
	dir := t.TempDir()
	a, b := newAgent(t, dir, "a", 100), newAgent(t, dir, "b", 100)
	c, pool, stop := serve(t, addresses(a, b))
	for n := range 10 {
		[]*agent{a, b}[n%2].add(n)
	}
	time.Sleep(1500 * time.Millisecond) // the agents look for flows each second
	stream, err := c.GetFlows(t.Context(), &observer.GetFlowsRequest{Follow: true, Number: 3})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	read := func() {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if s := m.GetNodeStatus(); s != nil {
			got = append(got, fmt.Sprint(s.GetStateChange(), s.GetNodeNames()))
		} else {
			got = append(got, fmt.Sprint(m.GetNodeName(), " ", number(m.GetFlow())))
		}
	}
	for range 4 {
		read()
	}
	b.add(10)
	read()
	if err := pool.Set(addresses(b)); err != nil {
		t.Fatal(err)
	}
	for !strings.HasPrefix(got[len(got)-1], "NODE_GONE") {
		read()
	}
	if want := []string{"NODE_CONNECTED [a b]", "b 7", "a 8", "b 9", "b 10"}; !slices.Equal(got[:5], want) || got[len(got)-1] != "NODE_GONE [a]" {
		t.Errorf("got %q, want %q and then NODE_GONE [a]", got, want)
	}
	stop()
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a follower of a relay that stops: %v", err)
	}
}

// TestDiscover follows the nodes of an agent, over a restart of that agent.
func TestDiscover(t *testing.T) {
	a := newAgent(t, t.TempDir(), "a", 100)
	var mutex sync.Mutex
	known := model.MakeSnapshot(nil, []*model.Node{{Name: "a"}, {Name: "b"}}, nil, nil)
	a.stop()
	a.known = func() *model.Snapshot {
		mutex.Lock()
		defer mutex.Unlock()
		return known
	}
	a.start()
	pool := NewPool(nil, quietLog)
	defer pool.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- pool.Discover(ctx, "unix://"+a.address) }()
	wait := func(want string) {
		t.Helper()
		var names []string
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			names = nil
			for _, n := range pool.list() {
				names = append(names, n.name)
			}
			if fmt.Sprint(names) == want {
				return
			}
		}
		t.Fatalf("nodes %v, want %s", names, want)
	}
	wait("[a b]")
	a.stop()
	mutex.Lock()
	known = model.MakeSnapshot(nil, []*model.Node{{Name: "b"}, {Name: "c"}}, nil, nil)
	mutex.Unlock()
	wait("[a b]") // while no agent answers
	a.start()
	wait("[b c]")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := pool.Set(map[string]string{"x": "192.0.2.1:4244"}); err == nil || !strings.Contains(err.Error(), "node x: connect to 192.0.2.1:4244: only sockets are used without TLS") {
		t.Errorf("an address without TLS: %v", err)
	}
}
