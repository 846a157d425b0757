// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bufio"
	"context"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/clitest"
	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/hubble/hubbletest"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
	"github.com/isthmus-net/isthmus/common/relay"
)

var quiet = slog.New(slog.DiscardHandler)

// serving runs a server until stop or the end of the test.
func serving(t *testing.T, serve func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// startAgent serves Hubble's interface of node n1, whose agent has the socket. deny adds a denied flow.
func startAgent(t *testing.T, path string) (deny func(port uint16), stop func()) {
	t.Helper()
	store := observe.NewStore(observe.Config{Keep: 4096}, quiet, func() *model.Snapshot { return nil })
	s, err := hubble.New(hubble.Config{Node: "n1", Version: "1", History: 100, Source: func() (*observe.Store, error) { return store, nil }, Snapshot: func() *model.Snapshot { return nil }}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	l, err := socket.Listen(socket.Hubble(path))
	if err != nil {
		t.Fatal(err)
	}
	stop = serving(t, func(ctx context.Context) error { return s.Serve(ctx, hubble.Listener{Listener: l}) })
	return func(port uint16) {
		f := model.FlowEvent{Time: time.Now(), Pod: model.PodID{Namespace: "shop", Name: "web"}, Verdict: model.Deny, Direction: model.Egress, Protocol: model.TCP,
			Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), SrcPort: 1024, DstPort: port}
		allowed := f
		allowed.Verdict, allowed.DstPort = model.Allow, 9
		store.Add([]model.FlowEvent{allowed, f})
	}, stop
}

// follow reads new flows until a line of the stream contains a text.
func follow(t *testing.T, address string) (until func(want string)) {
	t.Helper()
	client := &http.Client{Timeout: time.Minute} // also of the stream
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"flows/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("new flows: status %d", answer.StatusCode)
	}
	lines := bufio.NewScanner(answer.Body)
	return func(want string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), want) {
				return
			}
		}
		t.Fatalf("no line %q: %v", want, lines.Err())
	}
}

// every calls a function at intervals until stop is called, or the test ends.
func every(t *testing.T, interval time.Duration, f func()) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(interval):
				f()
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		close(done)
		<-ended
	})
	t.Cleanup(stop)
	return stop
}

// Without a relay the agent of this machine has the flows. Without both the page says what to give.
func TestFlowsOfTheAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "agent.sock")
	address, stop := start(t, "-m", clitest.Directory(t, manifest), "--socket", path)
	status, body := get(t, address+"flows")
	for _, want := range []string{"read flows of the agent of this machine: ", "no such file", "start isthmusctl ui with --relay tls://HOST:PORT, --relay-ca and --relay-token-file", "run it there as root"} {
		if status != http.StatusServiceUnavailable || !strings.Contains(body, want) || strings.Contains(body, "<script") {
			t.Errorf("without an agent: status %d, no %q in\n%s", status, want, body)
		}
	}
	if status, body := get(t, address+"flows/events"); status != http.StatusServiceUnavailable || !strings.Contains(body, "--relay") {
		t.Errorf("new flows without an agent: status %d, %s", status, body)
	}
	deny, end := startAgent(t, path)
	deny(80)
	until(t, address+"flows", "shop/web</td><td>10.0.0.2</td><td>TCP 80</td>")
	if _, body := get(t, address+"flows"); !strings.Contains(body, "Flows of this machine&#39;s node only.") || strings.Contains(body, "TCP 9<") {
		t.Errorf("with an agent:\n%s", body)
	}
	next := follow(t, address)
	stopDenying := every(t, 20*time.Millisecond, func() { deny(81) }) // the agent may get the request later than the answer begins
	next(`"port":"TCP 81"`)
	stopDenying()
	end()
	next("event: end")
	deny, _ = startAgent(t, path)
	deny(82)
	until(t, address+"flows", "TCP 82")
	if status := stop(); status != 0 {
		t.Errorf("exit status %d", status)
	}
}

