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
	"github.com/isthmus-net/isthmus/common/api/cniframe"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
)

// serve runs an agent on real sockets, with the real clock. The connection is for inspection.
func serve(t *testing.T) (r *rig, conn *grpc.ClientConn, stopServing func() error) {
	t.Helper()
	return serveOn(t, func(*socket.Sockets) {})
}

// serveOn is serve with sockets that the test may change.
func serveOn(t *testing.T, change func(*socket.Sockets)) (r *rig, conn *grpc.ClientConn, stopServing func() error) {
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
	path := r.socket()
	sockets, err := socket.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	change(sockets)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- r.agent.Serve(ctx, sockets) }()
	conn, err = grpc.NewClient("passthrough:///agent", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return socket.Dial(ctx, socket.Inspection(path))
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return r, conn, func() error { cancel(); return <-served }
}

func TestInspect(t *testing.T) {
	r, conn, stopServing := serve(t)
	ctx := context.Background()
	inspect := isthmusv1.NewInspectClient(conn)
	r.agent.Publish(cluster{pods: 3}.snapshot())
	r.mustAdd(1)
	time.Sleep(50 * time.Millisecond) // wait until the agent publishes the view
	node, err := inspect.GetNode(ctx, &isthmusv1.GetNodeRequest{})
	if err != nil || !node.GetReady() || node.GetNode() != "node1" || node.GetOs() != "linux" || node.GetEndpoints() != 1 || node.GetPodsKnown() != 4 ||
		node.GetPolicies() != 1 || fmt.Sprint(node.GetPodCidrs()) != "[10.0.1.0/24]" || node.GetAppliedUnixNano() == 0 || len(node.GetProblems()) > 0 {
		t.Errorf("GetNode: %v, %v", node, err)
	}
	r.fake.Break(id(1), "routes")
	list, err := inspect.ListEndpoints(ctx, &isthmusv1.ListEndpointsRequest{})
	if err != nil || len(list.GetEndpoints()) != 1 {
		t.Fatalf("ListEndpoints: %v, %v", list, err)
	}
	e := list.GetEndpoints()[0]
	if e.GetPodName() != "web-1" || fmt.Sprint(e.GetPolicies()) != "[NetworkPolicy shop/shut]" || len(e.GetTable()) != 32 ||
		fmt.Sprint(e.GetProblems()) != "[routes is missing]" || e.GetHostIfName() == "" || len(e.GetAddresses()) != 1 {
		t.Errorf("ListEndpoints: %v", e)
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
	r.started()
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
	go func() { waits <- r.ask(time.Minute, cniframe.Add, addRequest(5), nil) }()
	time.Sleep(50 * time.Millisecond)
	go func() { works <- r.ask(time.Minute, cniframe.Add, addRequest(0), nil) }()
	<-inside
	stopped := make(chan error, 1)
	go func() { stopped <- stopServing() }()
	time.Sleep(50 * time.Millisecond)
	close(release)
	if err := <-works; err != nil {
		t.Errorf("the request that was at work: %v", err)
	}
	wantRefusal(t, <-waits, 11, "isthmus-agent is stopping")
	if err := <-stopped; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := isthmusv1.NewInspectClient(conn).GetNode(context.Background(), &isthmusv1.GetNodeRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("GetNode after the end: %v", err)
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
	if err := r.ask(time.Minute, cniframe.Add, addRequest(0), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := isthmusv1.NewInspectClient(conn).GetNode(context.Background(), &isthmusv1.GetNodeRequest{}); err != nil {
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
