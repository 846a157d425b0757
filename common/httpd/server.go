// SPDX-License-Identifier: Apache-2.0

package httpd

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// Limits bound what clients may take.
type Limits struct {
	// Connections are open at a time. One more closes the connection that has been
	// in its state for the longest, so that clients that hold connections without
	// using them do not keep others out.
	Connections int
	// HeaderBytes bounds the header of a request.
	HeaderBytes int
	// ReadHeader and Read bound how long a request may take to arrive, without
	// and with its body; Write how long the answer may take, from the header on.
	ReadHeader, Read, Write time.Duration
	// Idle is how long a connection may wait for its next request.
	Idle time.Duration
}

// Scrapes is how many readings of a program's metrics go on at a time: each
// gathers all of them, which may take calls of the system.
const Scrapes = 4

// Defaults are enough for the kubelet's probes and several Prometheus servers.
func Defaults() Limits {
	return Limits{Connections: 64, HeaderBytes: 16 << 10, ReadHeader: 5 * time.Second, Read: 10 * time.Second, Write: 15 * time.Second, Idle: 90 * time.Second}
}

// Serve answers requests until the context is done, then closes the listener and
// all connections and returns nil.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, l Limits) error {
	open := &connections{most: l.Connections, entries: make(map[net.Conn]*list.Element)}
	server := &http.Server{Handler: handler, MaxHeaderBytes: l.HeaderBytes, ReadHeaderTimeout: l.ReadHeader, ReadTimeout: l.Read,
		WriteTimeout: l.Write, IdleTimeout: l.Idle, ConnState: open.note}
	stopped := make(chan struct{})
	end := context.AfterFunc(ctx, func() {
		defer close(stopped)
		server.Close()
	})
	err := server.Serve(listener)
	if !end() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve HTTP: %w", err)
}

// connections are those that are open, in the order in which they came to their
// state: new, with a request, or waiting for the next one.
type connections struct {
	most int

	mu      sync.Mutex
	order   list.List
	entries map[net.Conn]*list.Element
}

// note is the server's ConnState. It is called for a new connection before the
// next one is accepted.
func (c *connections) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[conn]; e != nil {
		c.order.Remove(e)
		delete(c.entries, conn)
	}
	if state == http.StateClosed || state == http.StateHijacked {
		return
	}
	c.entries[conn] = c.order.PushBack(conn)
	if c.order.Len() > c.most {
		oldest := c.order.Remove(c.order.Front()).(net.Conn)
		delete(c.entries, oldest)
		oldest.Close() // its goroutine notices
	}
}
