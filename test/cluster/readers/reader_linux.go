// SPDX-License-Identifier: Apache-2.0

package readers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/test/cluster"
)

// Counts are what a reader got: events, and numbers of missing events by their reason.
type Counts struct {
	Received uint64
	// Slow: this reader was too slow. Queue: the server of Hubble's interface was. Undelivered: over the limit of a pod, or
	// not read from the kernel in time.
	Slow, Queue, Undelivered uint64
}

// Sum is the number of events that the reader knows of.
func (c Counts) Sum() uint64 { return c.Received + c.Slow + c.Queue + c.Undelivered }

func (c *Counts) add(other Counts) {
	c.Received += other.Received
	c.Slow += other.Slow
	c.Queue += other.Queue
	c.Undelivered += other.Undelivered
}

// Reader is a client that follows all events of an agent.
type Reader struct {
	Name string
	// pause is how long it does something else after each event.
	pause time.Duration
	conn  *grpc.ClientConn
	// gate is locked while the reader stalls.
	gate    sync.Mutex
	stalled bool

	mu     sync.Mutex
	counts Counts
	err    error
	done   chan struct{}
}

// Hubble starts a reader of Hubble's interface.
func Hubble(ctx context.Context, n *cluster.Node, name string, pause time.Duration) (*Reader, error) {
	r, err := open(name, socket.Hubble(n.Socket()), pause)
	if err != nil {
		return nil, err
	}
	stream, err := observer.NewObserverClient(r.conn).GetFlows(ctx, &observer.GetFlowsRequest{Follow: true})
	if err != nil {
		return nil, fmt.Errorf("reader %s: %w", name, err)
	}
	go r.run(func() (Counts, error) {
		m, err := stream.Recv()
		if err != nil {
			return Counts{}, err
		}
		return hubbleCounts(m)
	})
	return r, nil
}

// hubbleCounts returns what an answer counts for.
func hubbleCounts(m *observer.GetFlowsResponse) (c Counts, err error) {
	n := m.GetLostEvents().GetNumEventsLost()
	switch {
	case m.GetFlow() != nil:
		c.Received = 1
	case m.GetLostEvents() == nil: // the state of the node
	case m.GetLostEvents().GetSource() == flow.LostEventSource_HUBBLE_RING_BUFFER:
		c.Slow = n
	case m.GetLostEvents().GetSource() == flow.LostEventSource_OBSERVER_EVENTS_QUEUE:
		c.Queue = n
	case m.GetLostEvents().GetSource() == flow.LostEventSource_PERF_EVENT_RING_BUFFER:
		c.Undelivered = n
	default:
		err = fmt.Errorf("unknown source of lost events: %v", m)
	}
	return c, err
}

// Inspect starts a reader of the interface of isthmusctl.
func Inspect(ctx context.Context, n *cluster.Node, name string, pause time.Duration) (*Reader, error) {
	r, err := open(name, socket.Inspection(n.Socket()), pause)
	if err != nil {
		return nil, err
	}
	stream, err := isthmusv1.NewInspectClient(r.conn).WatchFlows(ctx, &isthmusv1.WatchFlowsRequest{Follow: true})
	if err != nil {
		return nil, fmt.Errorf("reader %s: %w", name, err)
	}
	go r.run(func() (Counts, error) {
		m, err := stream.Recv()
		c := Counts{Slow: m.GetMissed(), Undelivered: m.GetUndelivered()}
		if m.GetEvent() != nil {
			c.Received = 1
		}
		return c, err
	})
	return r, nil
}

// open connects to a socket. Each reader has a connection of its own.
func open(name, address string, pause time.Duration) (*Reader, error) {
	conn, err := grpc.NewClient("unix:"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("reader %s: %w", name, err)
	}
	return &Reader{Name: name, pause: pause, conn: conn, done: make(chan struct{})}, nil
}

// run receives until an error.
func (r *Reader) run(receive func() (Counts, error)) {
	defer close(r.done)
	for {
		r.pass()
		c, err := receive()
		r.mu.Lock()
		r.counts.add(c)
		r.err = err
		r.mu.Unlock()
		if err != nil {
			return
		}
		if r.pause > 0 {
			time.Sleep(r.pause)
		}
	}
}

// pass waits while the reader stalls.
func (r *Reader) pass() {
	r.gate.Lock()
	defer r.gate.Unlock()
}

// Counts returns what the reader got so far. The error is why its stream ended.
func (r *Reader) Counts() (Counts, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.counts, fmt.Errorf("reader %s: %w", r.Name, r.err)
	}
	return r.counts, nil
}

// Stall lets the reader receive nothing until Resume, after the message that it waits for.
func (r *Reader) Stall() {
	if !r.stalled {
		r.stalled = true
		r.gate.Lock()
	}
}

// Resume ends a stall.
func (r *Reader) Resume() {
	if r.stalled {
		r.stalled = false
		r.gate.Unlock()
	}
}

// Close ends the reader.
func (r *Reader) Close() error {
	r.Resume()
	err := r.conn.Close()
	<-r.done
	return err
}
