// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// reportWorld has a Windows node without IPv6. The policies with an IPv6 network cannot be exact there. One
// policy uses domain names, which no node supports.
const reportWorld = `
apiVersion: v1
kind: Node
metadata: {name: win1, labels: {kubernetes.io/os: windows}}
spec: {podCIDR: 10.244.9.0/24, podCIDRs: [10.244.9.0/24]}
status: {addresses: [{type: InternalIP, address: 192.168.0.9}]}
---
{apiVersion: v1, kind: Namespace, metadata: {name: told, labels: {team: a}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: six, namespace: told}
spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: "2001:db8::/32"}}]}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: exact}
spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [169.254.169.254/32]}]}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: names}
spec: {tier: Admin, priority: 3, subject: {namespaces: {}}, egress: [{action: Accept, to: [{domainNames: [example.com]}]}]}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: old-six}
spec: {priority: 4, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: ["2001:db8::/32"]}]}]}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: BaselineAdminNetworkPolicy
metadata: {name: default}
spec: {subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: ["2001:db8::/32"]}]}]}
`

// sixPolicy is a ClusterNetworkPolicy with an address of each family.
func sixPolicy(network string) string {
	return fmt.Sprintf(`
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: six}
spec: {tier: Admin, priority: 2, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [%q]}]}]}
`, network)
}

// Constructs that a node cannot enforce exactly appear in the status of policies and in events: once, also after
// restarts of the agent, until the policy is corrected. The agent is that of a Windows node, with the roles of
// the release.
func TestReport(t *testing.T) {
	s := running(t)
	ctx := context.Background()
	apply(t, s, reportWorld+"---"+sixPolicy("2001:db8::/32"))
	kubeconfig := account(t, s, "win", "isthmus-agent", "isthmus-agent-report")
	bin := commands(t)
	node := startWindows(t, bin, kubeconfig)

	const onWindows = "isthmus.dev/EnforcedOnWindowsHNS13.3"
	for _, object := range []string{"ClusterNetworkPolicy six", "AdminNetworkPolicy old-six", "BaselineAdminNetworkPolicy default"} {
		c := s.untilCondition(t, object, onWindows, func(c map[string]any) bool { return c != nil })
		if c["status"] != "False" || c["reason"] != "OverBlocks" || !contains(c["message"], "egress rule 0", "ipBlock IPv6", "reported by node win1") {
			t.Errorf("%s: %v", object, c)
		}
	}
	c := s.untilCondition(t, "ClusterNetworkPolicy names", onWindows, func(c map[string]any) bool { return c != nil })
	if !contains(c["message"], "spec.egress[0].to[0].domainNames", "list the addresses in networks") {
		t.Errorf("names: %v", c)
	}
	s.untilEvents(t, "told", "NetworkPolicy", "six", 1)
	for _, name := range []string{"six", "names"} {
		s.untilEvents(t, "default", "ClusterNetworkPolicy", name, 1)
	}
	s.untilCondition(t, "Node win1", "isthmus.dev/PolicyEnforced", func(c map[string]any) bool { return c["status"] == "True" })
	if c := s.condition(t, "ClusterNetworkPolicy exact", onWindows); c != nil {
		t.Errorf("exact: %v", c)
	}

	// A restart repeats no report and writes nothing.
	node.stop(t)
	before := s.condition(t, "ClusterNetworkPolicy six", onWindows)
	node = startWindows(t, bin, kubeconfig)
	node.reported(t) // the reporter has read the condition of the Node, and before it all others
	time.Sleep(2 * time.Second)
	after := s.condition(t, "ClusterNetworkPolicy six", onWindows)
	if fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("after a restart: %v, was %v", after, before)
	}
	s.untilEvents(t, "told", "NetworkPolicy", "six", 1)
	if n := node.metric(t, `isthmus_report_requests_total{result="ok",what="condition"}`); n != 0 {
		t.Errorf("%v conditions written after a restart", n)
	}

	// A corrected policy has no report. When it is inexact again, the report returns.
	if err := s.Apply(ctx, sixPolicy("192.0.2.0/24")); err != nil {
		t.Fatal(err)
	}
	s.untilCondition(t, "ClusterNetworkPolicy six", onWindows, func(c map[string]any) bool { return c == nil })
	if err := s.Apply(ctx, sixPolicy("2001:db8:1::/48")); err != nil {
		t.Fatal(err)
	}
	c = s.untilCondition(t, "ClusterNetworkPolicy six", onWindows, func(c map[string]any) bool { return c != nil })
	if got, _ := s.Get(ctx, manifestOf("ClusterNetworkPolicy six")); c["observedGeneration"] != got.GetGeneration() {
		t.Errorf("is about generation %v, not %d", c["observedGeneration"], got.GetGeneration())
	}
}

