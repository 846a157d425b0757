// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/clitest"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/kube/kubetest"
)

// start runs the command and returns the address that it prints. stop interrupts it and returns its exit status.
func start(t *testing.T, args ...string) (address string, stop func() int) {
	t.Helper()
	in, out := io.Pipe()
	var errs bytes.Buffer
	e := cli.Env{Stdout: out, Stderr: &errs, Dial: socket.Dial}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		status := e.Run(ctx, append([]string{"ui"}, args...), Commands(e)...)
		out.CloseWithError(fmt.Errorf("the command ended with %d: %s", status, errs.String()))
		ended <- status
	}()
	line := make([]byte, 200)
	n, err := in.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	address = strings.TrimSpace(string(line[:n]))
	if !regexp.MustCompile(`^http://127\.0\.0\.1:\d+/[A-Z2-7]{26}/$`).MatchString(address) {
		t.Fatalf("it prints %q", line[:n])
	}
	return address, func() int {
		cancel()
		select {
		case status := <-ended:
			return status
		case <-time.After(30 * time.Second):
			t.Fatal("the command does not stop")
			return -1
		}
	}
}

// get requests an address, and returns the status and the page.
func get(t *testing.T, address string) (int, string) {
	t.Helper()
	r, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

// until polls a page until it contains a text.
func until(t *testing.T, address, want string) {
	t.Helper()
	body := ""
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if _, body = get(t, address); strings.Contains(body, want) {
			return
		}
	}
	t.Fatalf("%s: no %q in\n%s", address, want, body)
}

const manifest = `
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {kubernetes.io/os: windows}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {nodeName: n1, containers: [{name: c, image: i}]}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: api, namespace: shop}, spec: {selector: {matchLabels: {app: api}}, template: {metadata: {labels: {app: api}}, spec: {containers: [{name: c, image: i}]}}}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: api, namespace: shop}, spec: {podSelector: {matchLabels: {app: api}}, ingress: [{from: [{ipBlock: {cidr: "fd00::/8"}}], ports: [{port: 80}]}]}}
`

func TestManifests(t *testing.T) {
	address, stop := start(t, "-m", clitest.Directory(t, manifest))
	for path, want := range map[string]string{
		"":                "assumed: ",
		"reach/shop/shop": "Deployment/api",
		"explain?from=shop/web&to=shop/api-0&port=80": "Enforced by",
		"policies": "m.yaml:8",
		"nodes":    "windows",
	} {
		if status, body := get(t, address+path); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: status %d, no %q in\n%s", path, status, want, body)
		}
	}
	until(t, address+"inexact", "hns-9.5 over-blocks: the platform has no IPv6 rules")
	listen := strings.SplitN(strings.TrimPrefix(address, "http://"), "/", 2)[0]
	if status, _ := get(t, "http://"+listen+"/reach"); status != http.StatusNotFound {
		t.Errorf("without the token: status %d", status)
	}
	r, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "rebound.example"
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Body.Close(); answer.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("a name of another site: status %d", answer.StatusCode)
	}
	if status := stop(); status != 0 {
		t.Errorf("exit status %d", status)
	}
}

// Two runs have two tokens, and a port that is in use is an error.
func TestTokenAndPort(t *testing.T) {
	dir := clitest.Directory(t, manifest)
	first, stopFirst := start(t, "-m", dir)
	second, stopSecond := start(t, "-m", dir)
	if a, b := strings.Split(first, "/")[3], strings.Split(second, "/")[3]; a == b {
		t.Errorf("both have the token %s", a)
	}
	_, port, err := net.SplitHostPort(strings.Split(first, "/")[2])
	if err != nil {
		t.Fatal(err)
	}
	if status, _, errs := clitest.Run(Commands, "ui", "-m", dir, "--port", port); status != 2 || !strings.Contains(errs, "listen on --port: ") {
		t.Errorf("a port in use: %d, %q", status, errs)
	}
	stopFirst()
	stopSecond()
}

