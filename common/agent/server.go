// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/isthmus-net/isthmus/common/cniapi"
)

// Serve serves the CNI plugin and isthmusctl on a listener until the context is done. It then finishes the
// accepted requests, for StopTimeout at most, and closes the listener. Run must not return before Serve
// does.
func (a *Agent) Serve(ctx context.Context, listener net.Listener) error {
	calls, cut := context.WithCancel(context.Background())
	defer cut()
	cni := &cniServer{agent: a}
	server := grpc.NewServer(grpc.Creds(newProtocolMux(calls, cni)))
	cniapi.RegisterCNIServer(server, cni)
	cniapi.RegisterInspectServer(server, &inspectServer{agent: a})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
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
		a.flows.stop()
		server.GracefulStop()
	}()
	select {
	case <-stopped:
	case <-time.After(a.cfg.StopTimeout):
		cut()
		server.Stop()
		<-stopped
	}
	<-served
	return nil
}

// cniServer serves CNI requests with an Agent and counts them.
type cniServer struct {
	cniapi.UnimplementedCNIServer
	agent *Agent
}

// serve executes one request. The error is an *Error.
func serve[Q, R any](ctx context.Context, s *cniServer, command string, q Q, f func(context.Context, Q) (R, error)) (r R, refused *Error) {
	began := time.Now()
	r, err := f(ctx, q)
	s.agent.metrics.served(command, began, err)
	if err != nil {
		s.agent.log.Warn("CNI request", "command", command, "seconds", time.Since(began).Seconds(), "error", err)
		refused = asError(err)
	}
	return r, refused
}

// serveGRPC executes one gRPC request.
func serveGRPC[Q, R any](ctx context.Context, s *cniServer, command string, q Q, f func(context.Context, Q) (R, error)) (R, error) {
	r, refused := serve(ctx, s, command, q, f)
	if refused != nil {
		return r, toStatus(refused)
	}
	return r, nil
}

// Add implements cniapi.CNIServer.
func (s *cniServer) Add(ctx context.Context, r *cniapi.AddRequest) (*cniapi.AddResponse, error) {
	return serveGRPC(ctx, s, "ADD", r, s.agent.Add)
}

// Del implements cniapi.CNIServer.
func (s *cniServer) Del(ctx context.Context, r *cniapi.DelRequest) (*cniapi.DelResponse, error) {
	return serveGRPC(ctx, s, "DEL", r, s.agent.Del)
}

// Check implements cniapi.CNIServer.
func (s *cniServer) Check(ctx context.Context, r *cniapi.CheckRequest) (*cniapi.CheckResponse, error) {
	return serveGRPC(ctx, s, "CHECK", r, s.agent.Check)
}

// GC implements cniapi.CNIServer.
func (s *cniServer) GC(ctx context.Context, r *cniapi.GCRequest) (*cniapi.GCResponse, error) {
	return serveGRPC(ctx, s, "GC", r, s.agent.GC)
}

// Status implements cniapi.CNIServer.
func (s *cniServer) Status(ctx context.Context, r *cniapi.StatusRequest) (*cniapi.StatusResponse, error) {
	return serveGRPC(ctx, s, "STATUS", r, s.agent.Status)
}
