// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/wine"
	"github.com/isthmus-net/isthmus/windows/hns"
)

const (
	// windowsMAC is the MAC address of the node's adapter.
	windowsMAC = "00:15:5d:00:00:32"
	// windowsDir is the directory of the node, in that of the lab.
	windowsDir = "windows"
	// windowsDaemonSet is the name of the agents' DaemonSet for Windows.
	windowsDaemonSet = "isthmus-agent-windows"
)

// windowsNode is a Windows node under Wine, in a namespace on the fabric: isthmus-agent.exe,
// isthmus-cni.exe and kube-proxy.exe over an emulated HNS that moves packets. This program acts as
// its kubelet and container runtime.
type windowsNode struct {
	lab       *lab
	name, dir string
	ns        *netns.NS
	machine   *wine.Machine
	proxy     *exec.Cmd
	agent     *hostProcess
	mu        sync.Mutex
	pods      map[string]*windowsPod // by namespace and name
	// stop ends the kubelet, which then closes done.
	stop context.CancelFunc
	done chan struct{}
}

// startWindows adds the node to the cluster and waits until its agent and kube-proxy are ready.
func (l *lab) startWindows(ctx context.Context) (n *windowsNode, err error) {
	if !l.has4() {
		return nil, skipped("Kubernetes has no Windows nodes with IPv6 only")
	}
	if missing := wine.Missing(); missing != "" {
		return nil, errors.New("missing for the Windows node: " + missing)
	}
	n = &windowsNode{lab: l, name: l.name + "win", dir: filepath.Join(l.dir, windowsDir), pods: make(map[string]*windowsPod)}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if err := os.Mkdir(n.dir, 0o700); err != nil {
		return n, err
	}
	for _, step := range []func(context.Context) error{n.connect, n.boot, n.namePlane, n.register} {
		if err := step(ctx); err != nil {
			return n, err
		}
	}
	n.startKubelet(ctx)
	if err := n.joined(ctx); err != nil {
		return n, err
	}
	return n, n.startProxy(ctx)
}

