// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/cluster/clustertest"
	"github.com/isthmus-net/isthmus/test/console"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// page is the document whose commands TestBPFTool runs.
const page = "../../docs/operate/bpftool.md"

// shop has the pods of the page.
const shop = `
apiVersion: v1
kind: Pod
metadata: {name: api, namespace: shop, labels: {app: api}}
spec: {containers: [{name: main, ports: [{containerPort: 80, protocol: TCP}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {containers: [{name: main, ports: [{containerPort: 80, protocol: TCP}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {containers: [{name: main}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: api, namespace: shop}
spec:
  podSelector: {matchLabels: {app: api}}
  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 80}]}]
`

// inNode runs a script where the maps of a node have their usual paths.
func inNode(t *testing.T, c *cluster.Cluster, n *cluster.Node, script string) (string, error) {
	t.Helper()
	const prepare = `mount -t tmpfs tmpfs /sys/fs/bpf && mkdir /sys/fs/bpf/isthmus && mount --bind "$0" /sys/fs/bpf/isthmus && PATH=$PATH:/usr/sbin && `
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--propagation=private", "bash", "-c", prepare+script, filepath.Join(c.BPFFS(), n.Name))
	var out []byte
	err := n.NS.Do(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	return string(out), err
}

// TestBPFTool runs the commands of the page as they are written there, on a node with the pods of the page.
func TestBPFTool(t *testing.T) {
	if _, err := exec.LookPath("bpftool"); err != nil {
		if _, err := os.Stat("/usr/sbin/bpftool"); err != nil {
			netns.Missing(t, "needs bpftool: make deps installs it")
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	session, err := console.Commands(string(text))
	if err != nil {
		t.Fatal(err)
	}
	c := commands.Start(t, shop, cluster.Config{Linux: 2})
	openFlows(t, clustertest.Attach(t, c))
	node, before := c.Nodes[0], ""
	for _, cmd := range session {
		// A new pod starts on other hooks, and other entries may be on their way, too.
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(300 * time.Millisecond) {
			out, err := inNode(t, c, node, before+cmd.Text)
			missing := strings.HasSuffix(out, "Not found\n") && slices.Contains(cmd.Want, "Not found")
			if (err == nil || missing) && console.Matches(cmd.Want, out) {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%s:%d: %s: %v\n%s\nwant\n%s", page, cmd.Line, cmd.Text, err, out, strings.Join(cmd.Want, "\n"))
				break
			}
		}
		if strings.HasPrefix(cmd.Text, "cd ") {
			before += cmd.Text + "\n"
		}
	}
	e := &exercise{t: t, cluster: c}
	e.translate(node)
	if err := node.Kill(); err != nil {
		t.Fatal(err)
	}
	pins := []string{"--bpffs", filepath.Join(c.BPFFS(), node.Name)}
	e.names("maps without an agent", node, append([]string{"bpf", "conns", "--pod", "10.244.1.2"}, pins...), 0, "10.244.1.3:40000", "passes", "does not answer")
	e.names("names without an agent", node, append([]string{"bpf", "conns", "--pod", "shop/api"}, pins...), 2, "give an address of the pod")
	e.names("no maps", node, []string{"bpf", "tables", "--bpffs", "/run/nothing"}, 2, "no data path of Isthmus on this node")
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	e.names("an agent that is started", node, []string{"status"}, 0, "Ready:", "yes")
}

// translate checks that isthmusctl bpf says what the page finds out by hand.
func (e *exercise) translate(n *cluster.Node) {
	pins := []string{"--bpffs", filepath.Join(e.cluster.BPFFS(), n.Name)}
	rows := func(args []string, want ...string) {
		e.t.Helper()
		out, status := e.ctl(n, append(append([]string{"bpf"}, args...), pins...)...)
		var lines []string
		for line := range strings.Lines(out) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		for _, w := range want {
			if status != 0 || !slices.ContainsFunc(lines, func(line string) bool { return console.Matches([]string{w}, line+"\n") }) {
				e.t.Errorf("bpf %s ends with %d and has no line %q:\n%s", strings.Join(args, " "), status, w, out)
			}
		}
	}
	rows([]string{"tables"}, "shop/api 0 6 ... deny allow 2", "shop/web 1 11 ... allow allow 1")
	rows([]string{"peers", "10.244.1.3", "10.244.2.2", "192.0.2.1"}, "10.244.1.3 10.244.1.3 peers4 3 yes", "10.244.2.2 10.244.2.2 peers4 0 yes", "192.0.2.1 none none 0 no")
	rows([]string{"peers"}, "10.244.1.3 peers4 3 yes", "fd44:0:0:1::/64 prefixes6 2 no")
	rows([]string{"verdicts", "--pod", "shop/api"}, "6 shop/api ingress 3 10.244.1.3, fd44:0:0:1::3 TCP 80", "6 shop/api ingress others all other peers no ports",
		"6 shop/api egress others all other peers all ports")
	rows([]string{"conns", "--pod", "shop/web"}, "TCP 10.244.1.3:40000 10.244.1.2:80 established passes egress of 10.244.1.3 (epoch ...); ingress of 10.244.1.2 (epoch ...) same node, fast path 2/1 ...")
	rows([]string{"conns", "-o", "yaml"}, "kind: BPFConns", "next: passes")
}

// openFlows opens the flows of the page: one that stays open, and one that policy denies.
func openFlows(t *testing.T, pods map[string]*cluster.Pod) {
	t.Helper()
	var l net.Listener
	err := pods["api"].NS.Do(func() (err error) {
		l, err = net.Listen("tcp4", "10.244.1.2:80")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var open net.Conn
	err = pods["web"].NS.Do(func() (err error) {
		// No packets are sent while the connection is idle: the page shows how many there were.
		d := net.Dialer{Timeout: 10 * time.Second, KeepAlive: -1, LocalAddr: &net.TCPAddr{IP: net.IPv4(10, 244, 1, 3), Port: 40000}}
		open, err = d.Dial("tcp4", l.Addr().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { open.Close() })
	err = pods["db"].NS.Do(func() error {
		denied, err := net.DialTimeout("tcp4", l.Addr().String(), 300*time.Millisecond)
		if err == nil {
			return errors.Join(errors.New("policy does not deny shop/db"), denied.Close())
		}
		if !traffic.Silent(err) {
			return fmt.Errorf("shop/db to shop/api: %w, want silence", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
