// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/relay"
)

// wire carries the connections to an agent, and can be cut.
type wire struct {
	mutex sync.Mutex
	cut   bool
	open  map[net.Conn]bool
}

// newWire returns a wire to an agent on a socket, and its address.
func newWire(t *testing.T, to string) (*wire, string) {
	t.Helper()
	address := filepath.Join(t.TempDir(), "wire")
	l, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{open: make(map[net.Conn]bool)}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { w.carry(c, to) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.setCut(true)
		running.Wait()
	})
	return w, "unix://" + address
}

// carry copies both directions of a connection until one ends.
func (w *wire) carry(c net.Conn, to string) {
	defer c.Close()
	d, err := net.Dial("unix", to)
	if err != nil {
		return
	}
	defer d.Close()
	w.mutex.Lock()
	cut := w.cut
	w.open[c], w.open[d] = true, true
	w.mutex.Unlock()
	if !cut {
		go func() {
			_, _ = io.Copy(d, c)
			d.Close()
		}()
		_, _ = io.Copy(c, d)
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	delete(w.open, c)
	delete(w.open, d)
}

func (w *wire) setCut(cut bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.cut = cut
	for c := range w.open {
		if cut {
			c.Close()
		}
	}
}

// tally counts what a client receives of an agent that makes flows and losses.
type tally struct {
	t               *testing.T
	agent           *agent
	stream          grpc.ServerStreamingClient[observer.GetFlowsResponse]
	seen            map[int]int
	made, got, lost uint64
}

// add makes flows, and then reports some that were not delivered.
func (y *tally) add(flows, undelivered int) {
	for range flows {
		y.agent.add(int(y.made))
		y.made++
	}
	y.agent.store.Undelivered(uint64(undelivered))
	y.made += uint64(undelivered)
}

// until receives until a condition holds.
func (y *tally) until(what string, done func(*observer.GetFlowsResponse) bool) {
	y.t.Helper()
	for {
		m, err := y.stream.Recv()
		if err != nil {
			y.t.Fatalf("%s: %v after %d flows and %d lost ones of %d", what, err, y.got, y.lost, y.made)
		}
		if m.GetFlow() != nil {
			y.got++
			y.seen[number(m.GetFlow())]++
		}
		if y.lost += m.GetLostEvents().GetNumEventsLost(); y.got+y.lost > y.made {
			y.t.Fatalf("%s: %d flows and %d lost ones of %d", what, y.got, y.lost, y.made)
		}
		if m.GetIsthmusPosition() != 0 {
			y.t.Fatal("the client learns the position, which counts the flows of a node")
		}
		if done(m) {
			return
		}
	}
}

// TestReconnect cuts the connection to an agent that loses flows before and meanwhile, and overwrites some that were not read.
// Each flow arrives once or is reported as lost once.
func TestReconnect(t *testing.T) {
	a := newAgent(t, t.TempDir(), "a", 64)
	w, address := newWire(t, a.address)
	c, _, _ := serve(t, map[string]string{"a": address})
	direct, _, _ := serve(t, addresses(a))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	y := &tally{t: t, agent: a, seen: make(map[int]int)}
	// kept waits until the agent has kept a number of flows.
	kept := func(flows uint64) {
		t.Helper()
		for seen := uint64(0); seen < flows; time.Sleep(10 * time.Millisecond) {
			s, err := direct.ServerStatus(ctx, &observer.ServerStatusRequest{})
			if err != nil {
				t.Fatal(err)
			}
			seen = s.GetSeenFlows()
		}
	}
	all := func(*observer.GetFlowsResponse) bool { return y.got+y.lost == y.made }
	down := func(m *observer.GetFlowsResponse) bool {
		return m.GetNodeStatus().GetStateChange() == relay.NodeState_NODE_UNAVAILABLE
	}
	y.add(1, 0)
	kept(1)
	var err error
	if y.stream, err = c.GetFlows(ctx, &observer.GetFlowsRequest{Follow: true, Number: 10}); err != nil {
		t.Fatal(err)
	}
	y.until("the first flow", all)
	y.add(10, 3)
	y.add(1, 0)
	y.until("before the cut", all)
	w.setCut(true)
	y.until("the cut", down)
	y.add(20, 4)
	y.add(100, 0)
	kept(132)
	w.setCut(false)
	y.add(1, 5)
	y.add(1, 0)
	y.until("after the cut", all)
	for n, times := range y.seen {
		if times != 1 {
			t.Errorf("flow %d arrived %d times", n, times)
		}
	}
	if y.seen[int(y.made-1)] != 1 {
		t.Errorf("%d flows and %d lost ones, without the last flow: some losses count twice", y.got, y.lost)
	}
	if y.lost <= 3+4+5 {
		t.Errorf("%d flows lost: the agent has overwritten none", y.lost)
	}
}
