// SPDX-License-Identifier: Apache-2.0

package cniframe_test

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
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
)

// TestMessages fixes the JSON of the messages: the plugin and the agent may differ in version.
func TestMessages(t *testing.T) {
	attachment := cniframe.Attachment{ContainerID: "c", IfName: "eth0"}
	const attached = `"attachment":{"containerId":"c","ifName":"eth0"}`
	limits := &cniframe.Bandwidth{IngressRate: math.MaxUint64, IngressBurst: 2, EgressRate: 3, EgressBurst: 4}
	const limited = `"bandwidth":{"ingressRate":"18446744073709551615","ingressBurst":"2","egressRate":"3","egressBurst":"4"}`
	for _, c := range []struct {
		message, empty any
		text           string
	}{
		{&cniframe.AddRequest{Attachment: attachment, Netns: "/n", PodNamespace: "shop", PodName: "web", PodUID: "u", Network: "pods",
			HostPorts: []cniframe.HostPort{{HostIP: "::", HostPort: 8080, Port: 80, Protocol: 6}}, Bandwidth: limits}, &cniframe.AddRequest{},
			`{` + attached + `,"netns":"/n","podNamespace":"shop","podName":"web","podUid":"u","network":"pods",` +
				`"hostPorts":[{"hostIp":"::","hostPort":8080,"port":80,"protocol":6}],` + limited + `}`},
		{&cniframe.AddResponse{HostIfName: "h", HostMAC: "02:00:00:00:00:01", MAC: "02:00:00:00:00:02", MTU: 1450, Addresses: []string{"10.0.0.1/32"}, Gateways: []string{"169.254.1.1"}},
			&cniframe.AddResponse{}, `{"hostIfName":"h","hostMac":"02:00:00:00:00:01","mac":"02:00:00:00:00:02","mtu":1450,"addresses":["10.0.0.1/32"],"gateways":["169.254.1.1"]}`},
		{&cniframe.DelRequest{Attachment: attachment}, &cniframe.DelRequest{}, `{` + attached + `}`},
		{&cniframe.CheckRequest{Attachment: attachment, Netns: "/n", Addresses: []string{"10.0.0.1/32"}, Bandwidth: limits}, &cniframe.CheckRequest{},
			`{` + attached + `,"netns":"/n","addresses":["10.0.0.1/32"],` + limited + `}`},
		{&cniframe.CheckRequest{Attachment: attachment, Netns: "/n", Foreign: &cniframe.Foreign{HostIfNames: []string{"v"}, MAC: "02:00:00:00:00:01", Addresses: []string{"10.0.0.1"}}},
			&cniframe.CheckRequest{}, `{` + attached + `,"netns":"/n","foreign":{"hostIfNames":["v"],"mac":"02:00:00:00:00:01","addresses":["10.0.0.1"]}}`},
		{&cniframe.GCRequest{Valid: []cniframe.Attachment{attachment}, Network: "pods"}, &cniframe.GCRequest{},
			`{"valid":[{"containerId":"c","ifName":"eth0"}],"network":"pods"}`},
		{&cniframe.GCResponse{Removed: []cniframe.Attachment{attachment}}, &cniframe.GCResponse{}, `{"removed":[{"containerId":"c","ifName":"eth0"}]}`},
		{&cniframe.StatusRequest{}, &cniframe.StatusRequest{}, `{}`},
		{&cniframe.Error{Code: 11, Msg: "m", Details: "d"}, &cniframe.Error{}, `{"code":11,"msg":"m","details":"d"}`},
	} {
		text, err := json.Marshal(c.message)
		if err != nil || string(text) != c.text {
			t.Errorf("%T: %v\ngot  %s\nwant %s", c.message, err, text, c.text)
		}
		if err := json.Unmarshal([]byte(c.text), c.empty); err != nil || !reflect.DeepEqual(c.empty, c.message) {
			t.Errorf("%T: decoded %+v, %v", c.message, c.empty, err)
		}
	}
}

// answering starts a peer that reads a request and writes the result of f.
func answering(t *testing.T, timeout time.Duration, answer any, f func(cniframe.Frame) []byte) error {
	t.Helper()
	near, far := net.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer far.Close()
		request, err := cniframe.Read(far)
		if err != nil {
			t.Errorf("read request: %v", err)
			return
		}
		far.Write(f(request))
	}()
	defer func() { near.Close(); <-ended }()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return cniframe.Call(ctx, near, cniframe.Add, &cniframe.AddRequest{PodName: "web"}, answer)
}

