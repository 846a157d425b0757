// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-net/isthmus/common/kube/kubetest"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/cluster/clustertest"
)

// inPods serves the nodes of a cluster as an API server, and a further node without an agent. Commands run on the nodes.
func (e *exercise) inPods() *kubetest.ExecServer {
	t, c := e.t, e.cluster
	nodes, pods := []corev1.Node{kubetest.ClusterNode("other", "linux")}, []corev1.Pod{}
	for _, p := range e.pods {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: map[string]string{"app": "server"}}, Spec: corev1.PodSpec{NodeName: p.Node.Name}}
		if p.Name == "client" || p.Name == "typo" {
			pod.Labels["app"] = p.Name
		}
		for _, a := range p.IPs {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a.String()})
		}
		pod.Status.Phase = corev1.PodRunning
		pods = append(pods, pod)
	}
	byPod := make(map[string]*cluster.Node)
	for _, n := range c.Nodes {
		pod := kubetest.AgentPod("isthmus-agent-"+n.Name, n.Name, "agent-"+string(n.OS))
		nodes, pods = append(nodes, kubetest.ClusterNode(n.Name, string(n.OS))), append(pods, pod)
		byPod[pod.Namespace+"/"+pod.Name] = n
	}
	s := kubetest.NewExecServer(t, nodes, pods, func(pod string, command []string) (stdout, stderr []byte, status int) {
		n := byPod[pod]
		first := slices.IndexFunc(command, func(word string) bool { return strings.Contains(word, "isthmusctl") })
		cmd := n.Ctl(context.Background(), command[first+1:]...)
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := n.NS.Do(cmd.Run)
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			return nil, []byte(err.Error()), 1
		}
		return []byte(out.String()), []byte(errs.String()), cmd.ProcessState.ExitCode()
	})
	meta := func(name string) map[string]any { return map[string]any{"name": name, "namespace": "test"} }
	s.Serve("/api/v1/namespaces", "Namespace", map[string]any{"metadata": map[string]any{"name": "test"}})
	s.Serve("/apis/networking.k8s.io/v1/networkpolicies", "NetworkPolicy", map[string]any{"metadata": meta("server"), "spec": map[string]any{
		"podSelector": map[string]any{"matchLabels": map[string]any{"app": "server"}},
		"ingress":     []any{map[string]any{"from": []any{map[string]any{"podSelector": map[string]any{"matchLabels": map[string]any{"app": "client"}}}}, "ports": []any{map[string]any{"port": 7000}}}}}})
	s.Serve("/api/v1/services", "Service", map[string]any{"metadata": meta("server"), "spec": map[string]any{"clusterIP": "10.96.0.5", "selector": map[string]any{"app": "server"},
		"ports": []any{map[string]any{"name": "good", "port": 80, "targetPort": 7000, "protocol": "TCP"}, map[string]any{"name": "bad", "port": 81, "targetPort": 7001, "protocol": "TCP"}}}})
	s.Serve("/apis/discovery.k8s.io/v1/endpointslices", "EndpointSlice")
	return s
}

// serviceRange is what a cluster has; without it a Windows node reports that its pods reach no Services.
const serviceRange = `
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/12]}
`

// TestAllNodes asks the agents of all nodes through an API server.
func TestAllNodes(t *testing.T) {
	c := commands.Start(t, manifests+serviceRange, cluster.Config{Linux: 2, Windows: 1})
	e := &exercise{t: t, cluster: c, pods: clustertest.Attach(t, c)}
	config := []string{"--all-nodes", "--kubeconfig", e.inPods().Kubeconfig(t)}
	user := filepath.Join(t.TempDir(), "kubectl-isthmus")
	if err := os.Symlink(c.Nodes[0].Ctl(t.Context()).Path, user); err != nil {
		t.Fatal(err)
	}
	e.eventually(user, append([]string{"status"}, config...), 3, "NODE READY OS VERSION PODS PROBLEMS DRIFT", "linux1 yes linux (kernel ", "linux2 yes linux (kernel ", "win1 yes windows (HNS ",
		"other unknown linux unknown - - -", "other: no answer: no pod of the agent is on this node", "linux1, linux2, win1: problem: warning: zz-pod-test-client.yaml", "agents have different versions: devel (2), winnode (1)", "status: nodes=4 ready=3 unknown=1 problems=12 drift=0")
	for _, p := range c.Nodes[1].PodCIDRs[:1] {
		e.at(c.Nodes[0], "ip", "route", "del", p.String())
	}
	e.eventually(user, append([]string{"status"}, config...), 3, "linux1: drift, repaired: ", "ready=3 unknown=1 problems=12 drift=1")
	e.eventually(user, append([]string{"status", "-o", "yaml"}, config...), 3, "kind: NodeStatusList", "node: win1", "pod: isthmus-system/isthmus-agent-linux1", "ready: true")
	e.eventually(user, append([]string{"doctor"}, config...), 1, "NODE OS OK WARNINGS ERRORS UNKNOWN", "linux1 linux ", "win1 windows ", "other linux - - - -", "other: no answer: no pod of the agent", "on: linux1, linux2")
	e.eventually(user, append([]string{"doctor", "-o", "json"}, config...), 1, `"kind": "NodeFindingsList"`, `"check": "kube-proxy"`)
	if err := c.Nodes[1].Kill(); err != nil {
		t.Fatal(err)
	}
	e.eventually(user, append([]string{"status"}, config...), 3, "linux2 unknown linux unknown - - -", "linux2: no answer: connect to the agent", "status: nodes=4 ready=2 unknown=2")
	if err := c.Nodes[1].Start(); err != nil {
		t.Fatal(err)
	}
	e.eventually(user, append([]string{"status"}, config...), 3, "status: nodes=4 ready=3 unknown=1")

	for _, args := range [][]string{{"--help"}, {"status", "--help"}, {"help", "doctor"}} {
		e.eventually(user, args, 0, "kubectl isthmus")
	}
	e.eventually(user, []string{"status", "--context", "x"}, 2, "isthmusctl: --context: works with --all-nodes only")
	e.eventually(user, []string{"statsu"}, 2, "see kubectl isthmus --help")
	e.eventually(c.Nodes[0].Ctl(t.Context()).Path, []string{"status", "--help"}, 0, "isthmusctl status [flags]")
}

