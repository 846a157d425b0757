// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/agent/loglevel"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
)

// Server serves an agent on its two sockets.
type Server struct {
	agent *agent.Agent
	log   *slog.Logger
	// Level is that of the log. If it is nil, it cannot be changed.
	Level *loglevel.Level
	// StopTimeout bounds how long Serve waits for requests when it stops.
	StopTimeout time.Duration
}

// New returns a Server with a StopTimeout of 10 seconds.
func New(a *agent.Agent, log *slog.Logger) *Server {
	return &Server{agent: a, log: log, StopTimeout: 10 * time.Second}
}

// Serve serves the CNI plugin and isthmusctl, each on its socket, until the context is done. It then
// finishes the accepted requests, for StopTimeout at most, and closes the sockets. The agent's Run must not
// return before Serve does.
func (s *Server) Serve(ctx context.Context, sockets *socket.Sockets) error {
	clients, cut := context.WithCancel(context.Background())
	defer cut()
	requests := newRequestServer(clients, s.agent, s.log)
	inspection := grpc.NewServer(grpc.ConnectionTimeout(handshakeTimeout))
	isthmusv1.RegisterInspectServer(inspection, &inspectServer{agent: s.agent})
	if s.Level != nil {
		isthmusv1.RegisterControlServer(inspection, &controlServer{level: s.Level, log: s.log})
	}
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
		bound, cancel := context.WithTimeout(context.Background(), s.StopTimeout)
		defer cancel()
		// An error means that the loop has ended or is busy. The code below then cuts off the waiting
		// requests.
		_ = s.agent.Drain(bound)
		sockets.Requests.Close()
		inspection.GracefulStop()
		for range running {
			<-ended
		}
	}()
	select {
	case <-stopped:
	case <-time.After(s.StopTimeout):
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
