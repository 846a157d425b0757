// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// controller is a running isthmus-controller.
type controller struct {
	t    *testing.T
	cmd  *exec.Cmd
	http string
	mu   sync.Mutex
	log  bytes.Buffer
	done chan struct{}
}

// Write appends to the log.
func (c *controller) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.Write(b)
}

// startController runs a controller with the role of the release.
func startController(t *testing.T, s *Server, bin, kubeconfig, identity string, flags ...string) *controller {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	c := &controller{t: t, http: ln.Addr().String(), done: make(chan struct{})}
	must(t, ln.Close())
	c.cmd = exec.Command(bin, append([]string{"--kubeconfig", kubeconfig, "--identity", identity, "--namespace", "isthmus-system",
		"--lease-duration", "4s", "--http-address", c.http}, flags...)...)
	c.cmd.Stdout, c.cmd.Stderr = c, c
	must(t, s.inside(c.cmd.Start))
	go func() { c.cmd.Wait(); close(c.done) }()
	t.Cleanup(func() {
		c.cmd.Process.Kill()
		<-c.done
		if t.Failed() {
			t.Logf("%s: %s", identity, c.log.String())
		}
	})
	return c
}

// get reads a page of the controller's HTTP server.
func (c *controller) get(path string) (status int, body string) {
	r, err := http.Get("http://" + c.http + path)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(b)
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !f(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func nodeManifest(name, spec string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: %s}, spec: {%s}}", name, spec)
}

// rangesOf returns the pod ranges of a node.
func rangesOf(t *testing.T, s *Server, name string) []string {
	t.Helper()
	n, err := s.Get(context.Background(), nodeManifest(name, ""))
	must(t, err)
	cidrs, _, err := unstructured.NestedStringSlice(n.Object, "spec", "podCIDRs")
	must(t, err)
	return cidrs
}

// hasRanges returns a condition: the node has a range of each family.
func hasRanges(t *testing.T, s *Server, name string) func() bool {
	return func() bool { return len(rangesOf(t, s, name)) == 2 }
}

// controllerAccount builds isthmus-controller, and makes an account for it. It returns the binary and a kubeconfig.
func controllerAccount(t *testing.T, s *Server) (bin, kubeconfig string) {
	t.Helper()
	bin = filepath.Join(t.TempDir(), "isthmus-controller")
	out, err := exec.Command("go", "build", "-o", bin, "../../cmd/isthmus-controller").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	must(t, s.ApplyFiles(t.Context(), "../../deploy/rbac/controller.yaml"))
	kubeconfig = account(t, s, "controller", "isthmus-controller")
	apply(t, s, `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: isthmus-controller, namespace: isthmus-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: isthmus-controller-lease}
subjects: [{kind: ServiceAccount, name: controller, namespace: isthmus-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: isthmus-controller-events, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: isthmus-controller-events}
subjects: [{kind: ServiceAccount, name: controller, namespace: isthmus-system}]`)
	return bin, kubeconfig
}

