// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/cluster/clustertest"
)

// manifests: client may reach server and windows at TCP 7000; typo has a label that no rule names.
const manifests = `
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: test, labels: {app: client}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: test, labels: {app: server}}
spec: {containers: [{name: main, ports: [{name: echo, containerPort: 7000, protocol: TCP}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: typo, namespace: test, labels: {app: cleint}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: windows, namespace: test, labels: {app: server}}
spec: {nodeSelector: {kubernetes.io/os: windows}, containers: [{name: main}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: test}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 7000}]}]
`

// exercise is a running cluster with its pods.
type exercise struct {
	t       *testing.T
	cluster *cluster.Cluster
	pods    map[string]*cluster.Pod
}

// commands are what the nodes of all tests run.
var commands clustertest.Commands

func TestMain(m *testing.M) { os.Exit(commands.Main(m)) }

func start(t *testing.T) *exercise { return startWith(t, cluster.Config{Linux: 2, Windows: 1}) }

func startWith(t *testing.T, cfg cluster.Config) *exercise {
	t.Helper()
	c := commands.Start(t, manifests, cfg)
	return &exercise{t: t, cluster: c, pods: clustertest.Attach(t, c)}
}

// ctl runs isthmusctl at a node and returns its output with its exit status.
func (e *exercise) ctl(n *cluster.Node, args ...string) (string, int) {
	e.t.Helper()
	cmd := n.Ctl(e.t.Context(), args...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		e.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// names repeats a command until it ends with a status and its output has all parts. The agent repairs some
// breakages while this test looks.
func (e *exercise) names(what string, n *cluster.Node, args []string, status int, parts ...string) {
	e.t.Helper()
	var out string
	var got int
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(300 * time.Millisecond) {
		out, got = e.ctl(n, args...)
		missing := got != status
		for _, p := range parts {
			missing = missing || !strings.Contains(out, p)
		}
		if !missing {
			e.t.Logf("%s: isthmusctl %s:\n%s", what, strings.Join(args, " "), out)
			return
		}
	}
	e.t.Errorf("%s: isthmusctl %s ends with %d, want %d and %q:\n%s", what, strings.Join(args, " "), got, status, parts, out)
}

func trace(from, to string, port int) []string {
	return []string{"trace", "--from", "test/" + from, "--to", "test/" + to, "-p", strconv.Itoa(port)}
}

// at runs a command in the namespace of a node.
func (e *exercise) at(n *cluster.Node, command string, args ...string) []byte {
	e.t.Helper()
	var out []byte
	err := n.NS.Do(func() (err error) {
		out, err = exec.CommandContext(e.t.Context(), command, args...).CombinedOutput()
		return err
	})
	if err != nil {
		e.t.Fatalf("%s %s: %v\n%s", command, strings.Join(args, " "), err, out)
	}
	return out
}

// hostInterface returns the interface of a pod at its node.
func (e *exercise) hostInterface(p *cluster.Pod) string {
	e.t.Helper()
	out, _ := e.ctl(p.Node, "endpoints", "-o", "json")
	var list struct {
		Endpoints []struct {
			Name string `json:"pod_name"`
			Host string `json:"host_if_name"`
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		e.t.Fatalf("%v\n%s", err, out)
	}
	for _, x := range list.Endpoints {
		if x.Name == p.Name {
			return x.Host
		}
	}
	e.t.Fatalf("%s is not attached", p.Name)
	return ""
}

// TestExercise breaks one thing after the other. One command names the cause of each.
func TestExercise(t *testing.T) {
	e := start(t)
	server := e.pods["server"]
	allowed := trace("client", "server", 7000)
	e.names("nothing is broken", server.Node, allowed, 0, "intended: allow, installed: ")

	e.names("a denying policy", server.Node, trace("client", "server", 7001), 1,
		"intended deny (isolated for ingress by NetworkPolicy test/server, no rule accepts), installed deny", "an edit that allows it: NetworkPolicy test/server")
	e.names("a wrong label", server.Node, trace("typo", "server", 7000), 1,
		"isolated for ingress by NetworkPolicy test/server", "an edit that allows it: NetworkPolicy test/server rule 0", "app=cleint, not app=client")

	other := e.cluster.Nodes[0]
	if other == server.Node {
		other = e.cluster.Nodes[1]
	}
	e.stopAgent(server.Node)
	e.deleteRoute(server.Node, other)
	e.detach(server)
	e.at(server.Node, "ip", "link", "set", e.hostInterface(server), "down")
	e.names("an interface that is down", server.Node, []string{"status"}, 0, "Repaired", "endpoint of pod test/server", "is down", "find that process")
	e.corrupt(server.Node)
	e.names("a damaged map", server.Node, allowed, 1, "installed: deny: DRIFT", "verdicts: table", "the agent repairs this at its next audit")
	e.blockACL()
}

func (e *exercise) stopAgent(n *cluster.Node) {
	e.t.Helper()
	if err := n.Kill(); err != nil {
		e.t.Fatal(err)
	}
	e.names("an agent that is stopped", n, []string{"status"}, 2, "connect to the agent", "start isthmus-agent")
	if err := n.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.names("an agent that is started", n, []string{"status"}, 0, "Ready:", "yes")
}

func (e *exercise) deleteRoute(n, to *cluster.Node) {
	e.t.Helper()
	for _, p := range to.PodCIDRs {
		if p.Addr().Is4() {
			e.at(n, "ip", "route", "del", p.String())
			e.names("a deleted route between nodes", n, []string{"status"}, 0, "Repaired", "route to "+p.String(), "find that process")
		}
	}
}

// TestInsideOfAPod changes the network inside of a pod, as a program in the pod would. Audits report it, and repair
// nothing. The report ends with the change.
func TestInsideOfAPod(t *testing.T) {
	e := startWith(t, cluster.Config{Linux: 2, Windows: 1, AgentFlags: []string{"--audit-interval=1s"}})
	p := e.pods["server"]
	inPod := func(args ...string) {
		e.t.Helper()
		if err := p.NS.Do(func() error { return exec.CommandContext(e.t.Context(), "ip", args...).Run() }); err != nil {
			e.t.Fatalf("ip %s: %v", strings.Join(args, " "), err)
		}
	}
	for family, gateway := range map[string]string{"-4": "169.254.1.1", "-6": "fe80::1"} {
		repair := []string{family, "route", "add", "default", "via", gateway, "dev", "eth0", "onlink"}
		inPod(family, "route", "del", "default")
		e.names("a deleted route inside of a pod", p.Node, trace("client", p.Name, 7000), 1, "attachment, test/"+p.Name, "default route by eth0",
			"recreate the pod, or run there: ip "+family+" route add default via "+gateway)
		e.names("a deleted route inside of a pod", p.Node, []string{"endpoints"}, 0, "default route by eth0")
		e.names("a deleted route inside of a pod", p.Node, []string{"status"}, 0, "warning: endpoint ", "of pod test/"+p.Name+": default route by eth0")
		time.Sleep(5 * time.Second) // five audits: more than an object that audits repair needs to be contested
		if out, _ := e.ctl(p.Node, "status"); !strings.Contains(out, "default route by eth0") || strings.Contains(out, "another process") {
			t.Errorf("status after five audits:\n%s", out)
		}
		inPod(repair...)
	}
	inPod("-4", "neigh", "replace", "169.254.1.1", "lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent")
	e.names("a changed neighbour inside of a pod", p.Node, trace("client", p.Name, 7000), 1, "neighbour 169.254.1.1 of eth0", "has another address than ")
	inPod("-4", "neigh", "replace", "169.254.1.1", "lladdr", e.hostMAC(p), "dev", "eth0", "nud", "permanent")
	e.names("a repaired pod", p.Node, trace("client", p.Name, 7000), 0, "intended: allow, installed: ")
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(300 * time.Millisecond) {
		out, _ := e.ctl(p.Node, "status")
		if !strings.Contains(out, "eth0 in ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("status of a repaired pod:\n%s", out)
		}
	}
}

// hostMAC returns the hardware address of a pod's interface at its node.
func (e *exercise) hostMAC(p *cluster.Pod) string {
	e.t.Helper()
	fields := strings.Fields(string(e.at(p.Node, "ip", "-o", "link", "show", "dev", e.hostInterface(p))))
	i := slices.Index(fields, "link/ether")
	if i < 0 || i+1 == len(fields) {
		e.t.Fatalf("no address in %q", fields)
	}
	return fields[i+1]
}

// detach detaches the programs of a pod, as a tool of another CNI would.
func (e *exercise) detach(p *cluster.Pod) {
	e.t.Helper()
	name := e.hostInterface(p)
	pins, err := filepath.Glob(filepath.Join(e.cluster.BPFFS(), p.Node.Name, "v*", "links", name+"-*"))
	if err != nil {
		e.t.Fatal(err)
	}
	detached := 0
	for _, pin := range pins {
		l, err := link.LoadPinnedLink(pin, nil)
		if err == nil {
			err = errors.Join(p.Node.NS.Do(l.Detach), l.Close())
		}
		if err != nil {
			e.t.Fatalf("%s: %v", pin, err)
		}
		detached++
	}
	if detached == 0 { // a kernel without tcx
		e.at(p.Node, "tc", "qdisc", "del", "dev", name, "clsact")
	}
	e.names("a program that is detached", p.Node, []string{"status"}, 0, "Repaired", "of pod test/"+p.Name, "find that process")
}

// corrupt removes every verdict from the maps of a node.
func (e *exercise) corrupt(n *cluster.Node) {
	e.t.Helper()
	found, err := filepath.Glob(filepath.Join(e.cluster.BPFFS(), n.Name, "v*", "verdicts"))
	if err != nil || len(found) == 0 {
		e.t.Fatalf("no map of verdicts: %v %v", found, err)
	}
	m, err := ebpf.LoadPinnedMap(found[len(found)-1], nil)
	if err != nil {
		e.t.Fatal(err)
	}
	defer m.Close()
	var keys [][]byte
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	for it := m.Iterate(); it.Next(&key, &value); {
		keys = append(keys, append([]byte(nil), key...))
	}
	for _, k := range keys {
		if err := m.Delete(k); err != nil {
			e.t.Fatal(err)
		}
	}
	if len(keys) == 0 {
		e.t.Fatal("the map has no verdicts")
	}
}

// blockACL replaces the ACLs of the Windows pod.
func (e *exercise) blockACL() {
	e.t.Helper()
	p := e.pods["windows"]
	e.names("nothing is broken", p.Node, trace("client", "windows", 7000), 0, "intended: allow", "installed allow (ACL ")
	e.replaceACLs(p)
	e.names("changed ACLs of Windows", p.Node, trace("client", "windows", 7000), 1, "installed: deny: DRIFT", "acl list: holds 2 ACLs that do not give the verdicts of the state",
		"the agent repairs this at its next audit", "another process writes there")
}

// replaceACLs replaces the ACLs of a Windows pod, as another process would.
func (e *exercise) replaceACLs(p *cluster.Pod) {
	e.t.Helper()
	var own netip.Addr
	for _, a := range p.IPs {
		if a.Is4() {
			own = a
		}
	}
	if err := p.Node.BlockByACL(e.t.Context(), own); err != nil {
		e.t.Fatal(err)
	}
}

// TestReplay: an archive says what its node says, on both systems, also of a node with drift.
func TestReplay(t *testing.T) {
	e := start(t)
	for _, name := range []string{"server", "windows"} {
		p := e.pods[name]
		file := filepath.Join(t.TempDir(), "node.tgz")
		began := time.Now()
		if out, status := e.ctl(p.Node, "bundle", "-o", file); status != 0 {
			t.Fatalf("bundle: %d\n%s", status, out)
		}
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != 0o600 || info.Size() > 20<<20 {
			t.Errorf("%v %v", info, err)
		}
		t.Logf("%s: %d bytes in %s", p.Node.Name, info.Size(), time.Since(began).Round(time.Millisecond))
		e.replay(p, file, "verify", 0, " 0 differ, ", "0 differences found by the audit")
		for _, port := range []int{7000, 7001} {
			e.same(p, file, trace("client", name, port))
		}
		e.replay(p, file, "explain --from test/client --to test/"+name+" -p 7001", 1, "isolated for ingress by NetworkPolicy test/server")
		e.replay(p, file, "matrix --protocol tcp -p 7000", 0, "test")
	}
	server, windows := e.pods["server"], e.pods["windows"]
	e.corrupt(server.Node)
	e.replayDrift(server, "DRIFT: verdicts")
	e.replaceACLs(windows)
	e.replayDrift(windows, "DRIFT: acl list")
}

// replayDrift makes an archive of a node with drift. The archive has the drift, and the verdicts and causes of the node.
func (e *exercise) replayDrift(p *cluster.Pod, drift string) {
	e.t.Helper()
	file := filepath.Join(e.t.TempDir(), "drift.tgz")
	if out, status := e.ctl(p.Node, "bundle", "-o", file); status != 0 {
		e.t.Fatalf("bundle: %d\n%s", status, out)
	}
	e.replay(p, file, "verify", 1, drift)
	e.same(p, file, trace("client", p.Name, 7000))
}

// run runs isthmusctl without an agent.
func (e *exercise) run(n *cluster.Node, args ...string) (string, int) {
	e.t.Helper()
	cmd := exec.CommandContext(e.t.Context(), n.Ctl(e.t.Context()).Path, args...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		e.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func (e *exercise) replay(p *cluster.Pod, file, command string, status int, parts ...string) {
	e.t.Helper()
	out, got := e.run(p.Node, append([]string{"replay", file}, strings.Fields(command)...)...)
	for _, part := range parts {
		if !strings.Contains(out, part) {
			e.t.Errorf("replay of %s %s: no %q in\n%s", p.Node.Name, command, part, out)
		}
	}
	if got != status {
		e.t.Errorf("replay of %s %s: exit status %d, want %d\n%s", p.Node.Name, command, got, status, out)
	}
}

// same asks a node and its archive.
func (e *exercise) same(p *cluster.Pod, file string, args []string) {
	e.t.Helper()
	live, status := e.ctl(p.Node, args...)
	out, got := e.run(p.Node, append([]string{"replay", file}, args...)...)
	if out != live || got != status {
		e.t.Errorf("%s: the node says (%d)\n%s\nthe archive (%d)\n%s", strings.Join(args, " "), status, live, got, out)
	}
}
