// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/model"
)

func TestInspect(t *testing.T) {
	r, conn, stopServing := serve(t)
	ctx := context.Background()
	inspect := isthmusv1.NewInspectClient(conn)
	r.publish(3)
	if err := r.ask(time.Minute, cniframe.Add, addRequest(1), nil); err != nil {
		t.Fatal(err)
	}
	node, err := inspect.GetNode(ctx, &isthmusv1.GetNodeRequest{})
	// The agent publishes the view after it has answered the request.
	for deadline := time.Now().Add(time.Minute); err == nil && node.GetEndpoints() == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		node, err = inspect.GetNode(ctx, &isthmusv1.GetNodeRequest{})
	}
	if err != nil || !node.GetReady() || node.GetNode() != "node1" || node.GetOs() != "linux" || node.GetEndpoints() != 1 || node.GetPodsKnown() != 3 ||
		node.GetPolicies() != 1 || fmt.Sprint(node.GetPodCidrs()) != "[10.0.1.0/24]" || node.GetAppliedUnixNano() == 0 || len(node.GetProblems()) > 0 {
		t.Errorf("GetNode: %v, %v", node, err)
	}
	r.fake.Break("c1:eth0", "routes")
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
	r.publish(1)
	inside, release := r.blockAdd()
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
	if r.fake.Decide("c0:eth0", model.Ingress, netip.MustParseAddr("10.0.2.7"), model.TCP, 80) != model.Allow {
		t.Error("the data path does not work without its agent")
	}
}

func TestNoGoroutineIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	r, conn, stopServing := serve(t)
	r.publish(2)
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
