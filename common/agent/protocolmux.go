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
	// greeting is how long a connection may be open before it has said what it
	// wants, and farewell how long after the answer.
	greeting, farewell = 10 * time.Second, time.Second
	// maxCall bounds a call, whatever its caller says.
	maxCall = 15 * time.Minute
	// maxCalls bounds those that are answered at the same time.
	maxCalls = 512
)

// door is where gRPC's server hands over a connection before it speaks. The
// plugin's calls are recognised by their first bytes, answered, and end there;
// all else is gRPC.
type door struct {
	credentials.TransportCredentials
	// ctx ends when calls are to be cut off.
	ctx    context.Context
	server *cniServer
	// places holds a token for each call.
	places chan struct{}
}

func newDoor(ctx context.Context, s *cniServer) *door {
	return &door{TransportCredentials: insecure.NewCredentials(), ctx: ctx, server: s, places: make(chan struct{}, maxCalls)}
}

// ServerHandshake implements credentials.TransportCredentials.
func (d *door) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	defer context.AfterFunc(d.ctx, func() { c.Close() })()
	if err := c.SetDeadline(time.Now().Add(greeting)); err != nil {
		return nil, nil, err
	}
	begin := make([]byte, len(cnicall.Magic))
	if _, err := io.ReadFull(c, begin); err != nil {
		return nil, nil, err
	}
	if read := (&begun{Conn: c, begin: begin}); string(begin) != cnicall.Magic {
		return d.TransportCredentials.ServerHandshake(read)
	} else if err := d.call(read); err != nil {
		d.server.agent.log.Debug("call of the CNI plugin", "error", err)
	}
	return nil, nil, credentials.ErrConnDispatched
}

// begun is a connection of which some bytes have been read.
type begun struct {
	net.Conn
	begin []byte
}

// Read implements net.Conn.
func (b *begun) Read(p []byte) (int, error) {
	if len(b.begin) == 0 {
		return b.Conn.Read(p)
	}
	n := copy(p, b.begin)
	b.begin = b.begin[n:]
	return n, nil
}

// call answers the request of a connection and closes that.
func (d *door) call(c net.Conn) error {
	defer c.Close()
	request, err := cnicall.Read(c)
	if errors.Is(err, cnicall.ErrVersion) {
		return errors.Join(err, bye(c, refusal(errOtherVersion)))
	}
	if err != nil {
		return err
	}
	select {
	case d.places <- struct{}{}:
		defer func() { <-d.places }()
	default:
		return bye(c, refusal(refuse(CodeTryAgain, "the runtime will try again", "isthmus-agent has %d requests to answer already", maxCalls)))
	}
	timeout := maxCall
	if request.Timeout > 0 {
		timeout = min(timeout, request.Timeout)
	}
	ctx, cancel := context.WithTimeout(d.ctx, timeout)
	defer cancel()
	if err := c.SetDeadline(time.Time{}); err != nil {
		return err
	}
	// Nothing more is to come: the read ends when the plugin does, and nobody
	// waits for an answer then.
	left := make(chan struct{})
	go func() {
		defer close(left)
		defer cancel()
		c.Read(make([]byte, 1))
	}()
	answer := d.server.call(ctx, request)
	if err := c.SetWriteDeadline(time.Now().Add(greeting)); err != nil {
		return err
	}
	err = answer.Write(c)
	// The plugin leaves first: a pipe that is closed may lose what was not read.
	select {
	case <-left:
	case <-time.After(farewell):
		c.Close()
		<-left
	}
	return err
}

// bye sends an answer to who is not listened to any further.
func bye(c net.Conn, answer cnicall.Frame) error {
	err := answer.Write(c)
	c.SetReadDeadline(time.Now().Add(farewell))
	c.Read(make([]byte, 1))
	return err
}

var errOtherVersion = refuse(CodeInternal, "install the plugin and the agent of one version", "isthmus-agent does not know this request")

// call executes a request.
func (s *cniServer) call(ctx context.Context, f cnicall.Frame) cnicall.Frame {
	switch f.Kind {
	case cnicall.Add:
		return overFrame(ctx, s, "ADD", f.Body, s.agent.Add)
	case cnicall.Del:
		return overFrame(ctx, s, "DEL", f.Body, s.agent.Del)
	case cnicall.Check:
		return overFrame(ctx, s, "CHECK", f.Body, s.agent.Check)
	case cnicall.GC:
		return overFrame(ctx, s, "GC", f.Body, s.agent.GC)
	case cnicall.Status:
		return overFrame(ctx, s, "STATUS", f.Body, s.agent.Status)
	}
	return refusal(errOtherVersion)
}

// message is a pointer to a Q that protobuf knows.
type message[Q any] interface {
	*Q
	proto.Message
}

// overFrame executes one request of a frame. As with gRPC, fields that this
// version does not know are passed over.
func overFrame[Q any, M message[Q], R proto.Message](ctx context.Context, s *cniServer, command string, body []byte, f func(context.Context, M) (R, error)) cnicall.Frame {
	q := M(new(Q))
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body, q); err != nil {
		return refusal(blame(CodeInternal, err, "isthmus-agent does not understand the %s", command))
	}
	r, refused := serve(ctx, s, command, q, f)
	if refused != nil {
		return refusal(refused)
	}
	answer, err := protojson.Marshal(r)
	if err != nil {
		return refusal(blame(CodeInternal, err, "encode the answer to %s", command))
	}
	return cnicall.Frame{Kind: cnicall.Done, Body: answer}
}

func refusal(e *Error) cnicall.Frame {
	body, err := json.Marshal(cnicall.Error{Code: e.Code, Msg: e.Msg, Details: e.Details})
	if err != nil {
		panic(err) // three fields that JSON has
	}
	return cnicall.Frame{Kind: cnicall.Refused, Body: body}
}
