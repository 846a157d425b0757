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

// Serve answers the CNI plugin and isthmusctl on a listener until the context
// is done; then it finishes the requests that were let in, for StopTimeout at
// most, and closes the listener. Run must go on until Serve returns.
func (a *Agent) Serve(ctx context.Context, listener net.Listener) error {
	calls, cut := context.WithCancel(context.Background())
	defer cut()
	cni := &cniServer{agent: a}
	server := grpc.NewServer(grpc.Creds(newDoor(calls, cni)))
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
		// An error means that the loop has ended or is busy: the requests that
		// wait are then cut off below.
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

// cniServer is the Agent behind the socket, counted.
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

// overGRPC executes one request of gRPC.
func overGRPC[Q, R any](ctx context.Context, s *cniServer, command string, q Q, f func(context.Context, Q) (R, error)) (R, error) {
	r, refused := serve(ctx, s, command, q, f)
	if refused != nil {
		return r, toStatus(refused)
	}
	return r, nil
}

// Add implements cniapi.CNIServer.
func (s *cniServer) Add(ctx context.Context, r *cniapi.AddRequest) (*cniapi.AddResponse, error) {
	return overGRPC(ctx, s, "ADD", r, s.agent.Add)
}

// Del implements cniapi.CNIServer.
func (s *cniServer) Del(ctx context.Context, r *cniapi.DelRequest) (*cniapi.DelResponse, error) {
	return overGRPC(ctx, s, "DEL", r, s.agent.Del)
}

// Check implements cniapi.CNIServer.
func (s *cniServer) Check(ctx context.Context, r *cniapi.CheckRequest) (*cniapi.CheckResponse, error) {
	return overGRPC(ctx, s, "CHECK", r, s.agent.Check)
}

// GC implements cniapi.CNIServer.
func (s *cniServer) GC(ctx context.Context, r *cniapi.GCRequest) (*cniapi.GCResponse, error) {
	return overGRPC(ctx, s, "GC", r, s.agent.GC)
}

// Status implements cniapi.CNIServer.
func (s *cniServer) Status(ctx context.Context, r *cniapi.StatusRequest) (*cniapi.StatusResponse, error) {
	return overGRPC(ctx, s, "STATUS", r, s.agent.Status)
}
