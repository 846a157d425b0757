// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"context"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/peer"
	"github.com/isthmus-net/isthmus/common/api/hubble/relay"
	"github.com/isthmus-net/isthmus/common/model"
)

// PeersEvery is the interval of comparing the nodes with those that a client knows.
const PeersEvery = 2 * time.Second

// Peers returns the address of the Observer of each node, by name; empty for a node without one.
func Peers(s *model.Snapshot, port uint16) map[string]string {
	found := make(map[string]string)
	if s == nil {
		return found
	}
	for _, n := range s.Nodes.All() {
		found[n.Name] = ""
		if len(n.Addresses) > 0 && port != 0 {
			found[n.Name] = net.JoinHostPort(n.Addresses[0].String(), strconv.Itoa(int(port)))
		}
	}
	return found
}

// Notify implements peer.PeerServer.
func (s *Server) Notify(_ *peer.NotifyRequest, stream grpc.ServerStreamingServer[peer.ChangeNotification]) error {
	leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	var known *model.Snapshot
	sent := map[string]string{}
	for {
		if now := s.cfg.Snapshot(); now != known {
			known = now
			next := Peers(now, s.cfg.Port)
			for _, c := range PeerChanges(sent, next) {
				if err := stream.Send(c); err != nil {
					return err
				}
			}
			sent = next
		}
		select {
		case <-s.stopping:
			return status.Error(codes.Unavailable, "the agent is stopping")
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-time.After(PeersEvery):
		}
	}
}

// PeerChanges returns the differences of two lists of addresses by name, in order of the names.
func PeerChanges(before, after map[string]string) (list []*peer.ChangeNotification) {
	names := slices.Sorted(maps.Keys(before))
	for n := range after {
		if _, ok := before[n]; !ok {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	for _, n := range names {
		was, had := before[n]
		is, has := after[n]
		c := &peer.ChangeNotification{Name: n, Address: is, Tls: &peer.TLS{ServerName: ServerName}}
		switch {
		case !has:
			c.Type, c.Address = peer.ChangeNotificationType_PEER_DELETED, was
		case !had:
			c.Type = peer.ChangeNotificationType_PEER_ADDED
		case was != is:
			c.Type = peer.ChangeNotificationType_PEER_UPDATED
		default:
			continue
		}
		list = append(list, c)
	}
	return list
}

// GetNodes implements observer.ObserverServer. An agent knows the state of its own node only.
func (s *Server) GetNodes(ctx context.Context, _ *observer.GetNodesRequest) (*observer.GetNodesResponse, error) {
	f, err := s.ServerStatus(ctx, nil)
	if err != nil {
		return nil, err
	}
	return &observer.GetNodesResponse{Nodes: []*observer.Node{{Name: absolute(s.cfg.Node), Version: f.GetVersion(), State: relay.NodeState_NODE_CONNECTED,
		Address: Peers(s.cfg.Snapshot(), s.cfg.Port)[s.cfg.Node], UptimeNs: f.GetUptimeNs(), NumFlows: f.GetNumFlows(), MaxFlows: f.GetMaxFlows(),
		SeenFlows: f.GetSeenFlows(), Tls: &observer.TLS{Enabled: s.cfg.Port != 0, ServerName: ServerName}}}}, nil
}
