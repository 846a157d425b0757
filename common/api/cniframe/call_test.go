// SPDX-License-Identifier: Apache-2.0

package cnicall_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/isthmus-net/isthmus/common/cniapi"
	"github.com/isthmus-net/isthmus/common/cnicall"
)

// TestMessages fills every field of every message of the interface and expects
// that its twin here keeps them all, in both directions.
func TestMessages(t *testing.T) {
	for _, c := range []struct {
		api  proto.Message
		twin any
	}{
		{&cniapi.AddRequest{}, &cnicall.AddRequest{}},
		{&cniapi.AddResponse{}, &cnicall.AddResponse{}},
		{&cniapi.DelRequest{}, &cnicall.DelRequest{}},
		{&cniapi.CheckRequest{}, &cnicall.CheckRequest{}},
		{&cniapi.GCRequest{}, &cnicall.GCRequest{}},
		{&cniapi.CNIError{}, &cnicall.Error{}},
	} {
		n := 0
		fill(c.api.ProtoReflect(), &n)
		text, err := protojson.Marshal(c.api)
		if err != nil {
			t.Fatal(err)
		}
		strict := json.NewDecoder(bytes.NewReader(text))
		strict.DisallowUnknownFields()
		if err := strict.Decode(c.twin); err != nil {
			t.Errorf("%T: %v in %s", c.twin, err, text)
		}
		if text, err = json.Marshal(c.twin); err != nil {
			t.Fatal(err)
		}
		back := c.api.ProtoReflect().New().Interface()
		if err := protojson.Unmarshal(text, back); err != nil || !proto.Equal(back, c.api) {
			t.Errorf("%T: %v\nsent %v\ngot  %v", c.twin, err, c.api, back)
		}
	}
}

// fill gives every field a value that no other has.
func fill(m protoreflect.Message, n *int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.IsList() {
			list := m.Mutable(f).List()
			for range 2 {
				if f.Message() != nil {
					fill(list.AppendMutable().Message(), n)
				} else {
					list.Append(value(f, n))
				}
			}
		} else if f.Message() != nil {
			fill(m.Mutable(f).Message(), n)
		} else {
			m.Set(f, value(f, n))
		}
	}
}

func value(f protoreflect.FieldDescriptor, n *int) protoreflect.Value {
	*n++
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(strings.Repeat("ü<", *n))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(math.MaxUint32 - uint32(*n))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(math.MaxInt32 - int32(*n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(math.MaxUint64 - uint64(*n))
	}
	panic("a field of kind " + f.Kind().String())
}

// answering calls a peer that reads a request and writes what f makes of it.
func answering(t *testing.T, timeout time.Duration, answer any, f func(cnicall.Frame) []byte) error {
	t.Helper()
	near, far := net.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer far.Close()
		request, err := cnicall.Read(far)
		if err != nil {
			t.Errorf("read request: %v", err)
			return
		}
		far.Write(f(request))
	}()
	defer func() { near.Close(); <-ended }()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return cnicall.Call(ctx, near, cnicall.Add, &cnicall.AddRequest{PodName: "web"}, answer)
}

