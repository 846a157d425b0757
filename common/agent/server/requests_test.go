// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
)

// TestCallsOfThePlugin makes every call.
func TestCallsOfThePlugin(t *testing.T) {
	r, _, stopServing := serve(t)
	r.started()
	wantRefusal(t, r.ask(time.Minute, cniframe.Status, struct{}{}, nil), 50, "the state of the cluster is not known yet")
	r.publish(3)
	var added cniframe.AddResponse
	if err := r.ask(time.Minute, cniframe.Add, addRequest(0), &added); err != nil || len(added.Addresses) != 1 || added.MAC == "" {
		t.Fatalf("ADD: %+v, %v", added, err)
	}
	// A repeated ADD has the same answer.
	var again cniframe.AddResponse
	if err := r.ask(time.Minute, cniframe.Add, addRequest(0), &again); err != nil || !reflect.DeepEqual(again, added) {
		t.Errorf("second ADD: %+v, %v; the first was answered with %+v", again, err, added)
	}
	check := &cniframe.CheckRequest{Attachment: addRequest(0).Attachment, Netns: addRequest(0).Netns, Addresses: added.Addresses}
	if err := r.ask(time.Minute, cniframe.Check, check, nil); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	wantRefusal(t, r.ask(time.Minute, cniframe.Add, addRequest(7), nil), 11, "shop/web-7")
	if err := r.ask(time.Minute, cniframe.Add, addRequest(1), nil); err != nil {
		t.Fatal(err)
	}
	if err := r.ask(time.Minute, cniframe.GC, &cniframe.GCRequest{Valid: []cniframe.Attachment{addRequest(1).Attachment}}, nil); err != nil {
		t.Errorf("GC: %v", err)
	}
	if dump := r.fake.Dump(); strings.Contains(dump, "endpoint c0:eth0") || !strings.Contains(dump, "endpoint c1:eth0") {
		t.Errorf("after GC:\n%s", dump)
	}
	if err := r.ask(time.Minute, cniframe.Del, &cniframe.DelRequest{Attachment: addRequest(1).Attachment}, nil); err != nil {
		t.Errorf("DEL: %v", err)
	}
	if err := r.ask(time.Minute, cniframe.Status, struct{}{}, nil); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	wantRefusal(t, r.ask(time.Minute, 77, struct{}{}, nil), 999, "does not support this request")
	wantRefusal(t, r.ask(time.Minute, cniframe.Add, []int{1}, nil), 999, "decode the ADD request")
	for series, want := range map[string]string{
		`isthmus_cni_requests_total{code="0",command="ADD"}`:       "3",
		`isthmus_cni_requests_total{code="11",command="ADD"}`:      "1",
		`isthmus_cni_requests_total{code="0",command="DEL"}`:       "1",
		`isthmus_cni_request_duration_seconds_count{command="GC"}`: "1",
	} {
		if got := r.metric(series); got != want {
			t.Errorf("%s is %q, want %q", series, got, want)
		}
	}
	if err := stopServing(); err != nil {
		t.Errorf("Serve: %v", err)
	}
	r.end()
}

// TestPluginLeaves checks that no attachment is left for a plugin that has ended.
func TestPluginLeaves(t *testing.T) {
	r, _, stopServing := serve(t)
	r.publish(1)
	c := r.connect()
	body, err := json.Marshal(addRequest(2)) // the pod is not published yet
	if err != nil {
		t.Fatal(err)
	}
	if err := (cniframe.Frame{Kind: cniframe.Add, Timeout: time.Minute, Body: body}).Write(c); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	c.Close()
	time.Sleep(50 * time.Millisecond)
	r.publish(3)
	if err := r.ask(time.Minute, cniframe.Add, addRequest(0), nil); err != nil {
		t.Fatal(err)
	}
	if dump := r.fake.Dump(); strings.Contains(dump, "endpoint c2:eth0") {
		t.Errorf("attached although the plugin has gone:\n%s", dump)
	}
	if err := stopServing(); err != nil {
		t.Errorf("Serve: %v", err)
	}
	r.end()
}

