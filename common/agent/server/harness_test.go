// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/agent/server"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
)

// rig is an agent on a data path in memory, with real sockets and the real clock.
type rig struct {
	t      *testing.T
	socket string
	fake   *dataplanetest.Fake
	agent  *agent.Agent
	stop   context.CancelFunc
	ended  chan error
}

// serve starts an agent and its server. The connection is for inspection.
func serve(t *testing.T) (r *rig, conn *grpc.ClientConn, stopServing func() error) {
	t.Helper()
	return serveOn(t, func(*socket.Sockets) {})
}

// serveOn is serve with sockets that the test may change.
func serveOn(t *testing.T, change func(*socket.Sockets)) (r *rig, conn *grpc.ClientConn, stopServing func() error) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the sockets are pipes that only administrators may open")
	}
	dir, err := os.MkdirTemp("", "isthmus") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r = &rig{t: t, socket: filepath.Join(dir, "a.sock"), ended: make(chan error, 1),
		fake: dataplanetest.NewFake(model.Features{OS: model.Linux, Platform: "test", IPv6: true})}
	c := agent.Defaults()
	c.NodeName, c.RecordDir, c.AddWait = "node1", filepath.Join(dir, "endpoints"), time.Second
	c.Open = func(context.Context, model.Node) (dataplane.Backend, error) { return r.fake, nil }
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	if r.agent, err = agent.New(c, log); err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	r.stop = stop
	go func() { r.ended <- r.agent.Run(running) }()
	sockets, err := socket.Open(r.socket)
	if err != nil {
		t.Fatal(err)
	}
	change(sockets)
	s := server.New(r.agent, log)
	s.StopTimeout = 2 * time.Second
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, sockets) }()
	conn, err = grpc.NewClient("passthrough:///agent", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return socket.Dial(ctx, socket.Inspection(r.socket))
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return r, conn, func() error { cancel(); return <-served }
}

// end stops the agent.
func (r *rig) end() {
	r.t.Helper()
	r.stop()
	if err := <-r.ended; err != nil {
		r.t.Fatalf("agent ended with %v", err)
	}
}

// publish publishes pods shop/web-0, web-1, ..., and a policy that isolates those with an odd
// number for ingress.
func (r *rig) publish(pods int) {
	node := &model.Node{Name: "node1", OS: model.Linux, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}}
	var list []*model.Pod
	for n := range pods {
		list = append(list, &model.Pod{PodID: model.PodID{Namespace: "shop", Name: fmt.Sprintf("web-%d", n)}, UID: fmt.Sprintf("uid-%d", n), Node: "node1",
			Labels: model.MakeLabels(map[string]string{"even": fmt.Sprint(n%2 == 0)})})
	}
	odd := model.MakeSelector(model.Requirement{Key: "even", Operator: model.In, Values: []string{"false"}})
	shut := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "shut"}, Tier: model.TierNetworkPolicy,
		Isolates: [2]bool{true, false}, Subject: model.PodSelector{Namespace: "shop", Pods: odd}}
	r.agent.Publish(model.MakeSnapshot(nil, []*model.Node{node}, list, []*model.Policy{shut}))
}

func addRequest(n int) *cniframe.AddRequest {
	return &cniframe.AddRequest{Attachment: cniframe.Attachment{ContainerID: fmt.Sprintf("c%d", n), IfName: "eth0"},
		Netns: fmt.Sprintf("/run/netns/c%d", n), PodNamespace: "shop", PodName: fmt.Sprintf("web-%d", n), PodUID: fmt.Sprintf("uid-%d", n), Network: "pods"}
}

// connect opens a connection to the CNI socket.
func (r *rig) connect() net.Conn {
	r.t.Helper()
	c, err := socket.Dial(context.Background(), r.socket)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// ask calls the agent as the plugin does.
func (r *rig) ask(timeout time.Duration, kind cniframe.Kind, request, answer any) error {
	c := r.connect()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return cniframe.Call(ctx, c, kind, request, answer)
}

func wantRefusal(t *testing.T, err error, code uint32, text string) {
	t.Helper()
	var e *cniframe.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Msg+e.Details, text) {
		t.Errorf("got %v, want code %d with %q", err, code, text)
	}
}

// started waits until the loop runs: the socket answers before that.
func (r *rig) started() {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		err := r.ask(time.Minute, cniframe.Status, struct{}{}, nil)
		var e *cniframe.Error
		if !errors.As(err, &e) || !strings.Contains(e.Msg+e.Details, "the agent is starting") {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatal("the agent is starting for a minute")
		}
	}
}

// blockAdd makes the next attachment stop in the data path. It closes inside when the attachment is there,
// and continues when release is closed.
func (r *rig) blockAdd() (inside, release chan struct{}) {
	inside, release = make(chan struct{}), make(chan struct{})
	r.fake.SetFault(func(_ context.Context, step string) error {
		if step == "add.deny" {
			close(inside)
			<-release
		}
		return nil
	})
	return inside, release
}

// metric returns the value of a series, "" if it is missing.
func (r *rig) metric(series string) string {
	w := httptest.NewRecorder()
	r.agent.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.SplitSeq(w.Body.String(), "\n") {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return value
		}
	}
	return ""
}
