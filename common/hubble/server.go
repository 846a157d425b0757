// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/peer"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

const (
	// ServiceName is the service that clients check by the health protocol.
	ServiceName = "hubble.server.Observer"
	// versionHeader carries apiVersion: the oldest version of Hubble with all that this server uses. A client
	// warns if its own version is lower.
	versionHeader, apiVersion = "hubble-server-version", "1.16.0"
	// maxStreams bounds the streams of all clients. maxRequest is the size of a request in bytes.
	maxStreams, maxRequest = 64, 1 << 20
	handshakeTimeout       = 10 * time.Second
	// idleProbe is how long a client may be silent before the server checks that it still exists.
	idleProbe = 30 * time.Second
	// DefaultHistory is the number of flows that an agent keeps: about 4 MB. MinHistory and MaxHistory bound
	// it.
	DefaultHistory, MinHistory, MaxHistory = 4096, 64, 65536
)

// Config configures a Server.
type Config struct {
	// Node is the name of this node, Version that of the agent.
	Node, Version string
	// History is the number of kept flows.
	History int
	// Port is the port on which the agents of other nodes serve, or 0 if they do not.
	Port uint16
	// Source returns the flows of this node. Its error says why there are none.
	Source func() (*observe.Store, error)
	// Missed counts the events that the data path did not deliver since its start; nil if it cannot.
	Missed func(context.Context) (uint64, error)
	// Snapshot returns the newest snapshot, or nil.
	Snapshot func() *model.Snapshot
}

// Validate returns everything that is wrong with the Config.
func (c *Config) Validate() error {
	var errs []error
	if c.Node == "" {
		errs = append(errs, errors.New("the node has no name"))
	}
	if c.History < MinHistory || c.History > MaxHistory {
		errs = append(errs, fmt.Errorf("history of %d flows: give %d to %d", c.History, MinHistory, MaxHistory))
	}
	if c.Source == nil || c.Snapshot == nil {
		errs = append(errs, errors.New("there is no source of flows or of snapshots"))
	}
	return errors.Join(errs...)
}

// Server serves Observer, Peer and Health.
type Server struct {
	observer.UnimplementedObserverServer
	peer.UnimplementedPeerServer

	cfg   Config
	log   *slog.Logger
	start time.Time
	ring  *Ring
	// mapper and newest, the time of the newest flow, belong to the goroutine of feed.
	mapper *Mapper
	newest time.Time
	// unavailable is why there are no flows; nil if there are.
	unavailable atomic.Pointer[error]
	// streams holds a token per stream.
	streams chan struct{}
	// stopping is closed when the Server ends its streams.
	stopping chan struct{}
}

// New validates the Config and returns a Server.
func New(cfg Config, log *slog.Logger) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("serve Hubble's interface: %w", err)
	}
	now := time.Now()
	s := &Server{cfg: cfg, log: log, start: now, ring: NewRing(cfg.History), mapper: NewMapper(cfg.Node, cfg.Version, now, cfg.Snapshot),
		streams: make(chan struct{}, maxStreams), stopping: make(chan struct{})}
	starting := errors.New("the agent is starting")
	s.unavailable.Store(&starting)
	return s, nil
}

// Listener is an address on which a Server serves, and who may connect: nil credentials trust every client that
// the listener accepts.
type Listener struct {
	net.Listener
	Credentials credentials.TransportCredentials
}

// Serve copies flows and serves clients until the context is done or a listener fails. It closes the
// listeners. Call it once.
func (s *Server) Serve(ctx context.Context, listeners ...Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { s.feed(ctx) })
	ended := make(chan error, len(listeners))
	var servers []*grpc.Server
	for _, l := range listeners {
		g := s.grpcServer(l.Credentials)
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
		cancel()
	}
	close(s.stopping)
	for _, g := range servers {
		g.Stop()
	}
	running.Wait()
	return failed
}

func (s *Server) grpcServer(c credentials.TransportCredentials) *grpc.Server {
	options := []grpc.ServerOption{grpc.ConnectionTimeout(handshakeTimeout), grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxConcurrentStreams(maxStreams), grpc.KeepaliveParams(keepalive.ServerParameters{Time: idleProbe, Timeout: handshakeTimeout}),
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
	observer.RegisterObserverServer(g, s)
	peer.RegisterPeerServer(g, s)
	return g
}

// ServerStatus implements observer.ObserverServer.
func (s *Server) ServerStatus(context.Context, *observer.ServerStatusRequest) (*observer.ServerStatusResponse, error) {
	now := time.Now()
	f := s.ring.Stats(now)
	return &observer.ServerStatusResponse{NumFlows: f.Kept, MaxFlows: f.Size, SeenFlows: f.Seen, UptimeNs: uint64(now.Sub(s.start)),
		Version: "isthmus " + s.cfg.Version, FlowsRate: f.Rate}, nil
}

// GetNamespaces implements observer.ObserverServer. It lists the namespaces of the kept flows.
func (s *Server) GetNamespaces(context.Context, *observer.GetNamespacesRequest) (*observer.GetNamespacesResponse, error) {
	r := &observer.GetNamespacesResponse{}
	var names []string
	for n := range s.ring.Stats(time.Now()).Namespaces {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		r.Namespaces = append(r.Namespaces, &observer.Namespace{Cluster: Cluster, Namespace: n})
	}
	return r, nil
}
