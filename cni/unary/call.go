// SPDX-License-Identifier: Apache-2.0

package unary

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// maxAnswer is the longest answer that is read, in bytes, as in gRPC's clients.
const maxAnswer = 4 << 20

var errProtocol = errors.New("this is not HTTP/2 as a server of gRPC speaks it")

// call is the state of the call.
type call struct {
	conn net.Conn
	// unsent is the rest of the request.
	unsent []byte
	// room and streamRoom are how much of it may be sent; initial is what the
	// server has said of streams at their beginning.
	room, streamRoom, initial int64

	decoder  *hpack.Decoder
	fields   map[string]string // of headers and trailers
	received []byte
	ended    bool
}

// Call calls a method, /package.Service/Method, on a connection that nothing has
// been sent on, and fills in the answer. It does not close the connection, which
// is of no more use. The error is one of gRPC's status: Unavailable if the
// connection was lost, DeadlineExceeded or Canceled if the context ended.
func Call(ctx context.Context, conn net.Conn, method string, request, answer proto.Message) error {
	message, err := proto.Marshal(request)
	if err != nil {
		return status.Errorf(codes.Internal, "encode request: %v", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if deadline, ok := ctx.Deadline(); ok {
		conn.SetDeadline(deadline)
	}
	prefix := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))) // not compressed
	c := &call{conn: conn, unsent: append(prefix, message...), room: firstWindow, streamRoom: firstWindow, initial: firstWindow, fields: make(map[string]string)}
	c.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) { c.fields[f.Name] = f.Value })
	if err := c.exchange(ctx, method); err != nil {
		return lost(ctx, err)
	}
	if err := c.status(); err != nil {
		return err
	}
	body := c.received
	if len(body) < 5 || body[0] != 0 || int(binary.BigEndian.Uint32(body[1:])) != len(body)-5 {
		return status.Errorf(codes.Internal, "the answer is not one message: it has %d bytes", len(body))
	}
	if err := proto.Unmarshal(body[5:], answer); err != nil {
		return status.Errorf(codes.Internal, "decode answer: %v", err)
	}
	return nil
}

// lost gives an error of the connection the code by which it came to its end.
func lost(ctx context.Context, err error) error {
	deadline, limited := ctx.Deadline()
	var known interface{ GRPCStatus() *status.Status }
	told := errors.As(err, &known)
	switch {
	case told && known.GRPCStatus().Code() != codes.Canceled:
		return err
	case errors.Is(ctx.Err(), context.Canceled):
		return status.Error(codes.Canceled, context.Canceled.Error())
	case limited && !deadline.After(time.Now()):
		// The server ends the call then, too, and may be the first to tell.
		return status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error())
	case told:
		return err
	}
	return status.Error(codes.Unavailable, err.Error())
}

// exchange sends the request and reads until the answer has ended.
func (c *call) exchange(ctx context.Context, method string) error {
	// This side takes whatever comes: nothing has to be allowed later.
	var settings []byte
	for _, s := range []struct {
		id    uint16
		value uint32
	}{{settingPush, 0}, {settingInitialWindow, maxWindow}} {
		settings = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(settings, s.id), s.value)
	}
	out := appendFrame([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frameSettings, 0, 0, settings)
	out = appendFrame(out, frameWindow, 0, 0, binary.BigEndian.AppendUint32(nil, maxWindow-firstWindow))
	out = appendFrame(out, frameHeaders, flagEndHeaders, number, headers(ctx, method))
	if _, err := c.conn.Write(c.appendData(out)); err != nil {
		return err
	}
	in := bufio.NewReader(c.conn)
	for !c.ended {
		f, err := readFrame(in)
		if err != nil {
			return err
		}
		reply, err := c.take(f, in)
		if err != nil {
			return err
		}
		if reply = c.appendData(reply); len(reply) > 0 && !c.ended {
			if _, err := c.conn.Write(reply); err != nil {
				return err
			}
		}
	}
	return nil
}

