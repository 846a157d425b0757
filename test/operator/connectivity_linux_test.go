// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/kube/kubetest"
	"github.com/isthmus-net/isthmus/test/cluster"
)

// command returns isthmusctl connectivity as a user runs it.
func (k *kubelets) command(args ...string) *exec.Cmd {
	args = append([]string{"connectivity", "--kubeconfig", k.api.Kubeconfig(k.t), "--windows-image", "probe:windows", "--settle", "10s", "--attempt-timeout", "700ms"}, args...)
	cmd := exec.Command(k.ctl, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG=")
	return cmd
}

// test runs isthmusctl connectivity and checks its exit status and parts of its output.
func (k *kubelets) test(status int, parts []string, args ...string) string {
	k.t.Helper()
	var out, errs bytes.Buffer
	cmd := k.command(args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		k.t.Fatal(err)
	}
	k.t.Logf("isthmusctl connectivity %s:\n%s%s", strings.Join(args, " "), errs.String(), out.String())
	flat := strings.Join(strings.Fields(out.String()+errs.String()), " ")
	for _, p := range parts {
		if !strings.Contains(flat, p) {
			k.t.Errorf("no %q", p)
		}
	}
	if got := cmd.ProcessState.ExitCode(); got != status {
		k.t.Errorf("exit status %d, want %d", got, status)
	}
	return out.String()
}

func (k *kubelets) empty() {
	k.t.Helper()
	if left := k.namespaces(); len(left) > 0 {
		k.t.Errorf("left namespaces %q", left)
	}
}

// TestConnectivity tests two Linux nodes by isthmusctl connectivity, with real agents, pods, policies and translated Services:
// healthy, and with faults that it must name.
func TestConnectivity(t *testing.T) {
	c := commands.Start(t, "", cluster.Config{Linux: 2})
	k := startKubelets(t, c, true)

	// 2 nodes: 4 pairs, 2 families and protocols, to pods and to Services, 4 flows to nodes and 2 by name. Then 4 phases of
	// 4 pairs, 32 flows each, and in 2 of them 8 to the closed port.
	k.test(0, []string{"isthmusctl: connectivity, ", "4 of 4 pods run", "open: 38 of 38 flows as expected", "open service UDP IPv6 answered 4 4 0", "ingress denied pod TCP IPv4 blocked 4 4 0",
		"egress allowed pod UDP IPv6 answered 4 4 0", "connectivity: nodes=2 pods=4 flows=182 passed=182 failed=0"})
	k.empty()

	// A policy of another user denies UDP to servers.
	k.on = func(verb, resource, name string) {
		if verb != "create" || resource != "services" || name != "server-1" {
			return
		}
		for _, namespace := range k.namespaces() {
			k.api.Change("networkpolicies", namespace, func(all map[string]kubetest.Object) {
				all["other"] = kubetest.Object{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": kubetest.Object{"name": "other", "namespace": namespace},
					"spec": kubetest.Object{"podSelector": kubetest.Object{"matchLabels": kubetest.Object{"isthmus.dev/connectivity-pod": "server-1"}},
						"ingress": []any{kubetest.Object{"ports": []any{kubetest.Object{"protocol": "TCP", "port": 7000}}}}}}
				text, err := json.Marshal(all["other"])
				if err != nil || c.Manifests.Put("networkpolicies-other", string(text)) != nil {
					t.Error("no policy")
				}
			})
		}
	}
	out := k.test(1, []string{"FAILED open: client-1 (linux1) -> server-1 (linux1), udp/10.244.1.", "expected answered: no answer",
		"denied: isolated for ingress by NetworkPolicy isthmus-connectivity-", "/other, no rule accepts", "an edit that allows it: NetworkPolicy isthmus-connectivity-", "-> Service server-1 (linux1), udp/10.96.7.1:7000"}, "--settle", "3s")
	if strings.Contains(out, "FAILED open: client-1 (linux1) -> server-2") || strings.Contains(out, "tcp/10.244.1.3:7000") {
		t.Error("flows fail that policy allows")
	}
	k.on = nil
	k.empty()

	// The agent of a node stops before the policies change: the node does not enforce them.
	dead := c.Nodes[1]
	k.on = func(verb, resource, name string) {
		if verb+resource+name == "createnetworkpoliciesdeny-ingress" {
			if err := dead.Kill(); err != nil {
				t.Error(err)
			}
		}
		if verb+resource == "deletenamespaces" {
			if err := dead.Start(); err != nil {
				t.Error(err)
			}
			for range 200 { // it detaches the pods
				if s, err := dead.Status(t.Context()); err == nil && s.GetReady() {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
			t.Error("the agent does not come back")
		}
	}
	k.test(1, []string{"FAILED ingress denied: client-1 (linux1) -> server-2 (linux2)", "server-2 answered, but policy must block the flow", "node linux2: no answer: connect to the agent", "the same as above"}, "--settle", "3s", "-o", "text")
	k.on = nil
	k.empty()
	k.interrupted()
}

// interrupted ends runs by signals: SIGINT leaves nothing, and the next run removes what SIGKILL has left.
func (k *kubelets) interrupted() {
	k.t.Helper()
	for _, end := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		running := make(chan struct{}, 100)
		k.on = func(verb, resource, _ string) {
			if verb+resource == "createnetworkpolicies" {
				running <- struct{}{}
			}
		}
		cmd := k.command()
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			k.t.Fatal(err)
		}
		select {
		case <-running:
		case <-time.After(2 * time.Minute):
			k.t.Errorf("%s: no policy is made", end)
		}
		if err := cmd.Process.Signal(end); err != nil {
			k.t.Error(err)
		}
		_ = cmd.Wait()
		k.on = nil
		if end == syscall.SIGKILL {
			if left := k.namespaces(); len(left) != 1 {
				k.t.Errorf("a killed run has left %q", left)
			}
			continue
		}
		if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(errs.String(), "interrupted") {
			k.t.Errorf("%s: %s: %s", end, cmd.ProcessState, errs.String())
		}
		k.empty()
	}
	k.test(0, []string{"found 1 namespaces of other runs", "of an earlier run", "failed=0"}, "--node", "linux1", "--keep")
	if left := k.namespaces(); len(left) != 1 {
		k.t.Errorf("left %q, want the kept namespace", left)
	}
	k.test(0, []string{"connectivity: removed=1"}, "--cleanup")
	k.empty()
}

// TestConnectivityOfBothSystems tests a Linux node and an emulated Windows node, whose Services are headless.
func TestConnectivityOfBothSystems(t *testing.T) {
	c := commands.Start(t, "", cluster.Config{Linux: 1, Windows: 1})
	k := startKubelets(t, c, false)
	out := k.test(0, []string{`"kind": "Connectivity"`, `"os": "windows"`, `"failed": 0`}, "-o", "json")
	var r struct {
		APIVersion string
		Flows      []struct {
			Phase, Expected string
			FromNode        string `json:"from_node"`
			ToNode          string `json:"to_node"`
			Passed          bool
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.APIVersion != "isthmusctl.isthmus.dev/v1" {
		t.Fatalf("%v, %+v", err, r.APIVersion)
	}
	pairs := make(map[string]int)
	for _, f := range r.Flows {
		pairs[f.FromNode+" "+f.ToNode+" "+f.Phase+" "+f.Expected]++
	}
	for _, pair := range []string{"linux1 win1", "win1 linux1", "win1 win1", "linux1 linux1"} {
		for _, what := range []string{"open answered", "ingress denied blocked", "ingress allowed answered", "ingress allowed blocked", "egress denied blocked", "egress allowed answered"} {
			if pairs[pair+" "+what] == 0 {
				t.Errorf("no flow %s: %s", pair, what)
			}
		}
	}
	k.empty()
}
