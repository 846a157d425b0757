// SPDX-License-Identifier: Apache-2.0

package beside_test

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/test/beside/programs"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/cluster/clustertest"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// migrateManifests add a pod that policy lets reach neither end of the traffic.
const migrateManifests = clustertest.IsolatedEnds + `---
apiVersion: v1
kind: Pod
metadata: {name: other-linux2, namespace: test, labels: {app: other}}
spec: {containers: [{name: main}]}
`

// otherDirection adds a client and a server of traffic in the other direction between the nodes.
const otherDirection = `---
apiVersion: v1
kind: Pod
metadata: {name: client-linux2, namespace: test, labels: {app: client}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: back-linux1, namespace: test, labels: {app: server}}
spec: {containers: [{name: main}]}
`

// migrated are the networks that can be left.
func migrated() (all []network) {
	for _, w := range networks() {
		if w.from != "" {
			all = append(all, w)
		}
	}
	return append(all, kubenets()...)
}

// TestMigrate moves two nodes with real networks to mode full and back, one after the other, under traffic.
func TestMigrate(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() || os.Getenv("ISTHMUS_MIGRATE") == "" {
		t.Skip("needs root and programs of other projects: make test-migrate runs it")
	}
	bin := t.TempDir()
	build(t, bin, append([]string{"flanneld"}, programs.FlannelPlugins...)...)
	if err := cluster.Build(ctx, "../..", bin, os.Stderr); err != nil {
		t.Fatal(err)
	}
	for _, w := range migrated() {
		t.Run(w.name, func(t *testing.T) {
			m := &migration{bin: bin, bench: bench{t: t, network: w, y: &tally{}}}
			m.make(bin)
			m.attach()
			m.plan()
			before := m.ways()
			m.begin()
			if !w.own { // a step fails whose file exists
				m.fails(m.cluster.Nodes[0])
			}
			m.interrupted(m.cluster.Nodes[0])
			for _, n := range m.cluster.Nodes {
				m.migrate(n)
			}
			m.finish("run")
			m.later(m.cluster.Nodes[0])
			m.begin()
			for _, n := range m.cluster.Nodes {
				m.back(n)
			}
			m.finish("rollback")
			for name, text := range m.ways() {
				if text != before[name] {
					t.Errorf("%s was\n%s\nand after the rollback is\n%s", name, before[name], text)
				}
			}
		})
	}
}

// migration is a cluster whose nodes leave a network.
type migration struct {
	bench
	bin string
	// open are connections from both nodes.
	open []*traffic.Connections
	// allowed must arrive, denied must not.
	allowed []*traffic.Stream
	denied  *traffic.Stream
	pods    map[string]*cluster.Pod
}

// attach attaches one pod of each node before the agents start, which adopt it, and the others by the chained plugin.
func (m *migration) attach() {
	t := m.t
	t.Helper()
	user := t.TempDir()
	manifests := migrateManifests
	if m.tunnels() {
		manifests += otherDirection
	}
	write(t, filepath.Join(user, "app.yaml"), []byte(manifests))
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
	if m.network.began != nil {
		for _, n := range m.cluster.Nodes {
			m.network.began(t, n)
		}
	}
	m.start()
	add(false)
	if err := m.cluster.Settle(ctx); err != nil {
		t.Fatal(err)
	}
}

// command returns a subcommand of isthmusctl migrate for a node.
func (m *migration) command(n *cluster.Node, name string) *exec.Cmd {
	args := []string{"migrate", name, "--state-dir", filepath.Join(n.Dir, "state")}
	if name != "plan" {
		args = append(args, "--bpffs", filepath.Join(m.cluster.BPFFS(), n.Name))
	}
	if name != "rollback" {
		args = append(args, "--cluster-cidr", "10.244.0.0/16,fd44::/48", "--from", m.network.from, "--cni-conf-dir", n.ConfDir(), "--cni-cache-dir", filepath.Join(filepath.Dir(n.Dir), "cni"))
		for _, p := range n.PodCIDRs {
			args = append(args, "--pod-cidr", p.String())
		}
	}
	return exec.Command(filepath.Join(m.bin, "isthmusctl"), args...)
}