// headers are those of the request; they fit in one frame.
func headers(ctx context.Context, method string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	fields := [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "localhost"},
		{"content-type", "application/grpc"}, {"te", "trailers"}}
	if deadline, ok := ctx.Deadline(); ok {
		// Rounded up, so that this side is the first to give up; at most eight
		// digits, more than a day.
		ms := min(max(time.Until(deadline).Milliseconds()+1, 1), 99_999_999)
		fields = append(fields, [2]string{"grpc-timeout", strconv.FormatInt(ms, 10) + "m"})
	}
	for _, f := range fields {
		e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // to memory
	}
	return b.Bytes()
}

// appendData appends as much of the request as the server has room for.
func (c *call) appendData(b []byte) []byte {
	for len(c.unsent) > 0 {
		n := min(int64(len(c.unsent)), maxFrame, c.room, c.streamRoom)
		if n <= 0 {
			break
		}
		part := c.unsent[:n]
		c.unsent, c.room, c.streamRoom = c.unsent[n:], c.room-n, c.streamRoom-n
		var flags byte
		if len(c.unsent) == 0 {
			flags = flagEndStream
		}
		b = appendFrame(b, frameData, flags, number, part)
	}
	return b
}

// take takes a frame in and returns what is to be answered to it.
func (c *call) take(f frame, in *bufio.Reader) (reply []byte, err error) {
	switch f.kind {
	case frameData:
		return nil, c.takeData(f)
	case frameHeaders:
		return nil, c.takeHeaders(f, in)
	case frameSettings:
		return c.takeSettings(f)
	case framePing:
		if !f.has(flagAck) {
			return appendFrame(nil, framePing, flagAck, 0, f.payload), nil
		}
	case frameWindow:
		more, err := f.word()
		if f.stream == 0 {
			c.room += int64(more)
		} else {
			c.streamRoom += int64(more)
		}
		return nil, err
	case frameGoAway:
		last, err := f.word()
		if err == nil && last&^(1<<31) < number {
			err = status.Error(codes.Unavailable, "the server takes no more calls")
		}
		return nil, err
	case frameReset:
		code, err := f.word()
		if err == nil {
			err = status.Errorf(resetCode(code), "the server has ended the call, code %d of HTTP/2", code)
		}
		return nil, err
	}
	return nil, nil // others are to be passed over
}

// resetCode translates codes of HTTP/2 as gRPC's specification does.
func resetCode(code uint32) codes.Code {
	switch code {
	case 0x7: // REFUSED_STREAM
		return codes.Unavailable
	case 0x8: // CANCEL
		return codes.Canceled
	}
	return codes.Internal
}

func (c *call) takeData(f frame) error {
	b, err := f.content()
	if err != nil {
		return err
	}
	if len(c.received)+len(b) > maxAnswer {
		return status.Errorf(codes.ResourceExhausted, "the answer is longer than %d bytes", maxAnswer)
	}
	c.received, c.ended = append(c.received, b...), f.has(flagEndStream)
	return nil
}

// takeHeaders takes headers or trailers, with the frames that continue them.
func (c *call) takeHeaders(f frame, in *bufio.Reader) error {
	b, err := f.content()
	for last := f; err == nil && !last.has(flagEndHeaders); {
		if last, err = readFrame(in); err != nil {
			return err
		}
		if last.kind != frameContinuation || len(b) > maxAnswer {
			return fmt.Errorf("frame of type %d amid headers: %w", last.kind, errProtocol)
		}
		b = append(b, last.payload...)
	}
	if err != nil {
		return err
	}
	if _, err := c.decoder.Write(b); err != nil {
		return err
	}
	c.ended = f.has(flagEndStream)
	return c.decoder.Close()
}

func (c *call) takeSettings(f frame) ([]byte, error) {
	if f.has(flagAck) {
		return nil, nil
	}
	for b := f.payload; len(b) >= 6; b = b[6:] {
		if id, value := binary.BigEndian.Uint16(b), int64(binary.BigEndian.Uint32(b[2:])); id == settingInitialWindow {
			c.streamRoom, c.initial = c.streamRoom+value-c.initial, value
		}
	}
	return appendFrame(nil, frameSettings, flagAck, 0, nil), nil
}
