// SPDX-License-Identifier: Apache-2.0

package probe_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/connectivity/probe"
)

// freePorts returns ports that are free for TCP on loopback.
func freePorts(t *testing.T, n int) (ports []uint16) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // all stay open until all are found
		ports = append(ports, l.Addr().(*net.TCPAddr).AddrPort().Port())
	}
	return ports
}

// serve starts a server that ends with the test.
func serve(t *testing.T, name string, ports ...uint16) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- probe.Serve(ctx, name, ports...) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for range 100 {
		c, err := net.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), ports[len(ports)-1]).String())
		if err == nil {
			c.Close()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the server does not listen")
}

// Every kind of attempt ends in the state that the server causes, and the answer names the server and the client.
func TestTry(t *testing.T) {
	ports := freePorts(t, 3)
	serve(t, "server-1", ports[:2]...)
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	other, err := net.Listen("tcp", "127.0.0.1:0") // answers something else
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	go func() {
		for {
			c, err := other.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(c).ReadString('\n') // otherwise the end of the connection is a reset
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n")
			c.Close()
		}
	}()
	port := func(a net.Addr) uint16 { return netip.MustParseAddrPort(a.String()).Port() }
	targets := []probe.Target{
		{probe.TCP, "127.0.0.1", ports[0]}, {probe.UDP, "127.0.0.1", ports[0]}, {probe.TCP, "localhost", ports[1]}, {probe.Connect, "127.0.0.1", ports[1]},
		{probe.TCP, "127.0.0.1", ports[2]}, {probe.UDP, "127.0.0.1", ports[2]}, {probe.Connect, "127.0.0.1", ports[2]},
		{probe.UDP, "127.0.0.1", port(silent.LocalAddr())}, {probe.TCP, "127.0.0.1", port(other.Addr())}, {probe.TCP, "no-such-name.invalid", 80},
	}
	want := []probe.State{probe.Answered, probe.Answered, probe.Answered, probe.Answered, probe.Refused, probe.Refused, probe.Refused, probe.Timeout, probe.Failed, probe.Lookup}
	for i, a := range probe.Try(t.Context(), 700*time.Millisecond, targets) {
		if a.State != want[i] || a.Target != targets[i].String() {
			t.Errorf("%s: %+v, want %s", targets[i], a, want[i])
		}
		if a.State == probe.Answered && targets[i].Kind != probe.Connect && (a.Server != "server-1" || !a.Client.IsLoopback()) {
			t.Errorf("%s: %+v", targets[i], a)
		}
		if (a.State == probe.Answered) != (a.Error == "") {
			t.Errorf("%s: %+v", targets[i], a)
		}
	}
}

// A flood of idle connections costs the server a bounded number, and it goes on answering by UDP.
func TestServerBounded(t *testing.T) {
	ports := freePorts(t, 1)
	serve(t, "s", ports...)
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), ports[0]).String()
	began := time.Now()
	var all []net.Conn
	for range 300 {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all = append(all, c)
	}
	var closed atomic.Int32
	var wait sync.WaitGroup
	for _, c := range all {
		wait.Go(func() {
			if err := c.SetReadDeadline(time.Now().Add(3 * time.Second)); err != nil {
				t.Error(err)
			}
			// Windows says "forcibly closed" for a reset.
			if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				closed.Add(1)
			}
		})
	}
	wait.Wait()
	// After ten seconds it closes the others, too: on a busy machine they may have passed.
	if n, took := closed.Load(), time.Since(began); n < 44 || n > 44 && took < 9*time.Second {
		t.Errorf("the server has closed %d of 300 idle connections after %s, want 44", n, took)
	}
	if a := probe.Try(t.Context(), 2*time.Second, []probe.Target{{probe.UDP, "127.0.0.1", ports[0]}})[0]; a.State != probe.Answered {
		t.Errorf("%+v", a)
	}
}

func TestParseTarget(t *testing.T) {
	for _, text := range []string{"tcp/10.0.0.1:80", "udp/[fd00::1]:7000", "connect/192.0.2.1:10250", "tcp/server-1.test.svc:7000"} {
		if got, err := probe.ParseTarget(text); err != nil || got.String() != text {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "tcp", "tcp/", "icmp/10.0.0.1:1", "tcp/10.0.0.1", "tcp/10.0.0.1:0", "tcp/10.0.0.1:65536", "tcp/:80", "udp/a b:1", "udp/a/b:1",
		"tcp/" + strings.Repeat("a", 254) + ":1", "tcp/fd00::1:80:"} {
		if got, err := probe.ParseTarget(text); err == nil {
			t.Errorf("%s: %v, want an error", text, got)
		}
	}
}

// What parses is printed as text that parses to the same target.
func FuzzParseTarget(f *testing.F) {
	f.Add("tcp/10.0.0.1:80")
	f.Add("udp/[fd00::1%eth0]:7000")
	f.Fuzz(func(t *testing.T, text string) {
		target, err := probe.ParseTarget(text)
		if err != nil {
			return
		}
		again, err := probe.ParseTarget(target.String())
		if err != nil || again != target {
			t.Errorf("%q: %v, then %v, %v", text, target, again, err)
		}
	})
}
