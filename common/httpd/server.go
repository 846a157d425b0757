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

// Limits bounds the resources of clients.
type Limits struct {
	// Connections bounds the open connections. A further one closes the connection that has been in its
	// state for the longest time. Clients that hold idle connections therefore cannot lock out others. Those of Hold do not count.
	Connections int
	// HeaderBytes bounds the header of a request, in bytes.
	HeaderBytes int
	// ReadHeader and Read bound the time until a request has arrived, without and with its body. Write
	// bounds the time of the response, counted from the header of the request.
	ReadHeader, Read, Write time.Duration
	// Idle is how long a connection may wait for its next request.
	Idle time.Duration
}

// Scrapes bounds the concurrent scrapes of a program's metrics: each gathers all metrics, which may need
// system calls.
const Scrapes = 4

// Defaults returns Limits that suffice for the kubelet's probes and several Prometheus servers.
func Defaults() Limits {
	return Limits{Connections: 64, HeaderBytes: 16 << 10, ReadHeader: 5 * time.Second, Read: 10 * time.Second, Write: 15 * time.Second, Idle: 90 * time.Second}
}

// Serve serves requests until the context is done. It then closes the listener and all connections and
// returns nil.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, l Limits) error {
	open := &connections{most: l.Connections, entries: make(map[net.Conn]*list.Element), held: make(map[net.Conn]bool)}
	server := &http.Server{Handler: handler, MaxHeaderBytes: l.HeaderBytes, ReadHeaderTimeout: l.ReadHeader, ReadTimeout: l.Read,
		WriteTimeout: l.Write, IdleTimeout: l.Idle, ConnState: open.note,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, holderKey{}, func() { open.hold(c) })
		}}
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

// holderKey is the key of the function of a connection for Hold.
type holderKey struct{}

// Hold takes the connection of a request out of the limit until the request has ended, so that other clients cannot close it. ctx is
// that of the request. The caller has authenticated the client, and bounds the requests that it holds.
func Hold(ctx context.Context) {
	if hold, ok := ctx.Value(holderKey{}).(func()); ok { // not with another server
		hold()
	}
}

// connections lists the open connections in the order in which they entered their state: new, active or
// idle.
type connections struct {
	most int

	mu      sync.Mutex
	order   list.List
	entries map[net.Conn]*list.Element
	// held are those of Hold, which are in no list.
	held map[net.Conn]bool
}

// hold takes an active connection out of the list until its next state.
func (c *connections) hold(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[conn]; e != nil {
		c.order.Remove(e)
		delete(c.entries, conn)
		c.held[conn] = true
	}
}

// note is the server's ConnState hook. The server calls it for a new connection before it accepts the next
// one. The goroutine of a connection that was closed here may still report that it is active: this must not
// close another connection.
func (c *connections) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, held := c.entries[conn], c.held[conn]
	if e == nil && !held && state != http.StateNew {
		return
	}
	delete(c.held, conn)
	if e != nil {
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
		oldest.Close() // its goroutine gets an error
	}
}
