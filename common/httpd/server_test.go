// SPDX-License-Identifier: Apache-2.0

package httpd_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/httpd"
)

// counted counts the connections of a listener that are open.
type counted struct {
	net.Listener
	open, most atomic.Int64
}

type countedConn struct {
	net.Conn
	closed atomic.Bool
	of     *counted
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if n := l.open.Add(1); n > l.most.Load() {
		l.most.Store(n)
	}
	return &countedConn{Conn: c, of: l}, nil
}

func (c *countedConn) Close() error {
	if !c.closed.Swap(true) {
		c.of.open.Add(-1)
	}
	return c.Conn.Close()
}

// serve starts a server that answers /ok immediately, and /large with more data than the buffers of
// a connection hold.
func serve(t *testing.T, l httpd.Limits) (*counted, string) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := &counted{Listener: inner}
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, "ok")
	})
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) {
		for range 1 << 10 {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/hold", func(w http.ResponseWriter, r *http.Request) {
		httpd.Hold(r.Context())
		control := http.NewResponseController(w)
		control.EnableFullDuplex()
		fmt.Fprint(w, "begun ")
		control.Flush()
		io.Copy(w, r.Body)
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- httpd.Serve(ctx, listener, mux, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with %v", err)
		}
		listener.until(t, 0)
	})
	return listener, inner.Addr().String()
}

// until waits until at most n connections are open.
func (l *counted) until(t *testing.T, n int64) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); l.open.Load() > n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are open, want at most %d", l.open.Load(), n)
		}
	}
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

func ask(t *testing.T, address string) {
	t.Helper()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + address + "/ok")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if b, err := io.ReadAll(r.Body); err != nil || string(b) != "ok" {
		t.Fatalf("%q, %v", b, err)
	}
}

// TestHeldConnections holds many connections in every way that costs the client nothing, and sends
// other requests meanwhile.
func TestHeldConnections(t *testing.T) {
	for name, use := range map[string]func(t *testing.T, c net.Conn){
		"says nothing":  func(*testing.T, net.Conn) {},
		"half a header": func(_ *testing.T, c net.Conn) { io.WriteString(c, "GET /ok HTTP/1.1\r\nHost: x\r\n") },
		"half a body": func(_ *testing.T, c net.Conn) {
			io.WriteString(c, "POST /ok HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
		},
		"does not read":  func(_ *testing.T, c net.Conn) { io.WriteString(c, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n") },
		"asks once more": func(t *testing.T, c net.Conn) { io.WriteString(c, "GET /ok HTTP/1.1\r\nHost: x\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			l := httpd.Defaults()
			l.Connections = 16
			listener, address := serve(t, l)
			for i := range 200 {
				use(t, dial(t, address))
				if i%50 == 49 {
					ask(t, address)
				}
			}
			ask(t, address)
			// The limit, one connection that was just accepted, and its predecessor that is being
			// closed.
			if n := listener.most.Load(); n > 18 || n < 16 {
				t.Errorf("%d connections were open at a time, the limit is 16", n)
			}
		})
	}
}

// TestHold holds a connection while others exceed the limit. After its request it counts again.
func TestHold(t *testing.T) {
	l := httpd.Defaults()
	l.Connections = 4
	listener, address := serve(t, l)
	held := dial(t, address)
	io.WriteString(held, "POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
	r, err := http.ReadResponse(bufio.NewReader(held), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	crowd := func() {
		for range 20 {
			dial(t, address)
			ask(t, address)
		}
	}
	crowd()
	io.WriteString(held, "end")
	if b, err := io.ReadAll(r.Body); err != nil || string(b) != "begun end" {
		t.Fatalf("a held connection: %q, %v", b, err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := held.Read(make([]byte, 1))
		ended <- err
	}()
	for end := false; !end; { // the server may note the end of the request after the client has read the response
		crowd()
		select {
		case err := <-ended:
			if end = true; err != io.EOF {
				t.Errorf("an idle connection that was held before: %v, want it closed", err)
			}
		default:
		}
	}
	if n := listener.most.Load(); n > 4+1+2 {
		t.Errorf("%d connections were open at a time, the limit is 4, and 1 is held", n)
	}
}

// TestTimes checks the timeouts of slow connections.
func TestTimes(t *testing.T) {
	const brief = 200 * time.Millisecond
	for name, c := range map[string]struct {
		limit func(*httpd.Limits)
		send  string
	}{
		"header": {func(l *httpd.Limits) { l.ReadHeader = brief }, "GET /ok HTTP/1.1\r\nHost: x\r\n"},
		"body":   {func(l *httpd.Limits) { l.Read = brief }, "POST /ok HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"},
		"answer": {func(l *httpd.Limits) { l.Write = brief }, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n"},
		"idle":   {func(l *httpd.Limits) { l.Idle = brief }, "GET /ok HTTP/1.1\r\nHost: x\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			l := httpd.Defaults()
			c.limit(&l)
			listener, address := serve(t, l)
			conn := dial(t, address)
			if _, err := io.WriteString(conn, c.send); err != nil {
				t.Fatal(err)
			}
			time.Sleep(brief / 4)
			if n := listener.open.Load(); n != 1 {
				t.Errorf("%d connections are open before the time is over", n)
			}
			listener.until(t, 0)
		})
	}
}

func TestLargeHeader(t *testing.T) {
	_, address := serve(t, httpd.Defaults())
	conn := dial(t, address)
	go fmt.Fprintf(conn, "GET /ok HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", strings.Repeat("a", 1<<20))
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %s", r.Status)
	}
}
