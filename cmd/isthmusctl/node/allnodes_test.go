// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/kube/kubetest"
)

// ask runs a command line.
func ask(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	e := cli.Env{Stdout: &out, Stderr: &errs, Dial: func(context.Context, string) (net.Conn, error) { return nil, net.ErrClosed }}
	return e.Run(context.Background(), args, Commands(e)...), out.String(), errs.String()
}

// While a node does not answer, stderr names it: the answer comes after the timeout.
func TestAllNodesThatHang(t *testing.T) {
	nodes := []corev1.Node{kubetest.ClusterNode("n1", "linux"), kubetest.ClusterNode("n2", "linux")}
	pods := []corev1.Pod{kubetest.AgentPod("n1", "n1", "agent-linux"), kubetest.AgentPod("n2", "n2", "agent-linux")}
	answer := make(chan struct{})
	server := kubetest.NewExecServer(t, nodes, pods, func(pod string, _ []string) ([]byte, []byte, int) {
		if pod == "isthmus-system/n2" {
			<-answer
		}
		return []byte(`{"node":"n1","ready":true}`), nil, 0
	})
	status, out, errs := ask("status", "--all-nodes", "--kubeconfig", server.Kubeconfig(t), "--timeout", "4s")
	close(answer)
	if want := "isthmusctl: no answer yet from n2; --timeout ends the wait after 4s\n"; !strings.Contains(errs, want) || status != 3 || !strings.Contains(out, "nodes=2 ready=1 unknown=1") {
		t.Errorf("status %d, %q, want %q on stderr\n%s", status, errs, want, out)
	}
}

// What a node prints cannot control the terminal of the user, and an answer that is none is an error of that node.
func TestAllNodesOfBadNodes(t *testing.T) {
	answers := map[string]string{"n1": `{"node":"n1","ready":true,"version":"\u001b[2Jv1","problems":["a\u009bb\u0007\nstatus: nodes=0"],"a_new_field":1}`, "n2": "{", "n3": `["not", 1, "object"]`, "n4": ""}
	var nodes []corev1.Node
	var pods []corev1.Pod
	for name := range answers {
		nodes, pods = append(nodes, kubetest.ClusterNode(name, "linux")), append(pods, kubetest.AgentPod(name, name, "agent-linux"))
	}
	server := kubetest.NewExecServer(t, nodes, pods, func(pod string, command []string) ([]byte, []byte, int) {
		if command[1] == "doctor" {
			return []byte(`{"apiVersion":"v","kind":"DoctorReport","findings":[{"check":"a\u001b[31m","severity":"error","what":"x","why":"y","do":"z"}]}`), nil, 1
		}
		return []byte(answers[strings.TrimPrefix(pod, "isthmus-system/")]), nil, 0
	})
	config := server.Kubeconfig(t)
	for _, c := range []struct {
		args   []string
		status int
		parts  []string
	}{
		{[]string{"status"}, 3, []string{"n1    yes      linux  \ufffd[2Jv1", "n1: problem: a\ufffdb\ufffd status: nodes=0\n", "n2: no answer: read the answer of pod isthmus-system/n2", "n4: no answer: ", "nodes=4 ready=1 unknown=3"}},
		{[]string{"doctor"}, 1, []string{"n1    linux  0   0         1", "error    a\ufffd[31m: x\n         on:  n1, n2, n3, n4\n"}},
		{[]string{"status", "-o", "json"}, 3, []string{`"kind": "NodeStatusList"`, `"error": "read the answer of pod`}},
	} {
		status, out, errs := ask(append(c.args, "--all-nodes", "--kubeconfig", config)...)
		for _, p := range c.parts {
			if status != c.status || !strings.Contains(out, p) {
				t.Errorf("%q: status %d, no %q in\n%s%s", c.args, status, p, out, errs)
			}
		}
		if strings.ContainsAny(out, "\x1b\x07\u009b") {
			t.Errorf("%q: control characters in %q", c.args, out)
		}
	}
	for _, c := range []struct {
		args []string
		text string
	}{
		{[]string{"status", "--as", "x"}, "--as: works with --all-nodes only"},
		{[]string{"status", "--agent-namespace", "x"}, "--agent-namespace: works with --all-nodes only"},
		{[]string{"status", "--all-nodes", "--agent-namespace", ""}, "--agent-namespace: name the namespace of the agents"},
		{[]string{"status", "--all-nodes", "--kubeconfig", config, "--agent-namespace", "x"}, "find the agents: namespace x has no pod of an agent, but pods with such labels are in isthmus-system"},
		{[]string{"status", "--kubeconfig", config}, "--kubeconfig: works with --all-nodes only"},
		{[]string{"trace", "--context", "x"}, "--context: works with --all-nodes only"},
		{[]string{"status", "--all-nodes", "--socket", "/x"}, "--socket: it does not work with --all-nodes"},
		{[]string{"doctor", "--all-nodes", "--as-group", "x"}, "--as-group: give --as, too"},
		{[]string{"doctor", "--all-nodes", "--timeout", "0s"}, "--timeout 0s: give a duration above 0"},
	} {
		if status, _, errs := ask(c.args...); status != 2 || !strings.Contains(errs, c.text) {
			t.Errorf("%q: status %d, %q, want 2 and %q", c.args, status, errs, c.text)
		}
	}
	server.Close()
	if status, _, errs := ask("status", "--all-nodes", "--kubeconfig", config); status != 2 || !strings.Contains(errs, "find the agents: list nodes: ") {
		t.Errorf("without a server: %d, %q", status, errs)
	}
}
