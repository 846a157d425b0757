// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/peer"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

const (
	// DefaultHistory is the number of flows that an agent keeps: about 2 MB.
	DefaultHistory = 4096
	// MinHistory is the minimum of Config.History.
	MinHistory = 64
	// MaxHistory is the maximum of Config.History.
	MaxHistory = 65536
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
	// Snapshot returns the newest snapshot, or nil.
	Snapshot func() *model.Snapshot
	// Newest gets the identifiers of the newest flows; it may be nil.
	Newest *observe.Newest
	// Beside registers further services for the same clients; it may be nil.
	Beside func(*grpc.Server)
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
	// unavailable is why there are no flows, or not all; nil if there are.
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
		streams: make(chan struct{}, MaxStreams), stopping: make(chan struct{})}
	return s, nil
}

// Serve copies flows and serves clients until the context is done or a listener fails. It closes the
// listeners. Call it once.
func (s *Server) Serve(ctx context.Context, listeners ...Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var feeding sync.WaitGroup
	asked := make(chan struct{}) // closed when the source of flows has answered
	feeding.Go(func() { s.feed(ctx, sync.OnceFunc(func() { close(asked) })) })
	select {
	case <-asked: // so that the first clients get the kept flows, or the reason why there are none
	case <-ctx.Done():
	}
	err := ServeGRPC(ctx, listeners, MaxStreams, func() { close(s.stopping) }, func(g *grpc.Server) {
		observer.RegisterObserverServer(g, s)
		peer.RegisterPeerServer(g, s)
		if s.cfg.Beside != nil {
			s.cfg.Beside(g)
		}
	})
	cancel()
	feeding.Wait()
	return err
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
