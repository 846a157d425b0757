// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"

	"google.golang.org/grpc"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/relay/redact"
)

// Follow calls send for the answers to a request of this process, which reads everything, until the context is done.
// It does not call send concurrently.
func (r *Relay) Follow(ctx context.Context, request *observer.GetFlowsRequest, send func(*observer.GetFlowsResponse)) error {
	view, err := redact.NewView(access.Everything, request, r.key)
	if err != nil {
		return err
	}
	return r.flows(ctx, request, view, local{ctx: ctx, send: send})
}

// local is a stream inside of this process.
type local struct {
	grpc.ServerStreamingServer[observer.GetFlowsResponse]
	ctx  context.Context
	send func(*observer.GetFlowsResponse)
}

// Context implements grpc.ServerStream.
func (l local) Context() context.Context { return l.ctx }

// Send implements grpc.ServerStreamingServer.
func (l local) Send(m *observer.GetFlowsResponse) error {
	l.send(m)
	return nil
}