// ctl runs it.
func (m *migration) ctl(n *cluster.Node, name string) (output string, status int) {
	m.t.Helper()
	cmd := m.command(n, name)
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
		if want := m.routesOf(); !strings.Contains(out, want) || !strings.HasSuffix(out, "then start the agent with "+strings.Join(m.full()[:2], " ")+m.mtu()+"\n") {
			t.Errorf("plan of %s has no %q, or other flags of the agent:\n%s", n.Name, want, out)
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

// become starts the agent of a node with other flags.
func (m *migration) become(n *cluster.Node, flags ...string) {
	m.t.Helper()
	m.cluster.SetAgentFlags(flags...)
	if err := n.Restart(ctx, syscall.SIGTERM); err != nil {
		m.t.Fatal(err)
	}
}

// migrate brings a node to mode full.
func (m *migration) migrate(n *cluster.Node) {
	t := m.t
	t.Helper()
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	if out, status := m.ctl(n, "run"); status != 0 {
		t.Fatalf("migrate run on %s: status %d\n%s", n.Name, status, out)
	}
	n.OwnConf = ""
	m.become(n, m.full()...)
	if out, err := n.Ctl(ctx, "status").CombinedOutput(); err != nil {
		t.Errorf("status of %s: %v\n%s", n.Name, err, out)
	}
}

// back brings a node back to mode policy and its bridge.
func (m *migration) back(n *cluster.Node) {
	t := m.t
	t.Helper()
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	if out, status := m.ctl(n, "rollback"); status != 0 {
		t.Fatalf("migrate rollback on %s: status %d\n%s", n.Name, status, out)
	}
	n.OwnConf = m.network.ownConf(n)
	m.become(n, "--mode=policy")
	wait(t, "second migrate rollback on "+n.Name, func() bool {
		out, status := m.ctl(n, "rollback")
		if status != 0 {
			t.Logf("migrate rollback on %s: %s", n.Name, out)
		}
		return status == 0
	})
	if out, err := n.Ctl(ctx, "status").CombinedOutput(); err != nil {
		t.Errorf("status of %s: %v\n%s", n.Name, err, out)
	}
}

// ways returns what pods and nodes know about the ways to pods.
func (m *migration) ways() map[string]string {
	m.t.Helper()
	all := make(map[string]string)
	show := func(name string, ns *netns.NS, commands ...string) {
		for _, command := range commands {
			words := strings.Fields(command)
			err := ns.Do(func() error {
				out, err := exec.Command(words[0], words[1:]...).Output()
				lines := strings.Split(volatile.ReplaceAllString(string(out), ""), "\n")
				slices.Sort(lines)
				all[name+": "+command] = strings.Join(lines, "\n")
				return err
			})
			if err != nil {
				m.t.Fatalf("%s in %s: %v", command, name, err)
			}
		}
	}
	for _, n := range m.cluster.Nodes {
		show(n.Name, n.NS, "ip route show table all", "ip -o -4 addr", "ip -o link show "+m.network.bridge, "nft list tables bridge", "ip rule", "cat /proc/sys/net/ipv4/conf/"+m.network.bridge+"/rp_filter", "cat /proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")
		links, err := os.ReadDir(n.ConfDir())
		if err != nil {
			m.t.Fatal(err)
		}
		for _, l := range links {
			text, err := os.ReadFile(filepath.Join(n.ConfDir(), l.Name()))
			if err != nil {
				m.t.Fatal(err)
			}
			all[n.Name+": "+l.Name()] = string(text)
		}
	}
	for _, p := range m.pods {
		show(p.Name, p.NS, "ip route show table all", "ip -6 route show", "ip -o link", "ip -o -4 addr")
	}
	return all
}

// fails makes the last step but one fail, on which all others are reversed.
func (m *migration) fails(n *cluster.Node) {
	t := m.t
	t.Helper()
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	before := m.ways()
	obstacle := filepath.Join(n.ConfDir(), m.network.file+".before-isthmus")
	write(t, obstacle, nil)
	out, status := m.ctl(n, "run")
	if status != 2 || !strings.Contains(out, "the steps before were reversed") || !strings.Contains(out, obstacle+" exists: remove it") {
		t.Errorf("run with an obstacle: status %d\n%s", status, out)
	}
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	for name, text := range m.ways() {
		if text != before[name] {
			t.Errorf("%s was\n%s\nand after a failed run is\n%s", name, before[name], text)
		}
	}
	m.become(n, "--mode=policy")
}

// interrupted kills a run when a pod has left the bridge. The agent does not start then, a rollback reverses the steps,
// and a second run that is killed can be continued by migrate.
func (m *migration) interrupted(n *cluster.Node) {
	t := m.t
	t.Helper()
	for _, back := range []bool{true, false} {
		if err := n.Stop(); err != nil {
			t.Fatal(err)
		}
		m.kill(n, " from "+m.network.bridge)
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
		wait(t, "refusal of the agent", func() bool {
			text, err := os.ReadFile(n.Log())
			return err == nil && strings.Contains(string(text), "migration.json is not complete")
		})
		if err := n.Stop(); err != nil {
			t.Fatal(err)
		}
		if !back {
			return
		}
		if out, status := m.ctl(n, "rollback"); status != 0 || !strings.Contains(out, "the migration is reversed") {
			t.Fatalf("rollback of an interrupted run: status %d\n%s", status, out)
		}
		m.become(n, "--mode=policy")
		if err := os.Truncate(n.Log(), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// kill kills a run that prints a line with some words. The pipe holds one line: the run is at most two steps further then.
func (m *migration) kill(n *cluster.Node, words string) {
	t := m.t
	t.Helper()
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_DIRECT); err != nil { // O_DIRECT: each line has a page of its own
		t.Fatal(err)
	}
	out, in := os.NewFile(uintptr(ends[0]), "lines"), os.NewFile(uintptr(ends[1]), "lines")
	defer out.Close()
	if _, err := unix.FcntlInt(in.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize()); err != nil {
		t.Fatal(err)
	}
	cmd := m.command(n, "run")
	cmd.Stdout = in
	err := n.NS.Do(cmd.Start)
	if err = errors.Join(err, in.Close()); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.Contains(lines.Text(), words) {
			break
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatalf("the run ended before it printed %q", words)
	}
}

// later attaches a pod after the migration, to which policy applies, and removes it. Meanwhile the migration cannot be
// reversed, and no agent of mode policy starts.
func (m *migration) later(n *cluster.Node) {
	t := m.t
	t.Helper()
	pod := *m.pods["client-linux1"].Pod
	pod.Name, pod.Node, pod.IPs = "late-linux1", n.Name, nil
	if err := m.cluster.Manifests.WritePod(&pod); err != nil {
		t.Fatal(err)
	}
	late, _, err := m.cluster.Attach(ctx, &pod)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.cluster.Settle(ctx); err != nil {
		t.Fatal(err)
	}
	near := m.pods["near-linux1"]
	for port, want := range map[uint16]bool{7001: true, 7002: false} {
		at := netip.AddrPortFrom(near.IPs[0], port)
		stream, err := traffic.NewStream(late.NS, []traffic.Target{{NS: near.NS, From: late.IPs[0], To: at}}, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if want {
			wait(t, "packets of the new pod", func() bool { return stream.Received() > 100 })
		}
		o, err := stream.Finish()
		if err != nil || !want && o.Received > 0 {
			t.Errorf("new pod to %s: %+v, %v", at, o, err)
		}
	}
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	if out, status := m.ctl(n, "rollback"); status != 1 || !strings.Contains(out, "pod test/late-linux1 was created after the migration") {
		t.Errorf("rollback with a new pod: status %d\n%s", status, out)
	}
	m.become(n, m.full()...)
	if err := errors.Join(m.cluster.Detach(ctx, late), m.cluster.Manifests.RemovePod(late.PodID)); err != nil {
		t.Fatal(err)
	}
}

// tunnels reports whether flannel connects the nodes by VXLAN.
func (m *migration) tunnels() bool { return m.network.name == "flannel vxlan" }

// routesOf returns what the plan says about routes to other nodes.
func (m *migration) routesOf() string {
	switch {
	case m.tunnels():
		return "device flannel.1 and its routes to other nodes stay"
	case m.network.connects:
		return "keep the route to 10.244."
	}
	return ""
}

// full are the flags of an agent of mode full in the ranges of the network before.
func (m *migration) full() []string {
	if m.tunnels() {
		return []string{"--mode=full", "--fabric=none", "--mtu=1450", "--uplink=eth0"}
	}
	return []string{"--mode=full", "--fabric=routes", "--uplink=eth0"}
}

// mtu returns the flag of the MTU that the plan prints.
func (m *migration) mtu() string {
	if m.tunnels() {
		return " --mtu=1450"
	}
	return ""
}
