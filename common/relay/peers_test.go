// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/api/hubble/peer"
)

// peersOf starts a relay over a Pool, and returns a client of its list of peers.
func peersOf(t *testing.T, pool *Pool, checker *access.Checker) peer.PeerClient {
	t.Helper()
	r := New(pool, checker, "1", quietLog)
	r.checkEvery = 20 * time.Millisecond
	conn, _ := dial(t, r)
	return peer.NewPeerClient(conn)
}

// changes reads a number of changes from a stream.
func changes(t *testing.T, stream grpc.ServerStreamingClient[peer.ChangeNotification], number int) string {
	t.Helper()
	var list []string
	for range number {
		c, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprint(c.GetType(), " ", c.GetName(), " ", c.GetAddress()))
	}
	return strings.Join(list, ", ")
}

// TestPeers follows the nodes of a relay while they change.
func TestPeers(t *testing.T) {
	pool := NewPool(nil, quietLog)
	t.Cleanup(pool.Close)
	if err := pool.Set(map[string]string{"a": "unix:///a", "b": "unix:///b", "deaf": ""}); err != nil {
		t.Fatal(err)
	}
	stream, err := peersOf(t, pool, nil).Notify(t.Context(), &peer.NotifyRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := changes(t, stream, 3), "PEER_ADDED a unix:///a, PEER_ADDED b unix:///b, PEER_ADDED deaf "; got != want {
		t.Errorf("first: %s, want %s", got, want)
	}
	if err := pool.Set(map[string]string{"a": "unix:///other", "c": "unix:///c", "deaf": ""}); err != nil {
		t.Fatal(err)
	}
	if got, want := changes(t, stream, 3), "PEER_UPDATED a unix:///other, PEER_DELETED b unix:///b, PEER_ADDED c unix:///c"; got != want {
		t.Errorf("after a change: %s, want %s", got, want)
	}
}

// TestPeersNeedARight: who may not list nodes follows none, and a stream ends if the API server gives no answer any more.
func TestPeersNeedARight(t *testing.T) {
	by := &authority{}
	var ahead atomic.Int64
	pool := NewPool(nil, quietLog)
	t.Cleanup(pool.Close)
	if err := pool.Set(map[string]string{"a": "unix:///a"}); err != nil {
		t.Fatal(err)
	}
	client := peersOf(t, pool, access.NewChecker(by, func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }))
	for ctx, want := range map[context.Context]codes.Code{t.Context(): codes.Unauthenticated, bearer(t.Context(), "shop"): codes.PermissionDenied} {
		stream, err := client.Notify(ctx, &peer.NotifyRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if c, err := stream.Recv(); status.Code(err) != want {
			t.Errorf("%v, %v, want %s", c, err, want)
		}
	}
	stream, err := client.Notify(bearer(t.Context(), "admin"), &peer.NotifyRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := changes(t, stream, 1); got != "PEER_ADDED a unix:///a" {
		t.Errorf("an administrator sees %s", got)
	}
	by.down.Store(true)
	ahead.Store(int64(access.AllowFor))
	if c, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("without an API server: %v, %v", c, err)
	}
}