// TestTraceAllNodes follows flows on the nodes of both ends at once, also to the backends of a Service.
func TestTraceAllNodes(t *testing.T) {
	c := commands.Start(t, manifests+serviceRange, cluster.Config{Linux: 2, Windows: 1})
	e := &exercise{t: t, cluster: c, pods: clustertest.Attach(t, c)}
	config := []string{"--all-nodes", "--kubeconfig", e.inPods().Kubeconfig(t)}
	ctl := c.Nodes[0].Ctl(t.Context()).Path
	to := func(to string, port string, more ...string) []string {
		return append(append([]string{"trace", "--from", "test/client", "--to", to, "--port", port}, more...), config...)
	}
	e.eventually(ctl, to("test/server", "7000"), 0, "on node linux1, linux2 intended: allow, installed: allow 1. attachment, test/client",
		"2. egress policy, test/client: intended allow (no policy isolates the pod for egress), installed allow", "3. path, linux1: to node linux2", "4. path, linux2: from node linux1",
		"5. attachment, test/server", "6. ingress policy, test/server: intended allow (ingress rule 0 of NetworkPolicy test/server, tier NetworkPolicy), installed allow")
	e.eventually(ctl, to("test/server", "7001"), 1, "intended: deny, installed: deny", "an edit that allows it: NetworkPolicy test/server")
	e.eventually(ctl, to("svc/test/server", "80"), 0, "Service test/server: 0 of 2 backends denied, 0 with drift",
		"1. service, test/server: the source's node replaces 10.96.0.5:80 by one of 2 backends, chosen for each connection; here DNAT to 10.244.2.2:7000 (test/server).",
		"(test/windows). Policy decides about the backend", "on node linux1, win1 intended: allow, installed: allow", "installed allow (ACL ")
	e.eventually(ctl, to("10.96.0.5", "bad"), 1, "Service test/server: 2 of 2 backends denied, 0 with drift", "replaces 10.96.0.5:81")
	e.eventually(ctl, to("svc/test/server", "82"), 2, "--port")
	e.eventually(ctl, to("svc/test/nothing", "80"), 2, "no Service test/nothing")
	e.eventually(ctl, to("svc/test/server", "80", "-o", "json"), 0, `"kind": "Traces"`, `"service": "test/server"`, `"node": "linux1, win1"`)
	if err := e.pods["server"].Node.Kill(); err != nil {
		t.Fatal(err)
	}
	e.eventually(ctl, to("test/server", "7000"), 0, "intended: allow, installed: unknown", "node linux2: no answer: connect to the agent")
	if err := e.pods["server"].Node.Start(); err != nil {
		t.Fatal(err)
	}
	e.eventually(ctl, to("test/server", "7000"), 0, "intended: allow, installed: allow")
	e.corrupt(e.pods["server"].Node)
	e.eventually(ctl, to("svc/test/server", "80"), 1, "Service test/server: 1 of 2 backends denied, 1 with drift", "installed: deny: DRIFT")
}

// eventually runs a program until it ends with a status and prints some parts, whatever the width of its columns.
func (e *exercise) eventually(program string, args []string, status int, parts ...string) {
	e.t.Helper()
	var out string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(300 * time.Millisecond) {
		cmd := exec.CommandContext(e.t.Context(), program, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG=")
		text, err := cmd.CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			e.t.Fatal(err)
		}
		out = string(text)
		flat := strings.Join(strings.Fields(out), " ")
		missing := cmd.ProcessState.ExitCode() != status || slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(flat, p) })
		if !missing {
			e.t.Logf("%s:\n%s", strings.Join(args, " "), out)
			return
		}
		out += "\n" + cmd.ProcessState.String()
	}
	e.t.Errorf("%s: want status %d and %q, got\n%s", strings.Join(args, " "), status, parts, out)
}