// connect connects the node to the fabric. It does not forward, like a Windows host.
func (n *windowsNode) connect(context.Context) error {
	var err error
	if n.ns, err = netns.Prepared(filepath.Join(n.dir, "node.ns")); err != nil {
		return err
	}
	lines := []string{
		"ip link add eth0 address " + windowsMAC + " type veth peer name " + n.name, "ip link set " + n.name + " netns " + n.lab.fabric.Path(), "ip link set eth0 up",
	}
	for _, of := range n.lab.networks {
		lines = append(lines, "ip address add "+of.windows().String()+" dev eth0"+noDetection(of),
			fmt.Sprintf("ip route add %s via %s", of.everywhere(), of.fabric.Addr()))
	}
	for _, line := range lines {
		if _, err := n.lab.in(n.ns, strings.Fields(line)...); err != nil {
			return err
		}
	}
	if err := n.ns.Do(netns.StopForwarding); err != nil {
		return err
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

// boot builds the commands for Windows, and starts Wine and the emulated HNS.
func (n *windowsNode) boot(ctx context.Context) error {
	top, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the sources of Isthmus: %w", err)
	}
	say("%s: building the commands for Windows, then starting Wine", n.name)
	if err := wine.Build(ctx, strings.TrimSpace(string(top)), n.bin()); err != nil {
		return err
	}
	if n.machine, err = wine.Enter(ctx, n.ns, n.dir, n.bin()); err != nil {
		return err
	}
	mac := strings.ToUpper(strings.ReplaceAll(windowsMAC, ":", "-"))
	return n.machine.StartEmulator(hns.Server2022, "--management-ip", n.lab.primary().windows().Addr().String(), "--management-mac", mac, "--translate")
}

func (n *windowsNode) bin() string { return filepath.Join(n.dir, "bin") }

// namePlane sets in the DaemonSet for Windows what the chart's apiServer.host and apiServer.port set.
// On Windows the Service kubernetes works only after kube-proxy has found the network of the agent.
func (n *windowsNode) namePlane(context.Context) error {
	_, err := n.lab.kubectl("-n", namespace, "set", "env", "daemonset/"+windowsDaemonSet,
		"KUBERNETES_SERVICE_HOST="+n.lab.controlAddress().String(), "KUBERNETES_SERVICE_PORT=6443")
	return err
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
	var addresses strings.Builder
	for _, of := range n.lab.networks {
		fmt.Fprintf(&addresses, `{"type": "InternalIP", "address": %q}, `, of.windows().Addr())
	}
	_, err := n.lab.kubectl("patch", "node", n.name, "--subresource=status", "--type=strategic", "-p", fmt.Sprintf(
		`{"status": {"addresses": [{"$patch": "replace"}, %s{"type": "Hostname", "address": %q}],
"capacity": {"cpu": "2", "memory": "4Gi", "pods": "110"}, "allocatable": {"cpu": "2", "memory": "4Gi", "pods": "110"},
"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": %q}]}}`, &addresses, n.name, now))
	return err
}

// joined waits until the DaemonSet of the chart has a ready agent on the node.
func (n *windowsNode) joined(ctx context.Context) error {
	err := until(ctx, 3*time.Minute, "the agent of "+n.name+" (see its log in "+n.lab.report+")", func() error {
		return n.lab.expect("1 1", "-n", namespace, "get", "daemonset", windowsDaemonSet, "-o", "jsonpath={.status.desiredNumberScheduled} {.status.numberReady}")
	})
	if err == nil {
		say("%s: its agent is ready", n.name)
	}
	return err
}

// windowsProxyConfig is the configuration of kube-proxy that docs/windows.md asks for.
const windowsProxyConfig = `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: kernelspace
clientConnection: {kubeconfig: '%s'}
hostnameOverride: %s
clusterCIDR: %s
winkernel: {networkName: isthmus, enableDSR: true}
`

// startProxy starts kube-proxy.exe and waits for its load balancer of the cluster's DNS.
func (n *windowsNode) startProxy(ctx context.Context) error {
	kubeconfig, err := n.kubeconfig("proxy", n.lab.apiAddress().String(), n.lab.control.tokens["proxy"])
	if err != nil {
		return err
	}
	path := filepath.Join(n.dir, "kube-proxy.yaml")
	text := fmt.Sprintf(windowsProxyConfig, wine.Path(kubeconfig), n.name, ipv4.pods)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	cmd := n.machine.Command(context.Background(), filepath.Join(n.lab.bin, "kube-proxy.exe"), "--config="+wine.Path(path), "--v=2")
	if n.proxy, err = n.lab.launchCommand(n.ns, n.name+"-kube-proxy", 0, cmd); err != nil {
		return err
	}
	return until(ctx, 2*time.Minute, "kube-proxy.exe (see its log in "+n.lab.report+")", func() error {
		have, err := n.machine.Control("/balancers", nil)
		if want := fmt.Sprintf("%s proto=17 53->53 [%s] dsr=true", ipv4.dns, ipv4.fabric.Addr()); err == nil && !strings.Contains(have, want) {
			err = fmt.Errorf("HNS has the load balancers %q, want %q", have, want)
		}
		return err
	})
}

// kubeconfig writes a kubeconfig file for a program under Wine.
func (n *windowsNode) kubeconfig(name, server, token string) (path string, err error) {
	path = filepath.Join(n.dir, name+".kubeconfig")
	text := kubeconfigOf("https://"+server, wine.Path(n.lab.control.certificate), token)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// close removes the node and its pods from the cluster.
func (n *windowsNode) close() error {
	if n.stop != nil {
		n.stop()
		<-n.done
	}
	var errs []error
	for _, p := range maps.Clone(n.pods) {
		errs = append(errs, n.detach(p))
	}
	if n.proxy != nil {
		n.proxy.Process.Kill()
		n.proxy.Wait() // it was killed
	}
	n.agent.kill()
	for _, args := range [][]string{
		{"delete", "node", n.name, "--ignore-not-found"},
		{"-n", namespace, "set", "env", "daemonset/" + windowsDaemonSet, "KUBERNETES_SERVICE_HOST-", "KUBERNETES_SERVICE_PORT-"},
		// This includes the pod of the DaemonSet.
		{"delete", "pods", "-A", "--field-selector=spec.nodeName=" + n.name, "--force", "--grace-period=0"},
	} {
		_, err := n.lab.kubectl(args...)
		errs = append(errs, err)
	}
	if n.machine != nil {
		errs = append(errs, n.machine.Close())
	}
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