func TestBadFlags(t *testing.T) {
	dir := clitest.Directory(t, manifest)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-m", dir, "--port", "70000"}, "--port 70000: give a number from 0 to 65535"},
		{[]string{"-m", dir, "--agents"}, "--agents: works with an API server only"},
		{[]string{"-m", dir, "--agent-namespace", "x"}, "--agent-namespace: works with --agents only"},
		{[]string{"-m", dir, "--relay", "localhost"}, `--relay "localhost": give tls://HOST:PORT`},
		{[]string{"-m", dir, "--relay", "relay.example:4245"}, "--relay relay.example:4245: other machines send flows over TLS only: give tls://relay.example:4245"},
		{[]string{"-m", dir, "--relay", "127.0.0.1:4245", "--relay-token-file", "t"}, "--relay-token-file: works with --relay tls://HOST:PORT only"},
		{[]string{"-m", dir, "--relay-ca", "c"}, "--relay-ca: works with --relay tls://HOST:PORT only"},
		{[]string{"-m", dir, "--relay", "tls://localhost:4245", "--socket", "s"}, "--relay and --socket: give one of them"},
		{[]string{"-m", dir, "--socket", ""}, "--socket: name the agent's socket"},
		{[]string{"-m", dir, "--relay", "tls://localhost:4245", "--relay-ca", "none"}, "--relay-ca: open none: "},
		{[]string{"-m", dir, "--relay", "tls://localhost:4245", "--relay-ca", dir + "/m.yaml"}, "it has no certificate in PEM"},
		{[]string{"-m", dir, "--relay", "tls://localhost:4245", "--relay-token-file", "none"}, "--relay-token-file none: open none: "},
		{[]string{"-m", dir, "--relay", "tls://localhost:4245", "--relay-token-file", os.DevNull}, "the file is empty"},
		{[]string{"-m", dir, "x"}, `unexpected argument "x"`},
		{[]string{"-m", t.TempDir()}, "no policies, pods"},
		{[]string{"-m", clitest.Directory(t, manifest+"---\n{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: shop, labels: 1}}\n")}, "--skip-bad skips such documents"},
	} {
		if status, out, errs := clitest.Run(Commands, append([]string{"ui"}, c.args...)...); status != 2 || out != "" || !strings.Contains(errs, c.want) {
			t.Errorf("%q: %d, %q, %q", c.args, status, out, errs)
		}
	}
}

// A cluster is watched: the pages say so when its API server does not answer. Agents report their status, as to kubectl exec.
func TestCluster(t *testing.T) {
	pods := []corev1.Pod{kubetest.AgentPod("a1", "n1", "agent-linux"), kubetest.AgentPod("a2", "n2", "agent-linux")}
	pods[0].Labels["app"] = "x"
	server := kubetest.NewExecServer(t, []corev1.Node{kubetest.ClusterNode("n1", "linux"), kubetest.ClusterNode("n2", "linux"), kubetest.ClusterNode("n3", "windows")}, pods,
		func(pod string, command []string) ([]byte, []byte, int) {
			switch {
			case strings.HasSuffix(pod, "/a2"):
				return []byte("{"), nil, 0
			case command[1] == "policies":
				return []byte(`{"apiVersion":"isthmusctl.isthmus.dev/v1","kind":"NodePolicies","items":[{"policy":"NetworkPolicy shop/all","tier":"NetworkPolicy","pods":3,"inexact":[],"allowed":0,"denied":42,` +
					`"rules":[{"direction":"ingress","allowed":0,"denied":42}]}],"uncounted":{"default":5},"unit":"new flows"}`), nil, 0
			}
			return []byte(`{"ready":false,"version":"v1.2.3","platform":"kernel 6.1","endpoints":3,"problems":["no <route>"],"repairs":["slots: 2"],"path_modes":[{"part":"pods","mode":"tcx","count":3}]}`), nil, 3
		})
	server.Serve("/api/v1/namespaces", "Namespace")
	server.Serve("/apis/networking.k8s.io/v1/networkpolicies", "NetworkPolicy", map[string]any{"metadata": map[string]any{"name": "all", "namespace": "shop"}, "spec": map[string]any{"podSelector": map[string]any{}}})
	server.Serve("/api/v1/services", "Service")
	server.Serve("/apis/discovery.k8s.io/v1/endpointslices", "EndpointSlice")
	config := server.Kubeconfig(t)
	address, stop := start(t, "--kubeconfig", config, "--agents")
	until(t, address+"policies", "NetworkPolicy shop/all")
	until(t, address+"nodes", "v1.2.3")
	until(t, address+"policies", "0 allowed, 42 denied (1 node, 1 missing)")
	until(t, address+"policies/NetworkPolicy/shop/all", "isolation, ingress")
	until(t, address+"policies", "read the answer of pod isthmus-system/a2")
	_, body := get(t, address+"nodes")
	for _, want := range []string{`<td class="none">no</td>`, "no &lt;route&gt;", "slots: 2", "pods: tcx (3)", "read the answer of pod isthmus-system/a2", "n3"} {
		if !strings.Contains(body, want) {
			t.Errorf("nodes: no %q in\n%s", want, body)
		}
	}
	if _, body := get(t, address); strings.Contains(body, "Not up to date") {
		t.Errorf("before the end of the server:\n%s", body)
	}
	server.CloseClientConnections()
	server.Close()
	until(t, address, "Not up to date")
	if status := stop(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	if status, _, errs := clitest.Run(Commands, "ui", "--kubeconfig", config, "--timeout", "5s"); status != 2 || !strings.Contains(errs, "read from the API server: ") {
		t.Errorf("without a server: %d, %q", status, errs)
	}
}
