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

	"github.com/isthmus-net/isthmus/common/kube/kubetest"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/cluster/clustertest"
)

// inPods serves the nodes of a cluster as an API server, and a further node without an agent. Commands run on the nodes.
func inPods(t *testing.T, c *cluster.Cluster) *kubetest.ExecServer {
	nodes, pods := []corev1.Node{kubetest.ClusterNode("other", "linux")}, []corev1.Pod{}
	byPod := make(map[string]*cluster.Node)
	for _, n := range c.Nodes {
		pod := kubetest.AgentPod("isthmus-agent-"+n.Name, n.Name, "agent-"+string(n.OS))
		nodes, pods = append(nodes, kubetest.ClusterNode(n.Name, string(n.OS))), append(pods, pod)
		byPod[pod.Namespace+"/"+pod.Name] = n
	}
	return kubetest.NewExecServer(t, nodes, pods, func(pod string, command []string) (stdout, stderr []byte, status int) {
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
}

// TestAllNodes asks the agents of all nodes through an API server.
func TestAllNodes(t *testing.T) {
	c := commands.Start(t, manifests, cluster.Config{Linux: 2, Windows: 1})
	e := &exercise{t: t, cluster: c, pods: clustertest.Attach(t, c)}
	config := []string{"--all-nodes", "--kubeconfig", inPods(t, c).Kubeconfig(t)}
	user := filepath.Join(t.TempDir(), "kubectl-isthmus")
	if err := os.Symlink(c.Nodes[0].Ctl(t.Context()).Path, user); err != nil {
		t.Fatal(err)
	}
	e.eventually(user, append([]string{"status"}, config...), 3, "NODE READY OS VERSION PODS PROBLEMS DRIFT", "linux1 yes linux (Linux ", "linux2 yes linux (Linux ", "win1 yes windows (HNS ",
		"other unknown linux unknown - - -", "other: no answer: no pod of the agent is on this node", "status: nodes=4 ready=3 unknown=1 problems=0 drift=0")
	for _, p := range c.Nodes[1].PodCIDRs[:1] {
		e.at(c.Nodes[0], "ip", "route", "del", p.String())
	}
	e.eventually(user, append([]string{"status"}, config...), 3, "linux1: drift, repaired: ", "ready=3 unknown=1 problems=0 drift=1")
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
			return
		}
		out += "\n" + cmd.ProcessState.String()
	}
	e.t.Errorf("%s: want status %d and %q, got\n%s", strings.Join(args, " "), status, parts, out)
}
