// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/cniapi"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
)

// serve runs an agent on a real socket, with the real clock.
func serve(t *testing.T) (r *rig, conn *grpc.ClientConn, stopServing func() error) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the socket is a pipe that only administrators may open")
	}
	dir, err := os.MkdirTemp("", "isthmus") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r = &rig{t: t, dir: filepath.Join(dir, "endpoints"), fake: dataplanetest.NewFake(linux)}
	r.change = func(c *agent.Config) { c.AddWait, c.StopTimeout = time.Second, 2*time.Second }
	r.start()
	path := filepath.Join(dir, "a.sock")
	listener, err := socket.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- r.agent.Serve(ctx, listener) }()
	conn, err = grpc.NewClient("passthrough:///agent", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return socket.Dial(ctx, path) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return r, conn, func() error { cancel(); return <-served }
}

func detail(t *testing.T, err error) *cniapi.CNIError {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if e, ok := d.(*cniapi.CNIError); ok {
			return e
		}
	}
	t.Fatalf("%v carries no CNIError", err)
	return nil
}

func TestServe(t *testing.T) {
	r, conn, stopServing := serve(t)
	ctx := context.Background()
	cni, inspect := cniapi.NewCNIClient(conn), cniapi.NewInspectClient(conn)
	_, err := cni.Status(ctx, &cniapi.StatusRequest{})
	if e := detail(t, err); e.GetCode() != 50 || status.Code(err) != codes.FailedPrecondition {
		t.Errorf("STATUS: %v", err)
	}
	r.agent.Publish(cluster{pods: 3}.snapshot())
	if _, err := cni.Add(ctx, addRequest(0)); err != nil {
		t.Fatal(err)
	}
	if _, err := cni.Check(ctx, &cniapi.CheckRequest{Attachment: addRequest(0).Attachment}); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	_, err = cni.Add(ctx, addRequest(7))
	if e := detail(t, err); e.GetCode() != 11 || status.Code(err) != codes.Unavailable || !strings.Contains(e.GetMsg(), "shop/web-7") {
		t.Errorf("ADD of an unknown pod: %v", err)
	}
	if _, err := cni.Add(ctx, addRequest(1)); err != nil {
		t.Fatal(err)
	}
	if got, err := cni.GC(ctx, &cniapi.GCRequest{Valid: []*cniapi.Attachment{addRequest(1).Attachment}}); err != nil || len(got.GetRemoved()) != 1 {
		t.Errorf("GC: %v, %v", got, err)
	}
	if _, err := cni.Del(ctx, &cniapi.DelRequest{Attachment: addRequest(0).Attachment}); err != nil {
		t.Errorf("DEL: %v", err)
	}
	if _, err := cni.Status(ctx, &cniapi.StatusRequest{}); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	node, err := inspect.GetNode(ctx, &cniapi.GetNodeRequest{})
	if err != nil || !node.GetReady() || node.GetNode() != "node1" || node.GetOs() != "linux" || node.GetEndpoints() != 1 || node.GetPodsKnown() != 4 ||
		node.GetPolicies() != 1 || fmt.Sprint(node.GetPodCidrs()) != "[10.0.1.0/24]" || node.GetAppliedUnixNano() == 0 || len(node.GetProblems()) > 0 {
		t.Errorf("GetNode: %v, %v", node, err)
	}
	r.fake.Break(id(1), "routes")
	list, err := inspect.ListEndpoints(ctx, &cniapi.ListEndpointsRequest{})
	if err != nil || len(list.GetEndpoints()) != 1 {
		t.Fatalf("ListEndpoints: %v, %v", list, err)
	}
	e := list.GetEndpoints()[0]
	if e.GetPodName() != "web-1" || fmt.Sprint(e.GetPolicies()) != "[NetworkPolicy shop/shut]" || len(e.GetTable()) != 32 ||
		fmt.Sprint(e.GetProblems()) != "[routes is missing]" || e.GetHostIfName() == "" || len(e.GetAddresses()) != 1 {
		t.Errorf("ListEndpoints: %v", e)
	}
	for series, want := range map[string]string{
		`isthmus_cni_requests_total{code="0",command="ADD"}`:       "2",
		`isthmus_cni_requests_total{code="11",command="ADD"}`:      "1",
		`isthmus_cni_requests_total{code="0",command="DEL"}`:       "1",
		`isthmus_cni_requests_total{code="50",command="STATUS"}`:   "1",
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

// TestServeStopsInOrder stops while one request waits for its pod and another
// is at work in the data path.
func TestServeStopsInOrder(t *testing.T) {
	r, conn, stopServing := serve(t)
	cni := cniapi.NewCNIClient(conn)
	r.agent.Publish(cluster{pods: 1}.snapshot())
	inside, release := make(chan struct{}), make(chan struct{})
	r.fake.SetFault(func(_ context.Context, step string) error {
		if step == "add.deny" {
			close(inside)
			<-release
		}
		return nil
	})
	waits, works := make(chan error, 1), make(chan error, 1)
	go func() { _, err := cni.Add(context.Background(), addRequest(5)); waits <- err }()
	time.Sleep(50 * time.Millisecond)
	go func() { _, err := cni.Add(context.Background(), addRequest(0)); works <- err }()
	<-inside
	stopped := make(chan error, 1)
	go func() { stopped <- stopServing() }()
	time.Sleep(50 * time.Millisecond)
	close(release)
	if err := <-works; err != nil {
		t.Errorf("the request that was at work: %v", err)
	}
	if e := detail(t, <-waits); e.GetCode() != 11 {
		t.Errorf("the request that waited: %v", e)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := cni.Status(context.Background(), &cniapi.StatusRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("STATUS after the end: %v", err)
	}
	r.end()
	if !r.reachable(0) {
		t.Error("the data path does not work without its agent")
	}
}

func TestNoGoroutineIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	r, conn, stopServing := serve(t)
	r.agent.Publish(cluster{pods: 2}.snapshot())
	if _, err := cniapi.NewCNIClient(conn).Add(context.Background(), addRequest(0)); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if err := stopServing(); err != nil {
		t.Fatal(err)
	}
	r.end()
	for i := 0; runtime.NumGoroutine() > before; i++ {
		if i == 100 {
			buf := make([]byte, 1<<16)
			t.Fatalf("%d goroutines before, %d after\n%s", before, runtime.NumGoroutine(), buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestConfigValidate(t *testing.T) {
	if err := agent.Defaults().Validate(); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("want the node name, the directory and the data path to be missed, got %v", err)
	}
	good := func() agent.Config {
		c := agent.Defaults()
		c.NodeName, c.RecordDir = "n", "/r"
		c.Open = func(context.Context, model.Node) (dataplane.Backend, error) { return nil, nil }
		return c
	}
	if err := good().Validate(); err != nil {
		t.Error(err)
	}
	for text, change := range map[string]func(*agent.Config){
		"add wait is 0s":                         func(c *agent.Config) { c.AddWait = 0 },
		"stall 5s must be longer":                func(c *agent.Config) { c.Stall = 5 * time.Second },
		"retry max 1ms is below retry min":       func(c *agent.Config) { c.RetryMax = time.Millisecond },
		"max debounce 1ms is below debounce 5ms": func(c *agent.Config) { c.MaxDebounce = time.Millisecond },
		"quarantine -1s is negative":             func(c *agent.Config) { c.Quarantine = -time.Second },
		"pod range 10.0.0.1/24 has host bits":    func(c *agent.Config) { c.PodCIDRs = prefixes("10.0.0.1/24") },
	} {
		c := good()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %q", err, text)
		}
	}
}