// A deny list says in its status what nodes leave out, also under the admission policies of the chart: until it is
// corrected.
func TestDenyListStatus(t *testing.T) {
	s := running(t)
	ctx := context.Background()
	if err := s.ApplyFiles(ctx, "../../deploy/crds/denylists.yaml"); err != nil {
		t.Fatal(err)
	}
	list := func(entries string) {
		t.Helper()
		text := "apiVersion: isthmus.dev/v1alpha1\nkind: DenyList\nmetadata: {name: scanners}\nspec: {entries: [" + entries + "]}\n"
		var err error
		for deadline := time.Now().Add(waiting); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			if err = s.Apply(ctx, text); err == nil { // the kind is served a moment after its definition
				return
			}
		}
		t.Fatal(err)
	}
	apply(t, s, reportWorld)
	list(`192.0.2.7, nonsense`)
	startWindows(t, commands(t), account(t, s, "win", "isthmus-agent", "isthmus-agent-report"))
	const onWindows = "isthmus.dev/EnforcedOnWindowsHNS13.3"
	c := s.untilCondition(t, "DenyList scanners", onWindows, func(c map[string]any) bool { return c != nil })
	if c["status"] != "False" || c["reason"] != "Refused" || !contains(c["message"], `spec.entries[1]: "nonsense"`, "not the host", "reported by node win1") {
		t.Errorf("%v", c)
	}
	s.untilEvents(t, "default", "DenyList", "scanners", 1)
	list(`192.0.2.7`)
	c = s.untilCondition(t, "DenyList scanners", onWindows, func(c map[string]any) bool { return c != nil && !contains(c["message"], "nonsense") })
	if got, _ := s.Get(ctx, manifestOf("DenyList scanners")); c["observedGeneration"] != got.GetGeneration() {
		t.Errorf("is about generation %v, not %d", c["observedGeneration"], got.GetGeneration())
	}
}

// Without write access the agent continues. It counts failed writes, and repeats them when it has access.
func TestReportForbidden(t *testing.T) {
	s := running(t)
	apply(t, s, reportWorld)
	kubeconfig := account(t, s, "mute", "isthmus-agent")
	node := startWindows(t, commands(t), kubeconfig)
	node.until(t, "errors counted", func() bool {
		return node.metric(t, `isthmus_report_requests_total{result="error",what="condition"}`) > 0 &&
			node.metric(t, `isthmus_report_requests_total{result="error",what="event"}`) > 0 &&
			node.metric(t, `isthmus_report_requests_total{result="error",what="node"}`) > 0
	})
	if node.metric(t, "isthmus_ready") != 1 {
		t.Error("the agent is not ready")
	}
	account(t, s, "mute", "isthmus-agent-report")
	s.untilCondition(t, "AdminNetworkPolicy old-six", "isthmus.dev/EnforcedOnWindowsHNS13.3", func(c map[string]any) bool { return c != nil })
}

func contains(text any, parts ...string) bool {
	s, _ := text.(string)
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return true
}

// manifestOf names a cluster-scoped object.
func manifestOf(object string) string {
	kind, name, _ := strings.Cut(object, " ")
	version := map[string]string{"Node": "v1", "ClusterNetworkPolicy": "policy.networking.k8s.io/v1alpha2", "DenyList": "isthmus.dev/v1alpha1"}[kind]
	if version == "" {
		version = "policy.networking.k8s.io/v1alpha1"
	}
	return fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {name: %s}}", version, kind, name)
}

