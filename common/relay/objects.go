// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/page"
)

const (
	// keepObjects is how long objects are used without asking for newer ones.
	keepObjects = 15 * time.Second
	// readObjects bounds the wait for the objects of one agent.
	readObjects = 20 * time.Second
	// maxObjects bounds the objects in bytes. A cluster of 10,000 pods has about a twentieth.
	maxObjects = 128 << 20
	// maxAsked bounds the agents that one refresh tries.
	maxAsked = 5
)

// objects are those that an agent knows.
type objects struct {
	// turn holds a token while the other fields change.
	turn chan struct{}
	// newest is what pages show; nil before the first answer.
	newest atomic.Pointer[page.Cluster]
	// checked is the time of the last answer, nil before the first one, and node the agent that gave it. The monotonic reading
	// of checked counts: the clock may be set.
	checked atomic.Pointer[time.Time]
	node    atomic.Pointer[string]
	version string
}

// Objects returns the objects that policy depends on, as Refresh has read them; nil before that.
func (r *Relay) Objects() *page.Cluster { return r.objects.newest.Load() }

// Refresh reads the objects from an agent, unless they are new enough. If no agent answers and older objects are known, it
// marks these as stale.
func (r *Relay) Refresh(ctx context.Context) error {
	o := &r.objects
	fresh := func() bool {
		at := o.checked.Load()
		return at != nil && time.Since(*at) < keepObjects
	}
	if fresh() {
		return nil
	}
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	if fresh() {
		return nil
	}
	var errs []error
	for _, n := range r.askable() {
		c, version, err := n.objects(ctx, o.version)
		if err != nil {
			r.log.Warn("read objects from an agent", "node", n.name, "error", err)
			errs = append(errs, err)
			continue
		}
		if c != nil {
			o.newest.Store(c)
		} else if old := o.newest.Load(); old.Stale != "" {
			renewed := *old
			renewed.Stale = ""
			o.newest.Store(&renewed)
		}
		o.version = version
		o.node.Store(&n.name)
		now := time.Now()
		o.checked.Store(&now)
		return nil
	}
	if old := o.newest.Load(); old != nil {
		if old.Stale == "" {
			stale := *old
			stale.Stale = "no agent gives newer objects"
			o.newest.Store(&stale)
		}
		return nil
	}
	return status.Errorf(codes.Unavailable, "no agent gives the objects of the cluster: see the log of the relay (%d asked)", len(errs))
}

// askable returns agents to ask for objects: the one that gave the present ones, then others at random.
func (r *Relay) askable() []*node {
	list := slices.DeleteFunc(r.pool.list(), func(n *node) bool { return n.conn == nil })
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	if last := r.objects.node.Load(); last != nil {
		if i := slices.IndexFunc(list, func(n *node) bool { return n.name == *last }); i > 0 {
			list[0], list[i] = list[i], list[0]
		}
	}
	return list[:min(len(list), maxAsked)]
}

// objects reads the objects that an agent knows; nil if they have the given version.
func (n *node) objects(ctx context.Context, have string) (*page.Cluster, string, error) {
	ctx, cancel := context.WithTimeout(ctx, readObjects)
	defer cancel()
	late := time.AfterFunc(statusTimeout, cancel)
	defer late.Stop()
	stream, err := isthmusv1.NewExplainClient(n.conn).GetCluster(ctx, &isthmusv1.GetClusterRequest{Have: have})
	if err != nil {
		return nil, "", err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, "", err
	}
	late.Stop()
	switch version := first.GetVersion(); version {
	case "":
		return nil, "", errors.New("the agent names no version of its objects")
	case have:
		return nil, version, nil
	default:
		s, err := inspect.ReadObjects(&objectReader{stream: stream}, maxObjects)
		if err != nil {
			return nil, "", err
		}
		return &page.Cluster{Snapshot: s, Source: "The objects that an agent knows", At: time.Now()}, version, nil
	}
}

// objectReader reads the parts of a stream.
type objectReader struct {
	stream grpc.ServerStreamingClient[isthmusv1.GetClusterResponse]
	rest   []byte
}

// Read implements io.Reader.
func (r *objectReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		m, err := r.stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return 0, io.EOF
			}
			return 0, fmt.Errorf("receive objects: %w", err)
		}
		r.rest = m.GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
