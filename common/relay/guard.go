// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/relay/redact"
)

const (
	// checkEvery is the interval of checking whether the client of a stream still may read it.
	checkEvery = 30 * time.Second
	// maxStreams bounds the streams of all clients. Each is a stream of every agent, of whose streams a relay takes a quarter. So
	// two relays, and a third one during an update, leave some for exports, calls about a node and the tools on it.
	maxStreams = hubble.MaxStreams / 4
	// maxUserStreams bounds the streams of a user, maxCalls the calls on a connection of a client.
	maxUserStreams, maxCalls = 16, 64
	// maxAnswer bounds an answer of an agent, in bytes: the relay holds thousands of them. Those of Isthmus have about 20 KiB
	// at most, for two pods with many labels.
	maxAnswer = 64 << 10
)

// token returns the token of a client: a bearer token, or the password of basic authentication, which the hubble
// command sends. It is empty if there is none.
func token(ctx context.Context) string {
	given := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(given) != 1 {
		return ""
	}
	scheme, value, _ := strings.Cut(given[0], " ")
	switch strings.ToLower(scheme) {
	case "bearer":
		return value
	case "basic":
		decoded, err := base64.StdEncoding.DecodeString(value)
		if err != nil {
			return ""
		}
		_, password, _ := strings.Cut(string(decoded), ":")
		return password
	}
	return ""
}

// user authenticates the client of a call. Without a Checker the listener has done so.
func (r *Relay) user(ctx context.Context) (access.User, error) {
	if r.checker == nil {
		return access.User{}, nil
	}
	u, err := r.checker.User(ctx, token(ctx))
	return u, r.refusal(err)
}

// require returns an error unless the client of a call has a right.
func (r *Relay) require(ctx context.Context, right access.Right) error {
	u, err := r.user(ctx)
	if err != nil || r.checker == nil {
		return err
	}
	return r.refusal(r.checker.Check(ctx, u, right))
}

// scope returns what a client may read who makes a request for flows.
func (r *Relay) scope(ctx context.Context, request *observer.GetFlowsRequest) (access.User, access.Scope, error) {
	if r.checker == nil {
		return access.User{}, access.Everything, nil
	}
	u, err := r.user(ctx)
	if err != nil {
		return u, access.Scope{}, err
	}
	namespaces, err := redact.Namespaces(request)
	if err != nil {
		return u, access.Scope{}, status.Error(codes.InvalidArgument, err.Error())
	}
	verb := access.Get
	if request.GetFollow() {
		verb = access.Watch
	}
	s, err := r.checker.Scope(ctx, u, verb, namespaces)
	if denied := (*access.DeniedError)(nil); errors.As(err, &denied) && len(namespaces) == 0 {
		r.log.Info("access refused", "user", u.Name, "right", denied.Right.String())
		return u, s, status.Errorf(codes.PermissionDenied, "%v: name namespaces whose flows you may read, as with hubble observe --namespace", denied)
	}
	return u, s, r.refusal(err)
}

// refusal turns an error of a Checker into that of a call. Without an answer of the API server access is refused.
func (r *Relay) refusal(err error) error {
	denied := (*access.DeniedError)(nil)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, access.ErrUnauthenticated):
		return status.Errorf(codes.Unauthenticated, "%v: send a token of the cluster as bearer token, or as password of basic authentication", access.ErrUnauthenticated)
	case errors.Is(err, access.ErrTooMany):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.As(err, &denied):
		r.log.Info("access refused", "user", denied.User, "right", denied.Right.String())
		return status.Error(codes.PermissionDenied, denied.Error())
	}
	r.log.Warn("access refused: the API server gives no answer", "error", err)
	return status.Error(codes.Unavailable, "access is refused: the API server gives no answer about your rights: try again later")
}