func encoded(t *testing.T, f cniframe.Frame) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := f.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestCall(t *testing.T) {
	var got cniframe.AddResponse
	err := answering(t, time.Minute, &got, func(f cniframe.Frame) []byte {
		var asked cniframe.AddRequest
		if err := json.Unmarshal(f.Body, &asked); err != nil || asked.PodName != "web" || f.Kind != cniframe.Add || f.Timeout <= 50*time.Second || f.Timeout > time.Minute {
			t.Errorf("the request is %+v: %+v, %v", f, asked, err)
		}
		return encoded(t, cniframe.Frame{Kind: cniframe.Done, Body: []byte(`{"mtu":1400,"addresses":["10.0.0.1/32"],"newField":{}}`)})
	})
	if want := (cniframe.AddResponse{MTU: 1400, Addresses: []string{"10.0.0.1/32"}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	var refused *cniframe.Error
	err = answering(t, time.Minute, nil, func(cniframe.Frame) []byte {
		return encoded(t, cniframe.Frame{Kind: cniframe.Refused, Body: []byte(`{"code":11,"msg":"m","details":"d"}`)})
	})
	if !errors.As(err, &refused) || *refused != (cniframe.Error{Code: 11, Msg: "m", Details: "d"}) {
		t.Errorf("a refusal: %v", err)
	}
	good := encoded(t, cniframe.Frame{Kind: cniframe.Done, Body: []byte(`{}`)})
	newer := bytes.Clone(good)
	newer[9]++
	for name, c := range map[string]struct {
		answer []byte
		want   error
	}{
		"another version":   {newer, cniframe.ErrProtocol},
		"another kind":      {encoded(t, cniframe.Frame{Kind: cniframe.GC}), cniframe.ErrProtocol},
		"no JSON":           {encoded(t, cniframe.Frame{Kind: cniframe.Done, Body: []byte(`{`)}), cniframe.ErrProtocol},
		"refusal, no JSON":  {encoded(t, cniframe.Frame{Kind: cniframe.Refused}), cniframe.ErrProtocol},
		"cut in the header": {good[:20], io.ErrUnexpectedEOF},
		"cut in the body":   {good[:len(good)-1], io.EOF},
		"nothing":           {nil, io.EOF},
	} {
		if err := answering(t, time.Minute, &got, func(cniframe.Frame) []byte { return c.answer }); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	err = answering(t, 50*time.Millisecond, &got, func(cniframe.Frame) []byte {
		time.Sleep(200 * time.Millisecond)
		return nil
	})
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
}

func TestFrameBounds(t *testing.T) {
	if err := (cniframe.Frame{Body: make([]byte, cniframe.MaxBody+1)}).Write(io.Discard); err == nil {
		t.Error("a message that is too long was sent")
	}
	longest := cniframe.Frame{Kind: cniframe.GC, Timeout: time.Second, Body: make([]byte, cniframe.MaxBody)}
	if f, err := cniframe.Read(bytes.NewReader(encoded(t, longest))); err != nil || len(f.Body) != cniframe.MaxBody {
		t.Errorf("the longest message: %d bytes, %v", len(f.Body), err)
	}
	header := encoded(t, longest)[:24]
	header[19]++ // length
	if _, err := cniframe.Read(io.MultiReader(bytes.NewReader(header), endless{})); err == nil {
		t.Error("a message that is too long was read")
	}
	if f, err := cniframe.Read(bytes.NewReader(encoded(t, cniframe.Frame{Timeout: time.Nanosecond}))); err != nil || f.Timeout != time.Millisecond {
		t.Errorf("a short timeout became %v, %v", f.Timeout, err)
	}
}

// TestFrameOfAnotherVersion checks that neither an older nor a newer frame is accepted.
func TestFrameOfAnotherVersion(t *testing.T) {
	frame := encoded(t, cniframe.Frame{Kind: cniframe.Status, Body: []byte("{}")})
	for _, v := range [][2]byte{{0, 0}, {0, 2}, {1, 1}, {255, 255}} {
		other := bytes.Clone(frame)
		copy(other[8:10], v[:])
		if _, err := cniframe.Read(bytes.NewReader(other)); !errors.Is(err, cniframe.ErrVersion) {
			t.Errorf("version %v: %v, want ErrVersion", v, err)
		}
	}
}

// endless is a reader without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// FuzzRead checks that every frame that can be read is written the same, and that Read takes no
// more bytes than the frame has.
func FuzzRead(f *testing.F) {
	for _, frame := range []cniframe.Frame{{}, {Kind: cniframe.Add, Timeout: time.Minute, Body: []byte(`{"netns":"/n"}`)}, {Kind: cniframe.Done}} {
		var b bytes.Buffer
		if err := frame.Write(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(append(b.Bytes(), "rest"...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		frame, err := cniframe.Read(r)
		if err != nil {
			return
		}
		if again := encoded(t, frame); !bytes.Equal(again, b[:len(b)-r.Len()]) {
			t.Errorf("read % x, wrote % x", b, again)
		}
	})
}
