// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/test/netns"
)

const (
	windowsAddress = "172.30.0.50"
	// windowsMAC is the MAC address of the node's adapter, which terminates its tunnels.
	windowsMAC = "00:15:5d:00:00:32"
)

// windowsNode is an emulated Windows node: the agent for Windows over an emulated HNS that moves
// packets, in a namespace on the fabric. This program acts as its kubelet and container runtime.
type windowsNode struct {
	lab       *lab
	name, dir string
	ns        *netns.NS
	agent     *exec.Cmd
	pods      map[string]*windowsPod // by namespace and name
	// stop ends the kubelet, which then closes done.
	stop context.CancelFunc
	done chan struct{}
}

// startWindows adds the node to the cluster and waits until its agent is ready.
func (l *lab) startWindows(ctx context.Context) (n *windowsNode, err error) {
	n = &windowsNode{lab: l, name: l.name + "win", dir: filepath.Join(l.dir, "windows"), pods: make(map[string]*windowsPod)}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if err := os.Mkdir(n.dir, 0o700); err != nil {
		return n, err
	}
	if err := n.build(ctx); err != nil {
		return n, err
	}
	if err := n.connect(); err != nil {
		return n, err
	}
	if err := n.register(ctx); err != nil {
		return n, err
	}
	if err := n.startAgent(ctx); err != nil {
		return n, err
	}
	n.startKubelet(ctx)
	return n, nil
}

// build builds the agent, and the plugin for Linux, which works with an agent for either system.
func (n *windowsNode) build(ctx context.Context) error {
	top, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the sources of Isthmus: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", n.dir+"/", "./test/cluster/winnode", "./cmd/isthmus-cni")
	cmd.Dir, cmd.Env = strings.TrimSpace(string(top)), append(os.Environ(), "CGO_ENABLED=0")
	_, err = output(cmd)
	return err
}

// connect connects the node to the fabric.
func (n *windowsNode) connect() error {
	var err error
	if n.ns, err = netns.New(filepath.Join(n.dir, "node.ns")); err != nil {
		return err
	}
	for _, line := range []string{
		"ip link add eth0 address " + windowsMAC + " type veth peer name " + n.name, "ip link set " + n.name + " netns " + n.lab.fabric.Path(),
		"ip link set lo up", "ip address add " + windowsAddress + "/24 dev eth0", "ip link set eth0 up", "ip route add default via " + fabricAddress,
	} {
		if _, err := n.lab.in(n.ns, strings.Fields(line)...); err != nil {
			return err
		}
	}
	if _, err = n.lab.in(n.lab.fabric, "ip", "link", "set", n.name, "master", "fabric", "up"); err != nil {
		return err
	}
	// The node reads packets of other nodes in user space, where they need complete checksums.
	for _, other := range append([]*netns.NS{n.ns}, n.lab.namespaces()...) {
		if err := other.Do(func() error { return netns.FillChecksums("eth0") }); err != nil {
			return err
		}
	}
	return nil
}

func (l *lab) namespaces() (all []*netns.NS) {
	for _, n := range l.nodes {
		all = append(all, n.ns)
	}
	return all
}

// register creates the Node object as a kubelet does. Its taint keeps away pods that do not
// tolerate it.
func (n *windowsNode) register(ctx context.Context) error {
	err := n.lab.apply(fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: %[1]s, labels: {kubernetes.io/os: windows, kubernetes.io/arch: amd64, kubernetes.io/hostname: %[1]s}}
spec: {taints: [{key: os, value: windows, effect: NoSchedule}]}
`, n.name))
	if err != nil {
		return err
	}
	if err := n.beat(); err != nil {
		return err
	}
	return until(ctx, time.Minute, "the pod range of "+n.name, func() error {
		cidr, err := n.lab.kubectl("get", "node", n.name, "-o", "jsonpath={.spec.podCIDR}")
		if err == nil && cidr == "" {
			err = errors.New("it has none")
		}
		return err
	})
}

// beat updates the node's status, as a heartbeat.
func (n *windowsNode) beat() error {
	now := time.Now().UTC().Format(time.RFC3339)
	_, err := n.lab.kubectl("patch", "node", n.name, "--subresource=status", "--type=strategic", "-p", fmt.Sprintf(
		`{"status": {"addresses": [{"type": "InternalIP", "address": %q}, {"type": "Hostname", "address": %q}],
"capacity": {"cpu": "2", "memory": "4Gi", "pods": "110"}, "allocatable": {"cpu": "2", "memory": "4Gi", "pods": "110"},
"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": %q}]}}`, windowsAddress, n.name, now))
	return err
}

// startAgent starts the agent with the rights of its service account, and waits until it is ready.
func (n *windowsNode) startAgent(ctx context.Context) error {
	token, err := n.lab.kubectl("-n", namespace, "create", "token", "isthmus-agent", "--duration=2h")
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(n.dir, "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: "https://%s:6443", certificate-authority: %q}}],
users: [{name: u, user: {token: %q}}], contexts: [{name: c, context: {cluster: c, user: u}}]}
`, fabricAddress, n.lab.control.certificate, strings.TrimSpace(token))
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		return err
	}
	n.agent, err = n.lab.launch(n.ns, n.name, 0, filepath.Join(n.dir, "winnode"), "--node-name", n.name, "--kubeconfig", kubeconfig,
		"--state-dir", filepath.Join(n.dir, "state"), "--socket", n.socket(), "--http-address", "127.0.0.1:9470", "--control", n.control(),
		"--hns-mode", "overlay", "--management-ip", windowsAddress, "--management-mac", strings.ToUpper(strings.ReplaceAll(windowsMAC, ":", "-")))
	if err != nil {
		return err
	}
	return until(ctx, time.Minute, "the agent of "+n.name+" (see its log in "+n.lab.report+")", func() error {
		_, err := n.lab.in(n.ns, "curl", "-sSf", "-o", "/dev/null", "http://127.0.0.1:9470/readyz")
		return err
	})
}

func (n *windowsNode) socket() string  { return filepath.Join(n.dir, "agent.sock") }
func (n *windowsNode) control() string { return filepath.Join(n.dir, "control.sock") }

// ask calls the control socket of the emulated Windows.
func (n *windowsNode) ask(path string) (string, error) {
	return output(exec.Command("curl", "-sS", "--fail-with-body", "--unix-socket", n.control(), "-X", "POST", "http://windows"+path))
}

// close removes the node and its pods from the cluster.
func (n *windowsNode) close() error {
	if n.stop != nil {
		n.stop()
		<-n.done
	}
	var errs []error
	for _, p := range n.pods {
		errs = append(errs, n.detach(p))
	}
	if n.agent != nil {
		n.agent.Process.Kill()
		n.agent.Wait() // it was killed
	}
	_, err := n.lab.kubectl("delete", "node", n.name, "--ignore-not-found")
	errs = append(errs, err)
	// This includes the pod of the DaemonSet for Windows, which does not run here.
	_, err = n.lab.kubectl("delete", "pods", "-A", "--field-selector=spec.nodeName="+n.name, "--force", "--grace-period=0")
	errs = append(errs, err)
	if n.ns != nil {
		err := n.lab.fabric.Do(func() error {
			if _, err := net.InterfaceByName(n.name); err != nil {
				return nil // the object was not created, or is deleted already
			}
			_, err := output(exec.Command("ip", "link", "delete", n.name))
			return err
		})
		errs = append(errs, err, n.ns.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(n.dir))...)
}