// enter counts a stream of a user. The caller calls leave at its end.
func (r *Relay) enter(user string) (leave func(), err error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.checker != nil && r.streams[user] >= maxUserStreams {
		return nil, status.Errorf(codes.ResourceExhausted, "user %q has %d streams already: end one of them", user, maxUserStreams)
	}
	if r.open >= maxStreams {
		return nil, status.Errorf(codes.ResourceExhausted, "%d streams are open already: try again later", maxStreams)
	}
	r.open++
	r.streams[user]++
	r.metrics.streams.Set(float64(r.open))
	return func() {
		r.mutex.Lock()
		defer r.mutex.Unlock()
		r.open--
		r.metrics.streams.Set(float64(r.open))
		if r.streams[user]--; r.streams[user] == 0 {
			delete(r.streams, user)
		}
	}, nil
}

// guard ends a stream when its client may no longer read all that it could at the beginning.
func (r *Relay) guard(ctx context.Context, end context.CancelCauseFunc, request *observer.GetFlowsRequest, scope access.Scope) {
	if r.checker == nil {
		return
	}
	ticker := time.NewTicker(r.checkEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		_, now, err := r.scope(ctx, request)
		if err == nil && !now.Equal(scope) {
			err = status.Error(codes.PermissionDenied, "your rights have changed: send the request again")
		}
		if err != nil {
			end(err)
			return
		}
	}
}

// shown is a stream that shows states of nodes by a View. Flows come from readers, which show them already.
type shown struct {
	grpc.ServerStreamingServer[observer.GetFlowsResponse]
	view    *redact.View
	metrics *metrics
}

// Send sends what the client sees of an answer.
func (s shown) Send(m *observer.GetFlowsResponse) error {
	if m = s.view.State(m); m == nil {
		return nil
	}
	err := s.ServerStreamingServer.Send(m)
	if err == nil {
		s.metrics.sent(m)
	}
	return err
}

// reader reads the answers of an agent, as a View shows them.
type reader struct {
	node   string
	stream grpc.ServerStreamingClient[observer.GetFlowsResponse]
	view   *redact.View
	// after gets the position after the last answer; it may be nil.
	after *hubble.Position
}

// read sends the request of a View to an agent.
func read(ctx context.Context, n *node, request *observer.GetFlowsRequest, view *redact.View) (*reader, error) {
	stream, err := n.client.GetFlows(ctx, request)
	return &reader{n.name, stream, view, nil}, err
}

// resume sends the request of a View to an agent, to continue after a position. The reader advances it.
func resume(ctx context.Context, n *node, request *observer.GetFlowsRequest, view *redact.View, after *hubble.Position) (*reader, error) {
	r, err := read(after.Request(ctx), n, request, view)
	if err != nil {
		return nil, err
	}
	header, err := r.stream.Header()
	if err != nil {
		return nil, err
	}
	after.Begin(header)
	r.after = after
	return r, nil
}

// Recv returns the next answer of which the client sees something. A lost event stands for an answer that is too large. All
// times of an answer are dates.
func (r *reader) Recv() (*observer.GetFlowsResponse, error) {
	for {
		m, err := r.stream.Recv()
		if err != nil {
			return nil, err
		}
		if r.after != nil {
			r.after.Advance(m)
		}
		m.IsthmusPosition = 0
		if proto.Size(m) > maxAnswer {
			now := stamp(time.Now())
			m = &observer.GetFlowsResponse{NodeName: r.node, Time: now, ResponseTypes: &observer.GetFlowsResponse_LostEvents{
				LostEvents: &flow.LostEvent{NumEventsLost: max(1, m.GetLostEvents().GetNumEventsLost()), Last: now}}}
		}
		date(m, time.Now())
		if m = r.view.Flow(m); m != nil {
			return m, nil
		}
	}
}

// date replaces the times of an answer that are no dates by that of its arrival. JSON has no form for them, so that clients
// that write it would fail.
func date(m *observer.GetFlowsResponse, arrived time.Time) {
	if !m.GetTime().IsValid() {
		m.Time = stamp(arrived)
	}
	replace := func(t *timestamppb.Timestamp) *timestamppb.Timestamp {
		if t == nil || t.IsValid() { // a mask may leave it out
			return t
		}
		return m.GetTime()
	}
	if f := m.GetFlow(); f != nil {
		f.Time = replace(f.GetTime())
	}
	if l := m.GetLostEvents(); l != nil {
		l.First, l.Last = replace(l.GetFirst()), replace(l.GetLast())
	}
}
