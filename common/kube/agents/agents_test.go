// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/isthmus-net/isthmus/common/kube/agents"
	"github.com/isthmus-net/isthmus/common/kube/kubetest"
	"github.com/isthmus-net/isthmus/common/kube/watch"
)

// server is a cluster with nodes in several states.
func server(t *testing.T, run kubetest.Command) *kubetest.ExecServer {
	waits := kubetest.AgentPod("agent-4", "n4", "agent-linux")
	waits.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	pending := kubetest.AgentPod("agent-5", "n5", "agent-linux")
	pending.Status = corev1.PodStatus{Phase: corev1.PodPending}
	earlier := kubetest.AgentPod("agent-0", "n1", "agent-linux")
	earlier.CreationTimestamp.Time = time.Unix(1, 0)
	earlier.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}
	now := kubetest.AgentPod("agent-1", "n1", "agent-linux")
	now.CreationTimestamp.Time = time.Unix(2, 0)
	// Users of other namespaces can label pods as those of agents.
	forged := kubetest.AgentPod("forged-1", "n1", "agent-linux")
	forged.Namespace, forged.CreationTimestamp.Time = "shop", time.Unix(3, 0)
	alone := kubetest.AgentPod("forged-3", "n3", "agent-linux")
	alone.Namespace = "shop"
	return kubetest.NewExecServer(t,
		[]corev1.Node{kubetest.ClusterNode("w1", "windows"), kubetest.ClusterNode("n1", "linux"), kubetest.ClusterNode("n3", "linux"), kubetest.ClusterNode("n4", "linux"), kubetest.ClusterNode("n5", "linux")},
		[]corev1.Pod{forged, alone, earlier, now, kubetest.AgentPod("agent-w1", "w1", "agent-windows"), waits, pending}, run)
}

func open(t *testing.T, s *kubetest.ExecServer) *agents.Cluster {
	t.Helper()
	return openIn(t, s, agents.DefaultNamespace)
}

func openIn(t *testing.T, s *kubetest.ExecServer, namespace string) *agents.Cluster {
	t.Helper()
	cfg := watch.DefaultAPIConfig(s.Kubeconfig(t))
	cfg.Rules, cfg.UserAgent = true, "test"
	c, err := agents.New(cfg, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestList(t *testing.T) {
	s := server(t, nil)
	list, err := open(t, s).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range list {
		got = append(got, fmt.Sprintf("%s %s %s %.60s", a.Node, a.OS, a.Pod, a.Missing))
	}
	want := []string{"n1 linux agent-1 ", "n3 linux  no pod of the agent is on this node: check the DaemonSet, it", "n4 linux agent-4 pod isthmus-system/agent-4: container agent waits: CrashLoop",
		"n5 linux agent-5 pod isthmus-system/agent-5: container agent does not run: th", "w1 windows agent-w1 "}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if q := s.Selectors(); len(q) == 0 || q[0] != agents.Selector {
		t.Errorf("selectors %q", q)
	}
}

// TestListElsewhere checks that pods of other namespaces are named, and not taken for agents.
func TestListElsewhere(t *testing.T) {
	s := server(t, nil)
	list, err := openIn(t, s, "kube-system").List(t.Context())
	if want := "namespace kube-system has no pod of an agent, but pods with such labels are in isthmus-system, shop: give --agent-namespace"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, %v, want the error %q", list, err, want)
	}
	none := kubetest.NewExecServer(t, []corev1.Node{kubetest.ClusterNode("n1", "linux")}, nil, nil)
	if list, err := open(t, none).List(t.Context()); err != nil || len(list) != 1 || list[0].Missing == "" {
		t.Errorf("without any pod: %v, %v", list, err)
	}
}

func TestRun(t *testing.T) {
	large := bytes.Repeat([]byte("0123456789abcdef"), 20000)
	s := server(t, func(pod string, command []string) ([]byte, []byte, int) {
		if strings.Contains(pod, "w1") {
			return []byte(strings.Join(command, "|")), []byte("a remark\n"), 3
		}
		switch command[1] {
		case "large":
			return large, nil, 0
		case "endless":
			return bytes.Repeat(large, 30), nil, 0
		case "slow":
			time.Sleep(2 * time.Second)
		case "fails":
			return nil, []byte("isthmusctl: connect to the agent: no\n"), 1
		}
		return []byte(strings.Join(command, "|")), nil, 0
	})
	c := open(t, s)
	list, err := c.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	results := c.Run(t.Context(), 20*time.Second, agents.Everywhere(list, "status", "-o", "json"))
	for i, want := range []string{"/isthmusctl|status|-o|json 0 <nil>", " 0 no pod of the agent", " 0 pod isthmus-system/agent-4", " 0 pod isthmus-system/agent-5",
		`cmd|/c|%CONTAINER_SANDBOX_MOUNT_POINT%\isthmusctl.exe|status|-o|json 3 <nil>`} {
		r := results[i]
		if got := fmt.Sprintf("%s %d %v", r.Output, r.Status, r.Err); !strings.HasPrefix(got, want) || r.Node != list[i].Node {
			t.Errorf("%s: %s, want %s", r.Node, got, want)
		}
	}
	n1 := list[:1]
	if r := c.Run(t.Context(), 20*time.Second, agents.Everywhere(n1, "large"))[0]; r.Err != nil || !bytes.Equal(r.Output, large) {
		t.Errorf("large: %d bytes, %v", len(r.Output), r.Err)
	}
	if r := c.Run(t.Context(), 20*time.Second, agents.Everywhere(n1, "endless"))[0]; r.Err == nil || !strings.Contains(r.Err.Error(), "the answer is larger than") {
		t.Errorf("endless: %d bytes, %v", len(r.Output), r.Err)
	}
	if r := c.Run(t.Context(), 20*time.Second, agents.Everywhere(n1, "fails"))[0]; r.Status != 1 || r.Err == nil || r.Err.Error() != "connect to the agent: no" {
		t.Errorf("fails: %d, %v", r.Status, r.Err)
	}
	if r := c.Run(t.Context(), 100*time.Millisecond, agents.Everywhere(n1, "slow"))[0]; r.Err == nil || !strings.Contains(r.Err.Error(), "no answer in time: raise --timeout") {
		t.Errorf("slow: %q, %v", r.Output, r.Err)
	}
	s.Refuse("isthmus-system/agent-1")
	if r := c.Run(t.Context(), 20*time.Second, agents.Everywhere(n1, "status"))[0]; r.Err == nil || !strings.Contains(r.Err.Error(), "pods/exec") {
		t.Errorf("refused: %q, %v", r.Output, r.Err)
	}
}
