// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/relay"
)

// TestFullRelay opens as many streams as a relay has. Its exports and its calls to agents share the connections with them.
func TestFullRelay(t *testing.T) {
	a := newAgent(t, t.TempDir(), "a", 100)
	pool := NewPool(nil, quietLog)
	t.Cleanup(pool.Close)
	if err := pool.Set(addresses(a)); err != nil {
		t.Fatal(err)
	}
	r := New(pool, nil, "1", quietLog)
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	// follow returns a channel that gets whether the node answers, and one that is closed after the first flow.
	follow := func(call func(*observer.GetFlowsRequest, func(*observer.GetFlowsResponse))) (states chan bool, flow chan struct{}) {
		states, flow = make(chan bool, 1), make(chan struct{})
		first := sync.OnceFunc(func() { close(flow) })
		clients.Go(func() {
			call(&observer.GetFlowsRequest{Follow: true}, func(m *observer.GetFlowsResponse) {
				if m.GetFlow() != nil {
					first()
				}
				select {
				case states <- m.GetNodeStatus().GetStateChange() == relay.NodeState_NODE_CONNECTED:
				default:
				}
			})
		})
		return states, flow
	}
	// arrives makes flows until one has arrived: a stream that is still being opened misses earlier ones.
	arrives := func(who string, number int, flow chan struct{}) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; a.add(number) {
			select {
			case <-flow:
				return
			case <-time.After(100 * time.Millisecond):
			}
			if time.Now().After(deadline) {
				t.Fatalf("no flow arrives at %s %d", who, number)
			}
		}
	}
	var flows []chan struct{}
	for i := range maxStreams {
		states, flow := follow(func(q *observer.GetFlowsRequest, send func(*observer.GetFlowsResponse)) {
			_ = r.GetFlows(q, local{ctx: ctx, send: send})
		})
		if !<-states {
			t.Fatalf("after %d streams the node counts as unavailable", i)
		}
		flows = append(flows, flow)
	}
	for i, flow := range flows {
		arrives("client", i, flow)
	}
	if s, err := r.ServerStatus(ctx, &observer.ServerStatusRequest{}); err != nil || s.GetNumConnectedNodes().GetValue() != 1 {
		t.Errorf("status of a full relay: %v, %v", s, err)
	}
	_, flow := follow(func(q *observer.GetFlowsRequest, send func(*observer.GetFlowsResponse)) { _ = r.Follow(ctx, q, send) })
	arrives("export", maxStreams, flow)
}
