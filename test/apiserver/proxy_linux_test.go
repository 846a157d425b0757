// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/kubernetes"
)

// proxies are the kube-proxy processes of all nodes.
type proxies struct {
	nodes  *nodes
	mode   string
	config string // its kubeconfig
	bin    string
	all    []*kubeProxy
}

// kubeProxy is a real kube-proxy on one node.
type kubeProxy struct {
	node  *cluster.Node
	cmd   *exec.Cmd
	ended chan struct{} // closed
}

// podRanges returns the pod ranges of all nodes as a flag of kube-proxy.
const podRanges = "10.244.0.0/16,fd44::/48"

// proxyConfig sets no limits of connection tracking, which would change the machine, and writes changes
// immediately.
const proxyConfig = `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %[1]s
clientConnection: {kubeconfig: %[2]q}
hostnameOverride: %[3]s
clusterCIDR: %[4]q
detectLocalMode: ClusterCIDR
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {minSyncPeriod: 50ms, localhostNodePorts: false}
nftables: {minSyncPeriod: 50ms}
`

// startProxies starts kube-proxy in a mode on every node; it ends with the test. kube-proxy cleans up the rules
// of another mode.
func (n *nodes) startProxies(t *testing.T, mode string) *proxies {
	t.Helper()
	for _, program := range []string{"nft", "iptables", "ip6tables"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("needs %s: make test-api installs it", program)
		}
	}
	bin, err := kubernetes.Build(context.Background(), os.Stderr, "kube-proxy")
	must(t, err)
	p := &proxies{nodes: n, mode: mode, bin: bin, config: n.member("kube-proxy", "system:node-proxier")}
	t.Cleanup(func() { p.stop() })
	p.start()
	return p
}

func (p *proxies) start() {
	t := p.nodes.t
	t.Helper()
	for i, node := range p.nodes.cluster.Nodes {
		path := filepath.Join(node.Dir, "kube-proxy.yaml")
		must(t, os.WriteFile(path, []byte(fmt.Sprintf(proxyConfig, p.mode, p.config, node.Name, podRanges)), 0o600))
		log, err := os.OpenFile(p.nodes.logOf(i, "kube-proxy"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		must(t, err)
		defer log.Close()
		k := &kubeProxy{node: node, cmd: exec.Command(filepath.Join(p.bin, "kube-proxy"), "--config="+path), ended: make(chan struct{})}
		k.cmd.Stdout, k.cmd.Stderr = log, log
		k.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		must(t, node.NS.Do(k.cmd.Start))
		go func() {
			k.cmd.Wait()
			close(k.ended)
		}()
		p.all = append(p.all, k)
	}
}

// stop ends all kube-proxies; their rules stay.
func (p *proxies) stop() {
	for _, k := range p.all {
		k.cmd.Process.Kill() // an error means that it has ended
		<-k.ended
	}
	p.all = nil
}

// restart ends all kube-proxies by SIGKILL, and starts them again.
func (p *proxies) restart() {
	p.nodes.t.Helper()
	p.stop()
	p.start()
	time.Sleep(time.Second) // kube-proxy first writes all rules
	p.alive()
}

// alive fails the test if a kube-proxy has ended.
func (p *proxies) alive() {
	p.nodes.t.Helper()
	for i, k := range p.all {
		select {
		case <-k.ended:
			text, _ := os.ReadFile(p.nodes.logOf(i, "kube-proxy"))
			lines := strings.Split(string(text), "\n")
			p.nodes.t.Fatalf("kube-proxy of %s has ended:\n%s", k.node.Name, strings.Join(lines[max(0, len(lines)-15):], "\n"))
		default:
		}
	}
}
