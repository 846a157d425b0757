// SPDX-License-Identifier: Apache-2.0

package beside_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/test/cluster"
)

// migrateManifests: both ends of the traffic are isolated. The names place the pods.
const migrateManifests = `
apiVersion: v1
kind: Pod
metadata: {name: client-linux1, namespace: test, labels: {app: client}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: near-linux1, namespace: test, labels: {app: server}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: far-linux2, namespace: test, labels: {app: server}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: other-linux2, namespace: test, labels: {app: other}}
spec: {containers: [{name: main}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: test}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: 7001, protocol: UDP}, {port: 7001, protocol: TCP}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: client, namespace: test}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {matchLabels: {app: server}}}]
    ports: [{port: 7001, protocol: UDP}, {port: 7001, protocol: TCP}]
`

// migrated are the networks that can be left.
func migrated() (all []network) {
	for _, w := range networks() {
		if w.name == "bridge" || w.name == "flannel host-gw" {
			all = append(all, w)
		}
	}
	return all
}

// TestMigrate plans the migration of nodes with real networks.
func TestMigrate(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() || os.Getenv("ISTHMUS_MIGRATE") == "" {
		t.Skip("needs root and programs of other projects: make test-migrate runs it")
	}
	bin := t.TempDir()
	build(t, bin)
	if err := cluster.Build(ctx, "../..", bin, os.Stderr); err != nil {
		t.Fatal(err)
	}
	for _, w := range migrated() {
		t.Run(w.name, func(t *testing.T) {
			m := &migration{bin: bin, bench: bench{t: t, network: w, y: &tally{}}}
			m.make(bin)
			m.attach()
			m.plan()
		})
	}
}

// migration is a cluster whose nodes leave a network.
type migration struct {
	bench
	bin  string
	pods map[string]*cluster.Pod
}

// attach attaches one pod of each node before the agents start, which adopt it, and the others by the chained plugin.
func (m *migration) attach() {
	t := m.t
	t.Helper()
	user := t.TempDir()
	write(t, filepath.Join(user, "app.yaml"), []byte(migrateManifests))
	if _, _, err := m.cluster.Manifests.Take(ctx, user); err != nil {
		t.Fatal(err)
	}
	objects, err := m.cluster.Manifests.Objects(ctx)
	if err != nil {
		t.Fatal(err)
	}
	scheduled, err := m.cluster.Schedule(objects, 10)
	if err != nil {
		t.Fatal(err)
	}
	m.pods = make(map[string]*cluster.Pod)
	add := func(early bool) {
		for _, p := range scheduled {
			if server := p.Name == "near-linux1" || p.Name == "far-linux2"; early != server {
				continue
			}
			if m.pods[p.Name], _, err = m.cluster.Attach(ctx, p); err != nil {
				t.Fatal(err)
			}
		}
	}
	add(true)
	m.start()
	add(false)
	if err := m.cluster.Settle(ctx); err != nil {
		t.Fatal(err)
	}
}

// ctl runs a subcommand of isthmusctl migrate on a node.
func (m *migration) ctl(n *cluster.Node, args ...string) (output string, status int) {
	m.t.Helper()
	from := "bridge"
	if strings.HasPrefix(m.network.name, "flannel") {
		from = "flannel"
	}
	args = append(append([]string{"migrate"}, args...), "--from", from, "--state-dir", filepath.Join(n.Dir, "state"), "--cni-conf-dir", n.ConfDir(),
		"--cni-cache-dir", filepath.Join(filepath.Dir(n.Dir), "cni"))
	cmd := exec.Command(filepath.Join(m.bin, "isthmusctl"), args...)
	var out []byte
	err := n.NS.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err })
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		m.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// plan checks the steps of each node, and the reason against a node with a pod that has a second interface.
func (m *migration) plan() {
	t := m.t
	t.Helper()
	before := m.picture()
	for _, n := range m.cluster.Nodes {
		out, status := m.ctl(n, "plan")
		if status != 0 {
			t.Fatalf("plan of %s: status %d\n%s", n.Name, status, out)
		}
		t.Logf("%s:\n%s", n.Name, out)
		for _, p := range m.pods {
			if p.Node != n {
				continue
			}
			for _, ip := range p.IPs {
				if !strings.Contains(out, fmt.Sprintf("pod %s: record %s", p.PodID, p.IPs[0])) || !strings.Contains(out, ip.String()) {
					t.Errorf("plan of %s does not contain %s with %s:\n%s", n.Name, p.PodID, ip, out)
				}
			}
		}
		if strings.HasPrefix(m.network.name, "flannel") && !strings.Contains(out, "keep the route to 10.244.") {
			t.Errorf("plan of %s has no route to the other node:\n%s", n.Name, out)
		}
	}
	for name, text := range m.picture() {
		if text != before[name] {
			t.Errorf("%s changed:\n%s\nwas\n%s", name, text, before[name])
		}
	}
	client := m.pods["client-linux1"]
	if err := client.NS.Do(func() error { return exec.Command("ip", "link", "add", "net1", "type", "bridge").Run() }); err != nil {
		t.Fatal(err)
	}
	if err := client.NS.Do(func() error { return exec.Command("ip", "link", "set", "net1", "up").Run() }); err != nil {
		t.Fatal(err)
	}
	if out, status := m.ctl(client.Node, "plan"); status != 1 || !strings.Contains(out, "pod test/client-linux1 has more interfaces than eth0: net1") {
		t.Errorf("plan with a second interface: status %d\n%s", status, out)
	}
	if err := client.NS.Do(func() error { return exec.Command("ip", "link", "del", "net1").Run() }); err != nil {
		t.Fatal(err)
	}
}
