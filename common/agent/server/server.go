// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/isthmus-net/isthmus/common/agent/socket"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
)

// Serve serves the CNI plugin and isthmusctl, each on its socket, until the context is done. It then
// finishes the accepted requests, for StopTimeout at most, and closes the sockets. Run must not return
// before Serve does.
func (a *Agent) Serve(ctx context.Context, sockets *socket.Sockets) error {
	clients, cut := context.WithCancel(context.Background())
	defer cut()
	requests := newRequestServer(clients, a)
	inspection := grpc.NewServer(grpc.ConnectionTimeout(handshakeTimeout))
	isthmusv1.RegisterInspectServer(inspection, &inspectServer{agent: a})
	ended := make(chan error, 2)
	start := func(l net.Listener, serve func(net.Listener) error) {
		go func() {
			err := serve(&clientListener{l, clients})
			if err != nil {
				err = fmt.Errorf("serve on %s: %w", l.Addr(), err)
			}
			ended <- err
		}()
	}
	start(sockets.Requests, requests.serve)
	start(sockets.Inspection, inspection.Serve)
	var failed error
	running := 2
	select {
	case failed = <-ended:
		running--
	case <-ctx.Done():
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		bound, cancel := context.WithTimeout(context.Background(), a.cfg.StopTimeout)
		defer cancel()
		// An error means that the loop has ended or is busy. The code below then cuts off the waiting
		// requests.
		_ = a.do(bound, (*loop).stop)
		a.flows.Stop()
		sockets.Requests.Close()
		inspection.GracefulStop()
		for range running {
			<-ended
		}
	}()
	select {
	case <-stopped:
	case <-time.After(a.cfg.StopTimeout):
		cut()
		inspection.Stop()
		<-stopped
	}
	return failed
}

// clientListener closes the connections of its clients when a context ends.
type clientListener struct {
	net.Listener
	ctx context.Context
}

// Accept implements net.Listener.
func (l *clientListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &client{c, context.AfterFunc(l.ctx, func() { c.Close() })}, nil
}

// client is a connection of a clientListener.
type client struct {
	net.Conn
	forget func() bool
}

// Close implements net.Conn.
func (c *client) Close() error {
	c.forget()
	return c.Conn.Close()
}