// TestStrangeConnections sends bytes that are not a request. It expects the connection to end, an answer
// where one is possible, and no effect on other clients.
func TestStrangeConnections(t *testing.T) {
	before := runtime.NumGoroutine()
	r, conn, stopServing := serve(t)
	frame := func(change func([]byte)) string {
		var b strings.Builder
		if err := (cniframe.Frame{Kind: cniframe.Status, Timeout: time.Second, Body: []byte("{}")}).Write(&b); err != nil {
			t.Fatal(err)
		}
		all := []byte(b.String())
		change(all)
		return string(all)
	}
	for name, c := range map[string]struct {
		say    string
		answer bool
	}{
		"nothing":             {"", false},
		"half a magic number": {"ISTH", false},
		"half a frame":        {frame(func([]byte) {})[:25], false},
		"other version":       {frame(func(b []byte) { b[9] = 9 }), true},
		"too long":            {frame(func(b []byte) { b[16] = 0xff }), false},
		"reserved":            {frame(func(b []byte) { b[23] = 1 }), false},
		"HTTP/1.1":            {"GET / HTTP/1.1\r\nHost: agent\r\n\r\n", false},
		"gRPC":                {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			c1 := r.connect()
			defer c1.Close()
			if _, err := io.WriteString(c1, c.say); err != nil {
				t.Fatal(err)
			}
			if c.answer {
				f, err := cniframe.Read(c1)
				if err != nil || f.Kind != cniframe.Refused || !strings.Contains(string(f.Body), "999") {
					t.Errorf("got %+v, %v", f, err)
				}
			}
			c1.(*net.UnixConn).CloseWrite()
			c1.SetReadDeadline(time.Now().Add(5 * time.Second))
			if _, err := io.Copy(io.Discard, c1); err != nil && !strings.Contains(err.Error(), "reset") {
				t.Errorf("the connection stays: %v", err)
			}
		})
	}
	conn.Close()
	// Silent clients do not prevent the agent from stopping.
	for _, address := range []string{r.socket, socket.Inspection(r.socket)} {
		silent, err := socket.Dial(context.Background(), address)
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
	}
	began := time.Now()
	if err := stopServing(); err != nil || time.Since(began) > 8*time.Second {
		t.Errorf("Serve: %v after %v", err, time.Since(began))
	}
	r.end()
	for i := 0; runtime.NumGoroutine() > before; i++ {
		if i == 100 {
			t.Fatalf("%d goroutines before, %d after", before, runtime.NumGoroutine())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestTooManyCalls sends more calls than the agent serves concurrently. The agent rejects the
// excess immediately, and serves later calls.
func TestTooManyCalls(t *testing.T) {
	r, _, stopServing := serve(t)
	r.started()
	r.publish(1)
	inside, release := r.blockAdd()
	const served, more = 512, 8
	answers := make(chan error, served+more)
	call := func(n int) { answers <- r.ask(time.Minute, cniframe.Add, addRequest(n), nil) }
	go call(0)
	<-inside // the loop is busy until it is released
	for range served + more - 1 {
		go call(9)
	}
	for range more {
		wantRefusal(t, <-answers, 11, "already serves 512 requests")
	}
	close(release)
	attached := 0
	for range served {
		if err := <-answers; err == nil {
			attached++
		} else {
			wantRefusal(t, err, 11, "pod shop/web-9 is not known")
		}
	}
	if attached != 1 {
		t.Errorf("%d of the calls attached a pod, want 1", attached)
	}
	if err := r.ask(time.Minute, cniframe.Status, struct{}{}, nil); err != nil {
		t.Errorf("STATUS when the calls have ended: %v", err)
	}
	if err := stopServing(); err != nil {
		t.Errorf("Serve: %v", err)
	}
	r.end()
}

// failing is a listener whose first accepts fail.
type failing struct {
	net.Listener
	errs chan error
}

func (l *failing) Accept() (net.Conn, error) {
	select {
	case err := <-l.errs:
		return nil, err
	default:
		return l.Listener.Accept()
	}
}

// TestAcceptIsTriedAgain simulates a temporary lack of file descriptors.
func TestAcceptIsTriedAgain(t *testing.T) {
	l := &failing{errs: make(chan error, 3)}
	for range cap(l.errs) {
		l.errs <- &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	r, _, stopServing := serveOn(t, func(s *socket.Sockets) { l.Listener = s.Requests; s.Requests = l })
	r.started()
	if len(l.errs) > 0 {
		t.Errorf("%d accepts have not failed", len(l.errs))
	}
	if err := stopServing(); err != nil {
		t.Errorf("Serve: %v", err)
	}
	r.end()
}

// TestAcceptFails expects Serve to end, and to close both sockets, if one cannot accept connections.
func TestAcceptFails(t *testing.T) {
	broken := errors.New("broken")
	l := &failing{errs: make(chan error, 1)}
	l.errs <- broken
	r, _, stopServing := serveOn(t, func(s *socket.Sockets) { l.Listener = s.Requests; s.Requests = l })
	deadline := time.Now().Add(10 * time.Second)
	for _, address := range []string{r.socket, socket.Inspection(r.socket)} {
		for {
			c, err := socket.Dial(context.Background(), address)
			if err != nil {
				break
			}
			c.Close()
			if time.Now().After(deadline) {
				t.Fatalf("%s is open", address)
			}
			time.Sleep(time.Millisecond)
		}
	}
	if err := stopServing(); !errors.Is(err, broken) {
		t.Errorf("Serve: %v", err)
	}
	r.end()
}
