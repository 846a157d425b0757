// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/isthmus-net/isthmus/common/cnicall"
)

const (
	// handshakeTimeout bounds the time until a new connection has sent its request. closeTimeout bounds the
	// wait for the client to close after the answer.
	handshakeTimeout, closeTimeout = 10 * time.Second, time.Second
	// maxCall bounds one call, whatever timeout the client requests.
	maxCall = 15 * time.Minute
	// maxCalls bounds the number of concurrent calls.
	maxCalls = 512
)

// protocolMux is the handshake hook of the gRPC server. It recognises CNI plugin calls by their first
// bytes, answers them and closes the connection. It passes all other connections to gRPC.
type protocolMux struct {
	credentials.TransportCredentials
	// ctx ends when the server cuts off running calls.
	ctx    context.Context
	server *cniServer
	// slots holds one token per running call.
	slots chan struct{}
}

func newProtocolMux(ctx context.Context, s *cniServer) *protocolMux {
	return &protocolMux{TransportCredentials: insecure.NewCredentials(), ctx: ctx, server: s, slots: make(chan struct{}, maxCalls)}
}

// ServerHandshake implements credentials.TransportCredentials.
func (m *protocolMux) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	defer context.AfterFunc(m.ctx, func() { c.Close() })()
	if err := c.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, nil, err
	}
	begin := make([]byte, len(cnicall.Magic))
	if _, err := io.ReadFull(c, begin); err != nil {
		return nil, nil, err
	}
	if read := (&prefixedConn{Conn: c, begin: begin}); string(begin) != cnicall.Magic {
		return m.TransportCredentials.ServerHandshake(read)
	} else if err := m.call(read); err != nil {
		m.server.agent.log.Debug("call of the CNI plugin", "error", err)
	}
	return nil, nil, credentials.ErrConnDispatched
}

// prefixedConn is a connection whose first bytes have already been read.
type prefixedConn struct {
	net.Conn
	begin []byte
}

// Read implements net.Conn.
func (b *prefixedConn) Read(p []byte) (int, error) {
	if len(b.begin) == 0 {
		return b.Conn.Read(p)
	}
	n := copy(p, b.begin)
	b.begin = b.begin[n:]
	return n, nil
}

// call answers the request of a connection and closes the connection.
func (m *protocolMux) call(c net.Conn) error {
	defer c.Close()
	request, err := cnicall.Read(c)
	if errors.Is(err, cnicall.ErrVersion) {
		return errors.Join(err, reject(c, refusal(errOtherVersion)))
	}
	if err != nil {
		return err
	}
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	default:
		return reject(c, refusal(refuse(CodeTryAgain, "the runtime will try again", "isthmus-agent already serves %d requests", maxCalls)))
	}
	timeout := maxCall
	if request.Timeout > 0 {
		timeout = min(timeout, request.Timeout)
	}
	ctx, cancel := context.WithTimeout(m.ctx, timeout)
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
	answer := m.server.call(ctx, request)
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
func reject(c net.Conn, answer cnicall.Frame) error {
	err := answer.Write(c)
	c.SetReadDeadline(time.Now().Add(closeTimeout))
	c.Read(make([]byte, 1))
	return err
}

var errOtherVersion = refuse(CodeInternal, "install the same version of the plugin and the agent", "isthmus-agent does not support this request")

// call executes a request.
func (s *cniServer) call(ctx context.Context, f cnicall.Frame) cnicall.Frame {
	switch f.Kind {
	case cnicall.Add:
		return serveFrame(ctx, s, "ADD", f.Body, s.agent.Add)
	case cnicall.Del:
		return serveFrame(ctx, s, "DEL", f.Body, s.agent.Del)
	case cnicall.Check:
		return serveFrame(ctx, s, "CHECK", f.Body, s.agent.Check)
	case cnicall.GC:
		return serveFrame(ctx, s, "GC", f.Body, s.agent.GC)
	case cnicall.Status:
		return serveFrame(ctx, s, "STATUS", f.Body, s.agent.Status)
	}
	return refusal(errOtherVersion)
}

// message is a pointer to a Q that implements proto.Message.
type message[Q any] interface {
	*Q
	proto.Message
}

// serveFrame executes one request of a frame. It ignores unknown fields, as gRPC does.
func serveFrame[Q any, M message[Q], R proto.Message](ctx context.Context, s *cniServer, command string, body []byte, f func(context.Context, M) (R, error)) cnicall.Frame {
	q := M(new(Q))
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body, q); err != nil {
		return refusal(blame(CodeInternal, err, "decode the %s request", command))
	}
	r, refused := serve(ctx, s, command, q, f)
	if refused != nil {
		return refusal(refused)
	}
	answer, err := protojson.Marshal(r)
	if err != nil {
		return refusal(blame(CodeInternal, err, "encode the response to %s", command))
	}
	return cnicall.Frame{Kind: cnicall.Done, Body: answer}
}

func refusal(e *Error) cnicall.Frame {
	body, err := json.Marshal(cnicall.Error{Code: e.Code, Msg: e.Msg, Details: e.Details})
	if err != nil {
		panic(err) // cannot happen: the struct has three JSON fields
	}
	return cnicall.Frame{Kind: cnicall.Refused, Body: body}
}