// review knows two tokens, which read the flows of namespaces shop and pay.
type review struct{}

func (review) Authenticate(_ context.Context, token string) (access.User, error) {
	if token != "shop-1" && token != "shop-2" {
		return access.User{}, access.ErrUnauthenticated
	}
	return access.User{Name: token}, nil
}

func (review) Allowed(_ context.Context, _ access.User, r access.Right) (bool, error) {
	return r.Resource == access.Flows && r.Namespace == "shop", nil
}

// A relay shows what the token may read, over TLS. The token may change while the command runs.
func TestFlowsOfARelay(t *testing.T) {
	dir := t.TempDir()
	deny, _ := startAgent(t, filepath.Join(dir, "agent.sock"))
	pool := relay.NewPool(nil, quiet)
	t.Cleanup(pool.Close)
	if err := pool.Set(map[string]string{"n1": "unix://" + socket.Hubble(filepath.Join(dir, "agent.sock"))}); err != nil {
		t.Fatal(err)
	}
	const name = "relay.example"
	files := hubbletest.NewAuthority(t).Write(dir, name, x509.ExtKeyUsageServerAuth)
	identity, err := hubble.NewIdentity(files, quiet)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := relay.New(pool, access.NewChecker(review{}, nil), "1", quiet)
	serving(t, func(ctx context.Context) error {
		return r.Serve(ctx, hubble.Listener{Listener: l, Credentials: identity.Public()})
	})
	token := filepath.Join(dir, "token")
	write := func(text string) {
		if err := os.WriteFile(token, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("wrong\n")
	manifests, relayed := clitest.Directory(t, manifest), "tls://"+l.Addr().String()
	address, _ := start(t, "-m", manifests, "--relay", relayed, "--relay-ca", files.CA, "--relay-server-name", name, "--relay-token-file", token)
	if status, body := get(t, address+"flows?namespace=shop"); status != http.StatusServiceUnavailable || !strings.Contains(body, "not valid") || !strings.Contains(body, "the token in --relay-token-file") {
		t.Errorf("a wrong token: status %d\n%s", status, body)
	}
	write("shop-1\n")
	if status, body := get(t, address+"flows"); status != http.StatusForbidden || !strings.Contains(body, "name namespaces whose flows you may read") || !strings.Contains(body, `name="namespace"`) {
		t.Errorf("all namespaces: status %d\n%s", status, body)
	}
	deny(80)
	until(t, address+"flows?namespace=shop", "<td>TCP 80</td>")
	write("shop-2\n")
	if status, body := get(t, address+"flows?namespace=shop"); status != http.StatusOK || !strings.Contains(body, "Flows of the relay "+l.Addr().String()) {
		t.Errorf("another token: status %d\n%s", status, body)
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"unknown authority", []string{"--relay-server-name", name}},
		{"certificate", []string{"--relay-ca", files.CA}}, // it has another name
	} {
		address, _ := start(t, append([]string{"-m", manifests, "--relay", relayed, "--relay-token-file", token}, c.args...)...)
		if status, body := get(t, address+"flows"); status != http.StatusServiceUnavailable || !strings.Contains(body, c.want) || !strings.Contains(body, "check --relay, --relay-ca") {
			t.Errorf("%q: status %d\n%s", c.args, status, body)
		}
	}
}

// The streams of new flows are bounded, and one that ends makes place for another.
func TestManyFlows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "agent.sock")
	startAgent(t, path)
	address, _ := start(t, "-m", clitest.Directory(t, manifest), "--socket", path)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	request := func() int {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"flows/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { answer.Body.Close() })
		return answer.StatusCode
	}
	for i := range 16 {
		if status := request(); status != http.StatusOK {
			t.Fatalf("stream %d: status %d", i, status)
		}
	}
	if status := request(); status != http.StatusTooManyRequests {
		t.Errorf("one more: status %d", status)
	}
	cancel()
	until(t, address+"flows", "denied flows")
}