// condition reads a condition; nil if there is none.
func (s *Server) condition(t *testing.T, object, kind string) map[string]any {
	t.Helper()
	u, err := s.Get(context.Background(), manifestOf(object))
	if err != nil {
		t.Fatal(err)
	}
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, item := range list {
		if c, ok := item.(map[string]any); ok && c["type"] == kind {
			return c
		}
	}
	return nil
}

func (s *Server) untilCondition(t *testing.T, object, kind string, ok func(map[string]any) bool) map[string]any {
	t.Helper()
	for deadline := time.Now().Add(waiting); ; time.Sleep(50 * time.Millisecond) {
		c := s.condition(t, object, kind)
		if ok(c) {
			return c
		}
		if time.Now().After(deadline) {
			t.Fatalf("condition %s of %s is %v", kind, object, c)
		}
	}
}

// untilEvents waits until an object has a number of events of Isthmus.
func (s *Server) untilEvents(t *testing.T, namespace, kind, name string, want int) {
	t.Helper()
	client, err := dynamic.NewForConfig(s.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	events := client.Resource(schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}).Namespace(namespace)
	var found []string
	for deadline := time.Now().Add(waiting); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		list, err := events.List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		found = nil
		for _, e := range list.Items {
			regarding, _, _ := unstructured.NestedStringMap(e.Object, "regarding")
			controller, _, _ := unstructured.NestedString(e.Object, "reportingController")
			if regarding["kind"] == kind && regarding["name"] == name && strings.HasPrefix(controller, "isthmus.dev/") {
				note, _, _ := unstructured.NestedString(e.Object, "note")
				found = append(found, note)
			}
		}
		if len(found) == want {
			return
		}
	}
	t.Fatalf("%s %s has events %q, want %d", kind, name, found, want)
}

// commands builds what the tests run, once.
func commands(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "isthmus-commands-"); built.err != nil {
			return
		}
		cmd := exec.Command("go", "build", "-o", built.dir+"/", "../../cmd/isthmus-agent", "../../cmd/isthmus-cni", "../../cmd/isthmusctl", "../cluster/winnode")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("build commands: %w: %s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.dir
}

// windowsNode is the agent of a Windows node, as a process.
type windowsNode struct {
	cmd  *exec.Cmd
	log  string
	http string
	done bool
}

func startWindows(t *testing.T, bin, kubeconfig string, more ...string) *windowsNode {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &windowsNode{log: filepath.Join(dir, "log"), http: l.Addr().String()}
	l.Close()
	log, err := os.Create(n.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	n.cmd = exec.Command(filepath.Join(bin, "winnode"), append([]string{"--node-name", "win1", "--fabric", "none", "--kubeconfig", kubeconfig, "--state-dir", filepath.Join(dir, "state"),
		"--socket", filepath.Join(dir, "agent.sock"), "--control", filepath.Join(dir, "control.sock"), "--http-address", n.http}, more...)...)
	n.cmd.Stdout, n.cmd.Stderr = log, log
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(n.log)
			t.Logf("agent:\n%s", text)
		}
		n.stop(t)
	})
	n.until(t, "readiness", func() bool { return n.metric(t, "isthmus_ready") == 1 })
	return n
}

func (n *windowsNode) stop(t *testing.T) {
	if n.done {
		return
	}
	n.done = true
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := n.cmd.Wait(); err != nil {
		t.Errorf("agent: %v", err)
	}
}

// reported waits until the reporter has read the Node.
func (n *windowsNode) reported(t *testing.T) {
	t.Helper()
	n.until(t, "a report", func() bool { return n.metric(t, `isthmus_report_requests_total{result="ok",what="node"}`) > 0 })
}

func (n *windowsNode) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(waiting); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within %s", what, waiting)
		}
	}
}

// metric reads a metric; 0 if there is none.
func (n *windowsNode) metric(t *testing.T, name string) float64 {
	t.Helper()
	r, err := http.Get("http://" + n.http + "/metrics")
	if errors.Is(err, syscall.ECONNREFUSED) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindSubmatch(text)
	if found == nil {
		return 0
	}
	var value float64
	if _, err := fmt.Sscan(string(found[1]), &value); err != nil {
		t.Fatal(err)
	}
	return value
}
