// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/netns"
)

// The tests share one machine, because creating one takes seconds. They count results for the last line.
var shared struct {
	once    sync.Once
	machine *Machine
	dir     string
	err     error

	mu               sync.Mutex
	executables      map[string]bool // executables of the product that have done their work
	smokes           int             // networks on which isthmus-smoke.exe did all its steps
	profiles         map[string]bool
	cni, cniTotal    int // calls of the plugin with the expected result
	hcn, hcnTotal    int // tests of hcsshim
	plugins          int // calls of the reference plugins with the expected result
	pluginsTotal     int
	decided, differs int // verdicts of the ACLs under every reading
	faults           int // faults that were injected and handled
	dns              int // DNS settings of pods that HNS had as intended, and names that pods resolved
	routes           int // routes and forwarding flags that the host had as intended, also after repairs
	drifts           int // changes by other processes that were found, repaired and counted
	pool             int // pods that got a prepared endpoint
	events           int // denied flows whose event had the intended cause
	connections      int // connections through the switch
	packets          int // that the switch has seen
}

func TestMain(m *testing.M) {
	shared.executables, shared.profiles = make(map[string]bool), make(map[string]bool)
	code := m.Run()
	if shared.machine != nil {
		if err := shared.machine.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "close the machine:", err)
			code = 1
		}
	}
	if shared.dir != "" {
		os.RemoveAll(shared.dir)
	}
	line := fmt.Sprintf("exe=%d smoke=%d hcn=%d/%d cni=%d/%d plugins=%d/%d versions=%d decided=%d wrong=%d connections=%d sent=%d faults=%d dns=%d routes=%d drifts=%d pool=%d events=%d",
		executables(), shared.smokes, shared.hcn, shared.hcnTotal, shared.cni, shared.cniTotal, shared.plugins, shared.pluginsTotal,
		len(shared.profiles), shared.decided, shared.differs, shared.connections, shared.packets, shared.faults,
		shared.dns, shared.routes, shared.drifts, shared.pool, shared.events)
	fmt.Println(line)
	if dir := os.Getenv("ISTHMUS_WINDOWS_SUMMARY"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, "1-wine"), []byte(line+"\n"), 0o600); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// executables returns how many executables have done their work.
func executables() (n int) {
	for _, done := range shared.executables {
		if done {
			n++
		}
	}
	return n
}

// machine returns the shared machine, without processes and stored state.
func machine(t *testing.T) *Machine {
	t.Helper()
	if testing.Short() {
		t.Skip("takes a minute")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a network namespace")
	}
	if missing := Missing(); missing != "" {
		netns.Missing(t, missing)
	}
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		if shared.dir, shared.err = os.MkdirTemp("", "isthmus-wine"); shared.err != nil {
			return
		}
		bin := filepath.Join(shared.dir, "bin")
		for _, build := range []func(ctx context.Context, top, to string) error{Build, BuildConformance, BuildSmoke, BuildVFPControl, BuildHolder, BuildHCN, BuildPlugins} {
			if shared.err = build(ctx, "../..", bin); shared.err != nil {
				return
			}
		}
		node := filepath.Join(shared.dir, "node")
		if shared.err = os.Mkdir(node, 0o700); shared.err == nil {
			shared.machine, shared.err = New(ctx, node, bin)
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	m := shared.machine
	fresh(t, m)
	return m
}

// logs prints the logs of the programs if the test has failed.
func logs(t *testing.T, m *Machine) {
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, name := range []string{"agent.log", "hns.log", "calls.jsonl"} {
			b, _ := os.ReadFile(m.File(name))
			t.Logf("%s ends with:\n%s", name, b[max(0, len(b)-4000):])
		}
	})
}

// counted counts a call of the plugin that must succeed.
func counted(t *testing.T, what string, err error) {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.cniTotal++
	if err != nil {
		t.Fatalf("CNI %s: %v", what, err)
	}
	shared.cni++
	shared.executables["isthmus-cni"] = true
}

// refused counts a call of the plugin that must fail with a reason.
func refused(t *testing.T, what string, err error, why string) {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.cniTotal++
	if err == nil || !strings.Contains(err.Error(), why) {
		t.Fatalf("CNI %s: got %v, want an error with %q", what, err, why)
	}
	shared.cni++
}

// flow is a flow of the endpoint of a pod, with its verdict.
type flow struct {
	direction, remote string
	protocol, port    int
	want              string
}

// decided evaluates the ACLs of a pod for flows until all have the expected verdict, which takes a moment after a
// change of policy.
func decided(t *testing.T, m *Machine, p Pod, flows ...flow) {
	t.Helper()
	var wrong string
	for deadline := time.Now().Add(patience / 2); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		wrong = ""
		for _, f := range flows {
			got, err := m.Control("/decide", url.Values{"endpoint": {p.endpoint()}, "direction": {f.direction},
				"remote": {f.remote}, "protocol": {fmt.Sprint(f.protocol)}, "port": {fmt.Sprint(f.port)}})
			if err != nil || got != f.want {
				wrong = fmt.Sprintf("%+v: got %s, %v", f, got, err)
			}
		}
		if wrong == "" {
			break
		}
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.decided += len(flows)
	if wrong != "" {
		shared.differs++
		dump, _ := m.Control("/dump", nil)
		t.Fatalf("pod %s: %s\n%s", p.Name, wrong, dump)
	}
}

// manifests is a directory that the agent watches.
type manifests string

func newManifests(t *testing.T, pods ...string) manifests {
	t.Helper()
	dir := manifests(t.TempDir())
	dir.write(t, "node", "apiVersion: v1\nkind: Node\nmetadata: {name: win1}\nspec: {podCIDRs: [10.244.3.0/24]}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.13}]}\n")
	var b strings.Builder
	for _, name := range pods {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: shop, labels: {app: %s}}\nspec: {nodeName: win1, containers: [{name: c, image: example.com/%s}]}\n", name, name, name)
	}
	dir.write(t, "pods", b.String())
	return dir
}

// write replaces a file atomically.
func (dir manifests) write(t *testing.T, name, text string) {
	t.Helper()
	part := filepath.Join(t.TempDir(), "part")
	if err := os.WriteFile(part, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(part, filepath.Join(string(dir), name+".yaml")); err != nil {
		t.Fatal(err)
	}
}

// policy returns a NetworkPolicy that allows a range to reach a port of the pods of an app.
func policy(app, from string, port int) string {
	return fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s, namespace: shop}\nspec:\n  podSelector: {matchLabels: {app: %s}}\n  ingress:\n  - {from: [{ipBlock: {cidr: %s}}], ports: [{port: %d}]}\n", app, app, from, port)
}

// pod makes a namespace as a container runtime does.
func pod(t *testing.T, m *Machine, name string) Pod {
	t.Helper()
	id, err := m.Control("/namespace", nil)
	if err != nil {
		t.Fatal(err)
	}
	return Pod{Namespace: "shop", Name: name, Container: "sandbox-" + name, NetNS: id}
}