// TestController runs two controllers, which give ranges to the nodes of a real API server, and kills the leader.
// Ranges do not overlap and do not change. A node for which no range is left waits until one is free.
func TestController(t *testing.T) {
	s := running(t)
	bin, kubeconfig := controllerAccount(t, s)
	// 10.77.0.0/21 has eight blocks: one reserved, one that a node has already.
	flags := []string{"--cluster-cidr=10.77.0.0/21", "--cluster-cidr=fd77::/48", "--reserved-cidr=10.77.2.0/24"}
	apply(t, s, nodeManifest("c-old", `podCIDR: 10.77.1.0/24, podCIDRs: [10.77.1.0/24, "fd77:0:0:9::/64"]`))
	for n := range 3 {
		apply(t, s, nodeManifest(fmt.Sprintf("c-%d", n), ""))
	}
	first := startController(t, s, bin, kubeconfig, "first", flags...)
	eventually(t, "the first works", func() bool {
		_, m := first.get("/metrics")
		return strings.Contains(m, "isthmus_controller_leader 1")
	})
	second := startController(t, s, bin, kubeconfig, "second", flags...)
	eventually(t, "the second waits", func() bool { status, _ := second.get("/readyz"); return status == 200 })
	for n := range 3 {
		eventually(t, fmt.Sprintf("c-%d has ranges", n), hasRanges(t, s, fmt.Sprintf("c-%d", n)))
	}
	was := map[string][]string{}
	for _, name := range []string{"c-old", "c-0", "c-1", "c-2"} {
		was[name] = rangesOf(t, s, name)
	}
	if got := strings.Join(was["c-0"], " "); got != "10.77.3.0/24 fd77:0:0:a::/64" {
		t.Errorf("c-0 has %s", got)
	}
	_, metrics := second.get("/metrics")
	if !strings.Contains(metrics, "isthmus_controller_leader 0") {
		t.Errorf("two controllers lead:\n%s", metrics)
	}

	// The second controller becomes the leader after the first was killed.
	must(t, first.cmd.Process.Kill())
	apply(t, s, nodeManifest("c-3", ""))
	eventually(t, "the second serves c-3", hasRanges(t, s, "c-3"))
	if status, body := second.get("/healthz"); status != 200 {
		t.Errorf("healthz: %d %s", status, body)
	}

	runOutOfBlocks(t, s, second)

	stopController(t, s, second)
	for name, want := range was {
		if got := rangesOf(t, s, name); !slices.Equal(got, want) {
			t.Errorf("%s had %v and has %v", name, want, got)
		}
	}
	var all []netip.Prefix
	for _, name := range []string{"c-old", "c-0", "c-1", "c-2", "c-3", "c-6"} {
		for _, text := range rangesOf(t, s, name) {
			p := netip.MustParsePrefix(text)
			if slices.ContainsFunc(all, p.Overlaps) {
				t.Errorf("%s of %s overlaps another", p, name)
			}
			all = append(all, p)
		}
	}
}

// runOutOfBlocks adds three nodes while two blocks are free. The third node gets an event, and a block as soon as
// another node is gone.
func runOutOfBlocks(t *testing.T, s *Server, leader *controller) {
	t.Helper()
	ctx := context.Background()
	for _, name := range []string{"c-4", "c-5"} {
		must(t, s.Apply(ctx, nodeManifest(name, "")))
		eventually(t, name, hasRanges(t, s, name))
	}
	apply(t, s, nodeManifest("c-6", ""))
	eventually(t, "an event says that no block is free", func() bool {
		var list struct {
			Items []struct{ Reason, Message string }
		}
		must(t, s.call(ctx, "GET", "/api/v1/events?fieldSelector=involvedObject.name%3Dc-6", nil, &list))
		return len(list.Items) > 0 && list.Items[0].Reason == "PodCIDRNotAvailable" &&
			strings.HasPrefix(list.Items[0].Message, "no block of /24 is free in 10.77.0.0/21: give the controller another --cluster-cidr")
	})
	_, metrics := leader.get("/metrics")
	for _, want := range []string{`isthmus_controller_blocks{range="10.77.0.0/21",state="free"} 0`, `isthmus_controller_nodes{state="waiting"} 1`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in\n%s", want, metrics)
		}
	}
	gone := rangesOf(t, s, "c-5")
	must(t, s.Delete(ctx, nodeManifest("c-5", "")))
	eventually(t, "c-6 gets what c-5 had", func() bool { got := rangesOf(t, s, "c-6"); return len(got) == 2 && got[0] == gone[0] })
	must(t, s.Delete(ctx, nodeManifest("c-4", "")))
}

// stopController sends SIGTERM. The controller ends, and releases the Lease, so that the next one can lead
// immediately.
func stopController(t *testing.T, s *Server, c *controller) {
	t.Helper()
	must(t, c.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		t.Fatal("the controller does not stop")
	}
	if code := c.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	lease, err := s.Get(t.Context(), "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: isthmus-controller, namespace: isthmus-system}}")
	must(t, err)
	if holder, _, _ := unstructured.NestedString(lease.Object, "spec", "holderIdentity"); holder != "" {
		t.Errorf("the lease is held by %q", holder)
	}
}
