// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/peer"
	"github.com/isthmus-net/isthmus/common/api/hubble/relay"
	"github.com/isthmus-net/isthmus/common/hubble"
)

// Relay serves the flows of all nodes of a Pool.
type Relay struct {
	observer.UnimplementedObserverServer
	peer.UnimplementedPeerServer

	pool    *Pool
	version string
	log     *slog.Logger
	start   time.Time
	// stopping is closed when the Relay ends its streams.
	stopping chan struct{}

	// checker decides what clients read; without it each reads everything.
	checker    *access.Checker
	checkEvery time.Duration
	// key hides from which nodes flows are.
	key []byte

	metrics *metrics
	health  health
	objects objects
	reports reports

	mutex sync.Mutex
	// open is the number of streams, streams that of each user.
	open    int
	streams map[string]int
}

// New returns a Relay of a version. Every client reads everything unless there is a Checker.
func New(pool *Pool, checker *access.Checker, version string, log *slog.Logger) *Relay {
	return &Relay{pool: pool, checker: checker, checkEvery: checkEvery, key: []byte(rand.Text()), version: version, log: log, start: time.Now(),
		metrics: newMetrics(), objects: objects{turn: make(chan struct{}, 1)}, stopping: make(chan struct{}), streams: make(map[string]int)}
}

// Serve serves clients until the context is done or a listener fails. It closes the listeners. Call it once.
func (r *Relay) Serve(ctx context.Context, listeners ...hubble.Listener) error {
	return hubble.ServeGRPC(ctx, listeners, maxCalls, func() { close(r.stopping) }, func(g *grpc.Server) {
		observer.RegisterObserverServer(g, r)
		peer.RegisterPeerServer(g, r)
	})
}

// answer is the status of a node.
type answer struct {
	node   *node
	status *observer.ServerStatusResponse
	err    error
}

// statuses reads the status of all nodes concurrently.
func (r *Relay) statuses(ctx context.Context) []answer {
	nodes := r.pool.list()
	all := make([]answer, len(nodes))
	var reading sync.WaitGroup
	for i, n := range nodes {
		reading.Go(func() {
			s, err := n.status(ctx)
			all[i] = answer{n, s, err}
		})
	}
	reading.Wait()
	return all
}

// ServerStatus implements observer.ObserverServer.
func (r *Relay) ServerStatus(ctx context.Context, _ *observer.ServerStatusRequest) (_ *observer.ServerStatusResponse, failed error) {
	defer func() { r.metrics.ended("status", failed) }()
	if err := r.require(ctx, access.Right{Verb: access.Get, Resource: access.Nodes}); err != nil {
		return nil, err
	}
	s := &observer.ServerStatusResponse{UptimeNs: uint64(time.Since(r.start)), Version: "isthmus-relay " + r.version}
	connected := uint32(0)
	for _, a := range r.statuses(ctx) {
		if a.err != nil {
			s.UnavailableNodes = append(s.UnavailableNodes, a.node.name)
			continue
		}
		connected++
		s.NumFlows += a.status.GetNumFlows()
		s.MaxFlows += a.status.GetMaxFlows()
		s.SeenFlows += a.status.GetSeenFlows()
		s.FlowsRate += a.status.GetFlowsRate()
	}
	s.NumConnectedNodes, s.NumUnavailableNodes = wrapperspb.UInt32(connected), wrapperspb.UInt32(uint32(len(s.GetUnavailableNodes())))
	return s, nil
}

// GetNodes implements observer.ObserverServer.
func (r *Relay) GetNodes(ctx context.Context, _ *observer.GetNodesRequest) (_ *observer.GetNodesResponse, failed error) {
	defer func() { r.metrics.ended("nodes", failed) }()
	if err := r.require(ctx, access.Right{Verb: access.Get, Resource: access.Nodes}); err != nil {
		return nil, err
	}
	list := &observer.GetNodesResponse{}
	for _, a := range r.statuses(ctx) {
		n := &observer.Node{Name: hubble.Cluster + "/" + a.node.name, Address: a.node.address, State: relay.NodeState_NODE_UNAVAILABLE,
			Tls: &observer.TLS{Enabled: r.pool.credentials != nil, ServerName: hubble.ServerName}}
		if a.err == nil {
			n.State, n.Version, n.UptimeNs = relay.NodeState_NODE_CONNECTED, a.status.GetVersion(), a.status.GetUptimeNs()
			n.NumFlows, n.MaxFlows, n.SeenFlows = a.status.GetNumFlows(), a.status.GetMaxFlows(), a.status.GetSeenFlows()
		}
		list.Nodes = append(list.Nodes, n)
	}
	return list, nil
}

