// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/api/hubble/peer"
	"github.com/isthmus-net/isthmus/common/hubble"
)

// Notify implements peer.PeerServer. It reports the agents of the Pool, and their changes, to a client that may list nodes.
// It asks for that right again from time to time, because a stream may outlive it.
func (r *Relay) Notify(_ *peer.NotifyRequest, stream grpc.ServerStreamingServer[peer.ChangeNotification]) (failed error) {
	defer func() { r.metrics.ended("peers", failed) }()
	ctx, right := stream.Context(), access.Right{Verb: access.Get, Resource: access.Nodes}
	if err := r.require(ctx, right); err != nil {
		return err
	}
	user, err := r.user(ctx)
	if err != nil {
		return err
	}
	leave, err := r.enter(user.Name)
	if err != nil {
		return err
	}
	defer leave()
	compare, check := time.NewTicker(hubble.PeersEvery), time.NewTicker(r.checkEvery)
	defer compare.Stop()
	defer check.Stop()
	sent := map[string]string{}
	for {
		next := make(map[string]string)
		for _, n := range r.pool.list() {
			next[n.name] = n.address
		}
		for _, c := range hubble.PeerChanges(sent, next) {
			if err := stream.Send(c); err != nil {
				return err
			}
		}
		sent = next
		select {
		case <-r.stopping:
			return status.Error(codes.Unavailable, "the relay is stopping")
		case <-ctx.Done():
			return ctx.Err()
		case <-check.C:
			if err := r.require(ctx, right); err != nil {
				return err
			}
		case <-compare.C:
		}
	}
}
