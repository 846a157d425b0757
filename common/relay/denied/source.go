// SPDX-License-Identifier: Apache-2.0

package denied

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/page"
)

const (
	// maxStreams bounds the calls of a Source at a time.
	maxStreams = 16
	// maxAnswer bounds an answer in bytes: one names all nodes of a cluster.
	maxAnswer = 1 << 20
	// wait bounds the time in which kept flows arrive.
	wait = 15 * time.Second
	// probe is how long a server may be silent before a Source checks that it still exists.
	probe = 30 * time.Second
	// redial bounds the time between two attempts to connect.
	redial = 2 * time.Second
)

// Config says where a Source reads flows.
type Config struct {
	// Name names the server in errors, such as "the relay localhost:4245".
	Name string
	// Hint says what to do if the server does not answer or does not know the client.
	Hint string
	// Dial connects to the server.
	Dial func(context.Context) (net.Conn, error)
	// TLS are the settings of connections; nil for connections that need no protection.
	TLS *tls.Config
	// Token returns the token of the client, which needs TLS. A nil function means that there is none.
	Token func() (string, error)
}

// Source reads denied flows from a server of Hubble's interface. It is safe for concurrent use.
type Source struct {
	config  Config
	conn    *grpc.ClientConn
	streams chan struct{}

	mutex sync.Mutex
	down  error // of the last Dial
}

// Open returns a Source. It connects when flows are read. The caller closes it.
func Open(c Config) (*Source, error) {
	if c.Token != nil && c.TLS == nil {
		return nil, errors.New("a token is sent over TLS only")
	}
	s := &Source{config: c, streams: make(chan struct{}, maxStreams)}
	transport := insecure.NewCredentials()
	if c.TLS != nil {
		transport = credentials.NewTLS(c.TLS)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithContextDialer(s.dial),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: redial / 4, Multiplier: 2, MaxDelay: redial}, MinConnectTimeout: wait}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: probe, Timeout: probe}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithDisableServiceConfig(),
	}
	if c.Token != nil {
		options = append(options, grpc.WithPerRPCCredentials(bearer(c.Token)))
	}
	var err error
	if s.conn, err = grpc.NewClient("passthrough:///server", options...); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", c.Name, err)
	}
	return s, nil
}

// Close ends the calls.
func (s *Source) Close() error { return s.conn.Close() }

// dial connects, and notes why it does not.
func (s *Source) dial(ctx context.Context, _ string) (net.Conn, error) {
	c, err := s.config.Dial(ctx)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.down = err
	return c, err
}

// Flows implements page.Config.Flows.
func (s *Source) Flows(ctx context.Context, q page.FlowQuery, send func(page.FlowEvent) error) error {
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		return page.Failed(http.StatusTooManyRequests, fmt.Errorf("%d pages of new flows are open already: close one of them", maxStreams))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !q.Follow {
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	stream, err := observer.NewObserverClient(s.conn).GetFlows(ctx, Request(q))
	if err == nil && q.Follow {
		err = send(page.FlowEvent{}) // the server sends nothing before the next flow, which may come much later
	}
	for err == nil {
		var m *observer.GetFlowsResponse
		if m, err = stream.Recv(); err == nil {
			err = send(Event(m))
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return s.explain(err)
}

// explain returns the error of a page for that of a call.
func (s *Source) explain(err error) error {
	code := status.Code(err)
	if code != codes.Unavailable && code != codes.Unauthenticated && code != codes.DeadlineExceeded {
		return Failed(err)
	}
	why := errors.New(status.Convert(err).Message())
	s.mutex.Lock()
	down := s.down
	s.mutex.Unlock()
	switch {
	case code == codes.DeadlineExceeded:
		why = fmt.Errorf("no answer within %s", wait)
	case code == codes.Unavailable && down != nil:
		why = down
	}
	// A browser that gets the status 401 would have to ask its user for a password.
	return page.Failed(http.StatusServiceUnavailable, fmt.Errorf("read flows of %s: %w: %s", s.config.Name, why, s.config.Hint))
}

// bearer sends a token with each call.
type bearer func() (string, error)

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := b()
	return map[string]string{"authorization": "Bearer " + token}, err
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (bearer) RequireTransportSecurity() bool { return true }