// GetNamespaces implements observer.ObserverServer. It lists the namespaces of the nodes that answer.
func (r *Relay) GetNamespaces(ctx context.Context, _ *observer.GetNamespacesRequest) (_ *observer.GetNamespacesResponse, failed error) {
	defer func() { r.metrics.ended("namespaces", failed) }()
	if err := r.require(ctx, access.Right{Verb: access.Get, Resource: access.Flows}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var mutex sync.Mutex
	names := make(map[string]bool)
	var reading sync.WaitGroup
	for _, n := range r.pool.list() {
		if n.client == nil {
			continue
		}
		reading.Go(func() {
			s, err := n.client.GetNamespaces(ctx, &observer.GetNamespacesRequest{})
			if err != nil {
				r.log.Debug("read namespaces", "node", n.name, "error", err)
				return
			}
			mutex.Lock()
			defer mutex.Unlock()
			for _, ns := range s.GetNamespaces() {
				names[ns.GetNamespace()] = true
			}
		})
	}
	reading.Wait()
	list := &observer.GetNamespacesResponse{}
	for name := range names {
		list.Namespaces = append(list.Namespaces, &observer.Namespace{Cluster: hubble.Cluster, Namespace: name})
	}
	slices.SortFunc(list.Namespaces, func(a, b *observer.Namespace) int {
		if a.GetNamespace() < b.GetNamespace() {
			return -1
		}
		return 1
	})
	return list, nil
}

// GetAgentEvents implements observer.ObserverServer.
func (r *Relay) GetAgentEvents(*observer.GetAgentEventsRequest, grpc.ServerStreamingServer[observer.GetAgentEventsResponse]) error {
	return status.Error(codes.Unimplemented, "Isthmus reports no events of agents: see their metrics and logs")
}

// GetDebugEvents implements observer.ObserverServer.
func (r *Relay) GetDebugEvents(*observer.GetDebugEventsRequest, grpc.ServerStreamingServer[observer.GetDebugEventsResponse]) error {
	return status.Error(codes.Unimplemented, "Isthmus reports no debug events: use isthmusctl")
}

// maxMessage bounds the message of a state, in bytes: it may be an error that an agent chose.
const maxMessage = 512

// change reports a new state of nodes.
func change(state relay.NodeState, message string, names ...string) *observer.GetFlowsResponse {
	message = strings.ToValidUTF8(message[:min(maxMessage, len(message))], "")
	return &observer.GetFlowsResponse{Time: timestamppb.Now(), ResponseTypes: &observer.GetFlowsResponse_NodeStatus{
		NodeStatus: &relay.NodeStatusEvent{StateChange: state, NodeNames: names, Message: message}}}
}

// maxReason bounds the reason why a node does not answer, in bytes.
const maxReason = 200

// reason returns the reason of an error of a call, without the words of gRPC.
func reason(err error) string {
	text := status.Convert(err).Message()
	return strings.ToValidUTF8(text[:min(maxReason, len(text))], "")
}

// sendStates reports which nodes answer, and which do not and why. It returns those that do.
func sendStates(send func(*observer.GetFlowsResponse) error, all []answer) (connected []*node, err error) {
	var up, down []string
	var reasons strings.Builder
	for _, a := range all {
		if a.err != nil {
			down = append(down, a.node.name)
			if reasons.Len() < maxMessage { // change shortens the rest
				fmt.Fprintf(&reasons, "%s: %s; ", a.node.name, reason(a.err))
			}
			continue
		}
		up, connected = append(up, a.node.name), append(connected, a.node)
	}
	if len(up) > 0 {
		err = send(change(relay.NodeState_NODE_CONNECTED, "", up...))
	}
	if err == nil && len(down) > 0 {
		err = send(change(relay.NodeState_NODE_UNAVAILABLE, strings.TrimSuffix(reasons.String(), "; "), down...))
	}
	return connected, err
}
