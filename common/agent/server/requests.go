// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
)

const (
	// handshakeTimeout bounds the time until a new connection has sent its request. closeTimeout bounds the
	// wait for the client to close after the answer.
	handshakeTimeout, closeTimeout = 10 * time.Second, time.Second
	// maxCall bounds one call, whatever timeout the client requests.
	maxCall = 15 * time.Minute
	// maxCalls bounds the number of concurrent calls.
	maxCalls = 512
	// acceptRetryMin and acceptRetryMax bound the wait after a failed accept, as when file descriptors run
	// out.
	acceptRetryMin, acceptRetryMax = 5 * time.Millisecond, time.Second
)

// requestServer serves the CNI plugin: one request per connection.
type requestServer struct {
	agent *agent.Agent
	log   *slog.Logger
	// ctx ends when the server cuts off running calls.
	ctx context.Context
	// slots holds one token per running call.
	slots chan struct{}
}

func newRequestServer(ctx context.Context, a *agent.Agent, log *slog.Logger) *requestServer {
	return &requestServer{agent: a, log: log, ctx: ctx, slots: make(chan struct{}, maxCalls)}
}

// serve answers connections until the listener is closed. It then waits for the calls that run.
func (s *requestServer) serve(l net.Listener) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	retry := acceptRetryMin
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			if !passes(err) {
				return err
			}
			s.log.Warn("accept CNI request", "error", err, "again in", retry)
			select {
			case <-s.ctx.Done():
			case <-time.After(retry):
			}
			retry = min(2*retry, acceptRetryMax)
			continue
		}
		retry = acceptRetryMin
		calls.Go(func() {
			defer c.Close()
			if err := s.serveConn(c); err != nil {
				s.log.Debug("call of the CNI plugin", "error", err)
			}
		})
	}
}

// passes reports whether an error of Accept may go away, as when file descriptors run out.
func passes(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

// serveConn answers the request of a connection.
func (s *requestServer) serveConn(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	request, err := cniframe.Read(c)
	if errors.Is(err, cniframe.ErrVersion) {
		return errors.Join(err, reject(c, refusal(errOtherVersion)))
	}
	if err != nil {
		return err
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return reject(c, refusal(errTooMany))
	}
	timeout := maxCall
	if request.Timeout > 0 {
		timeout = min(timeout, request.Timeout)
	}
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	if err := c.SetDeadline(time.Time{}); err != nil {
		return err
	}
	// The plugin sends nothing more, so this read ends when the plugin closes. Then the answer is no longer
	// needed.
	left := make(chan struct{})
	go func() {
		defer close(left)
		defer cancel()
		c.Read(make([]byte, 1))
	}()
	answer := s.call(ctx, request)
	if err := c.SetWriteDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	err = answer.Write(c)
	// The plugin closes first: closing a pipe may lose data that the plugin has not read.
	select {
	case <-left:
	case <-time.After(closeTimeout):
		c.Close()
		<-left
	}
	return err
}

// reject sends a final answer on a connection that the caller then closes. It waits up to closeTimeout for
// the client to close first.
func reject(c net.Conn, answer cniframe.Frame) error {
	err := answer.Write(c)
	c.SetReadDeadline(time.Now().Add(closeTimeout))
	c.Read(make([]byte, 1))
	return err
}

var (
	errOtherVersion = &agent.Error{Code: agent.CodeInternal, Msg: "isthmus-agent does not support this request",
		Details: "install the same version of the plugin and the agent"}
	errTooMany = &agent.Error{Code: agent.CodeTryAgain, Msg: fmt.Sprintf("isthmus-agent already serves %d requests", maxCalls),
		Details: "the runtime will try again"}
)

// call executes a request.
func (s *requestServer) call(ctx context.Context, f cniframe.Frame) cniframe.Frame {
	switch a := s.agent; f.Kind {
	case cniframe.Add:
		return serve(ctx, "ADD", f.Body, a.Add)
	case cniframe.Del:
		return serve(ctx, "DEL", f.Body, empty(a.Del))
	case cniframe.Check:
		return serve(ctx, "CHECK", f.Body, empty(a.Check))
	case cniframe.GC:
		return serve(ctx, "GC", f.Body, a.GC)
	case cniframe.Status:
		return serve(ctx, "STATUS", f.Body, empty(a.Status))
	}
	return refusal(errOtherVersion)
}

// empty makes a function without a result return an empty answer.
func empty[Q any](f func(context.Context, *Q) error) func(context.Context, *Q) (struct{}, error) {
	return func(ctx context.Context, q *Q) (struct{}, error) { return struct{}{}, f(ctx, q) }
}

// serve executes one request. It ignores unknown fields.
func serve[Q, R any](ctx context.Context, command string, body []byte, f func(context.Context, *Q) (R, error)) cniframe.Frame {
	q := new(Q)
	if err := json.Unmarshal(body, q); err != nil {
		return refusal(internal(err, "decode the %s request", command))
	}
	r, err := f(ctx, q)
	if err != nil {
		return refusal(agent.AsError(err))
	}
	answer, err := json.Marshal(r)
	if err != nil {
		return refusal(internal(err, "encode the response to %s", command))
	}
	return cniframe.Frame{Kind: cniframe.Done, Body: answer}
}

func internal(cause error, format string, args ...any) *agent.Error {
	return &agent.Error{Code: agent.CodeInternal, Msg: fmt.Sprintf(format, args...), Details: cause.Error()}
}

func refusal(e *agent.Error) cniframe.Frame {
	body, err := json.Marshal(cniframe.Error{Code: e.Code, Msg: e.Msg, Details: e.Details})
	if err != nil {
		panic(err) // cannot happen: the struct has three JSON fields
	}
	return cniframe.Frame{Kind: cniframe.Refused, Body: body}
}