func encoded(t *testing.T, f cnicall.Frame) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := f.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestCall(t *testing.T) {
	var got cnicall.AddResponse
	err := answering(t, time.Minute, &got, func(f cnicall.Frame) []byte {
		var asked cnicall.AddRequest
		if err := json.Unmarshal(f.Body, &asked); err != nil || asked.PodName != "web" || f.Kind != cnicall.Add || f.Timeout <= 50*time.Second || f.Timeout > time.Minute {
			t.Errorf("the request is %+v: %+v, %v", f, asked, err)
		}
		return encoded(t, cnicall.Frame{Kind: cnicall.Done, Body: []byte(`{"mtu":1400,"addresses":["10.0.0.1/32"],"newField":{}}`)})
	})
	if want := (cnicall.AddResponse{MTU: 1400, Addresses: []string{"10.0.0.1/32"}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	var refused *cnicall.Error
	err = answering(t, time.Minute, nil, func(cnicall.Frame) []byte {
		return encoded(t, cnicall.Frame{Kind: cnicall.Refused, Body: []byte(`{"code":11,"msg":"m","details":"d"}`)})
	})
	if !errors.As(err, &refused) || *refused != (cnicall.Error{Code: 11, Msg: "m", Details: "d"}) {
		t.Errorf("a refusal: %v", err)
	}
	good := encoded(t, cnicall.Frame{Kind: cnicall.Done, Body: []byte(`{}`)})
	newer := bytes.Clone(good)
	newer[9]++
	for name, c := range map[string]struct {
		answer []byte
		want   error
	}{
		"another version":   {newer, cnicall.ErrProtocol},
		"another kind":      {encoded(t, cnicall.Frame{Kind: cnicall.GC}), cnicall.ErrProtocol},
		"no JSON":           {encoded(t, cnicall.Frame{Kind: cnicall.Done, Body: []byte(`{`)}), cnicall.ErrProtocol},
		"refusal, no JSON":  {encoded(t, cnicall.Frame{Kind: cnicall.Refused}), cnicall.ErrProtocol},
		"cut in the header": {good[:20], io.ErrUnexpectedEOF},
		"cut in the body":   {good[:len(good)-1], io.EOF},
		"nothing":           {nil, io.EOF},
	} {
		if err := answering(t, time.Minute, &got, func(cnicall.Frame) []byte { return c.answer }); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	err = answering(t, 50*time.Millisecond, &got, func(cnicall.Frame) []byte {
		time.Sleep(200 * time.Millisecond)
		return nil
	})
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
}

func TestFrameBounds(t *testing.T) {
	if err := (cnicall.Frame{Body: make([]byte, cnicall.MaxBody+1)}).Write(io.Discard); err == nil {
		t.Error("a message that is too long was sent")
	}
	longest := cnicall.Frame{Kind: cnicall.GC, Timeout: time.Second, Body: make([]byte, cnicall.MaxBody)}
	if f, err := cnicall.Read(bytes.NewReader(encoded(t, longest))); err != nil || len(f.Body) != cnicall.MaxBody {
		t.Errorf("the longest message: %d bytes, %v", len(f.Body), err)
	}
	header := encoded(t, longest)[:24]
	header[19]++ // length
	if _, err := cnicall.Read(io.MultiReader(bytes.NewReader(header), endless{})); err == nil {
		t.Error("a message that is too long was read")
	}
	// An agent that speaks gRPC only waits for this many bytes before it closes.
	if n := len(encoded(t, cnicall.Frame{Kind: cnicall.Status})); n < len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") {
		t.Errorf("a frame may have %d bytes only", n)
	}
	if f, err := cnicall.Read(bytes.NewReader(encoded(t, cnicall.Frame{Timeout: time.Nanosecond}))); err != nil || f.Timeout != time.Millisecond {
		t.Errorf("a short timeout became %v, %v", f.Timeout, err)
	}
}

// TestFrameOfAnotherVersion: neither an older nor a newer frame is understood.
func TestFrameOfAnotherVersion(t *testing.T) {
	frame := encoded(t, cnicall.Frame{Kind: cnicall.Status, Body: []byte("{}")})
	for _, v := range [][2]byte{{0, 0}, {0, 2}, {1, 1}, {255, 255}} {
		other := bytes.Clone(frame)
		copy(other[8:10], v[:])
		if _, err := cnicall.Read(bytes.NewReader(other)); !errors.Is(err, cnicall.ErrVersion) {
			t.Errorf("version %v: %v, want ErrVersion", v, err)
		}
	}
}

// endless has bytes for everybody.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// FuzzRead expects of every frame that can be read that it is written the same,
// and that no more is taken than it has.
func FuzzRead(f *testing.F) {
	for _, frame := range []cnicall.Frame{{}, {Kind: cnicall.Add, Timeout: time.Minute, Body: []byte(`{"netns":"/n"}`)}, {Kind: cnicall.Done}} {
		var b bytes.Buffer
		if err := frame.Write(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(append(b.Bytes(), "rest"...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		frame, err := cnicall.Read(r)
		if err != nil {
			return
		}
		if again := encoded(t, frame); !bytes.Equal(again, b[:len(b)-r.Len()]) {
			t.Errorf("read % x, wrote % x", b, again)
		}
	})
}
