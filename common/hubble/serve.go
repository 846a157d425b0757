// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
)

const (
	// ServiceName is the service that clients check by the health protocol.
	ServiceName = "hubble.server.Observer"
	// versionHeader carries apiVersion: the oldest version of Hubble with all that this server uses. A client
	// warns if its own version is lower.
	versionHeader, apiVersion = "hubble-server-version", "1.16.0"
	// MaxStreams bounds the streams of all clients of an agent, and the calls on a connection to it. A relay opens a stream for
	// each of its clients, over one connection.
	MaxStreams = 512
	// maxRequest is the size of a request in bytes.
	maxRequest       = 1 << 20
	handshakeTimeout = 10 * time.Second
	// idleProbe is how long a client may be silent before the server checks that it still exists.
	idleProbe = 30 * time.Second
	// lastAnswers bounds the time in which calls may end after the server has stopped.
	lastAnswers = 2 * time.Second
)

// Listener is an address on which a server serves, and the clients that may connect: nil credentials trust every client that
// the listener accepts.
type Listener struct {
	net.Listener
	Credentials credentials.TransportCredentials
}

// ServeGRPC serves what register registers, and Health, until the context is done or a listener fails. Then it
// calls stop, which ends the streams, and closes the listeners. A connection has a number of calls at most; further ones wait.
func ServeGRPC(ctx context.Context, listeners []Listener, calls uint32, stop func(), register func(*grpc.Server)) error {
	var running sync.WaitGroup
	ended := make(chan error, len(listeners))
	var servers []*grpc.Server
	for _, l := range listeners {
		g := grpcServer(l.Credentials, calls)
		register(g)
		servers = append(servers, g)
		running.Go(func() {
			if err := g.Serve(l.Listener); err != nil {
				ended <- fmt.Errorf("serve Hubble's interface on %s: %w", l.Addr(), err)
			}
		})
	}
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-ended:
	}
	stop()
	for _, g := range servers {
		running.Go(func() { end(g) })
	}
	running.Wait()
	return failed
}

// end stops a server. Calls in progress, and the last answers of streams, get a short time to reach their clients.
func end(g *grpc.Server) {
	late := time.AfterFunc(lastAnswers, g.Stop)
	defer late.Stop()
	g.GracefulStop()
}

func grpcServer(c credentials.TransportCredentials, calls uint32) *grpc.Server {
	options := []grpc.ServerOption{grpc.ConnectionTimeout(handshakeTimeout), grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxConcurrentStreams(calls), grpc.KeepaliveParams(keepalive.ServerParameters{Time: idleProbe, Timeout: handshakeTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: handshakeTimeout, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			if err := grpc.SetHeader(ctx, metadata.Pairs(versionHeader, apiVersion)); err != nil {
				return nil, err
			}
			return h(ctx, request)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			if err := stream.SetHeader(metadata.Pairs(versionHeader, apiVersion)); err != nil {
				return err
			}
			return h(srv, stream)
		})}
	if c != nil {
		options = append(options, grpc.Creds(c))
	}
	g, h := grpc.NewServer(options...), health.NewServer()
	h.SetServingStatus(ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(g, h)
	return g
}
