// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/kubernetes"
	"github.com/isthmus-net/isthmus/test/traffic"
	"github.com/isthmus-net/isthmus/test/wine"
)

// winkernel is a Linux node and a Windows node. On the Windows node the real kube-proxy.exe and
// isthmus-agent.exe run under Wine over one emulated HNS.
type winkernel struct {
	*nodes
	windows  *cluster.Node
	source   string // kube-proxy's address on an overlay
	proxy    *exec.Cmd
	ended    chan struct{} // closed
	backends map[string]*backend
	calls    []*call
	tally
}

// windowsProxyConfig makes kube-proxy use the network of the agent.
const windowsProxyConfig = `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: kernelspace
clientConnection: {kubeconfig: '%s'}
hostnameOverride: %s
clusterCIDR: 10.244.0.0/16
winkernel: {networkName: isthmus, enableDSR: true, sourceVip: %q}
`

// TestWinkernel runs kube-proxy for Windows on the HNS in which the agent has its networks and
// policies. Calls of Services from Windows pods must reach the backends that policies of both ends
// allow. The objects of the agent must not change.
func TestWinkernel(t *testing.T) {
	if testing.Short() {
		t.Skip("needs kube-apiserver, Wine and no -short: make test-api builds it and runs this")
	}
	if missing := wine.Missing(); missing != "" {
		t.Fatal(missing)
	}
	audited := []string{"--audit-interval=1s"}
	var all tally
	for _, mode := range []struct {
		name, source string
		cfg          cluster.Config
	}{
		{"overlay", "10.244.2.254", cluster.Config{Overlay: true, AgentFlags: []string{"--fabric=vxlan"}, WindowsFlags: audited}},
		{"l2bridge", "", cluster.Config{AgentFlags: []string{"--fabric=routes"}, WindowsFlags: audited}},
	} {
		t.Run(mode.name, func(t *testing.T) {
			mode.cfg.Linux, mode.cfg.Windows, mode.cfg.Wine = 1, 1, true
			w := &winkernel{nodes: newNodesOf(t, mode.cfg), source: mode.source, backends: make(map[string]*backend)}
			w.windows = w.cluster.Nodes[1]
			w.open()
			before := w.installed()
			w.startProxy()
			w.proxies++
			w.trade()
			if after := w.installed(); after != before {
				t.Errorf("what the agent had installed was\n%s\nand is\n%s", before, after)
			}
			all.add(w.tally)
		})
	}
	t.Logf("winkernel: proxies=%d flows=%d allowed=%d denied=%d differ=%d", all.proxies, all.flows, all.allowed, all.denied, all.differ)
	if all.proxies != 2 || all.allowed < 20 || all.denied < 20 {
		t.Error("too few flows to show anything")
	}
}

// open attaches pods to both nodes and writes the Services.
func (w *winkernel) open() {
	w.t.Helper()
	must(w.t, w.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}"))
	servers := traffic.ServersFor(w.t)
	var clients []client
	for _, p := range []struct {
		name, app string
		node      int
	}{{"far", "backend", 0}, {"near", "backend", 1}, {"client", "client", 1}, {"other", "other", 1}} {
		pod := w.attach(w.place(p.node, "shop", p.name, map[string]string{"app": p.app, "name": p.name}))
		a := familyOf(pod.IPs, false)
		must(w.t, respond(servers, pod.NS, p.name, netip.AddrPortFrom(a, podPort)))
		if p.app == "backend" {
			w.backends[p.name] = &backend{p.name, p.node, []netip.Addr{a}, podPort, true}
		} else {
			clients = append(clients, client{p.name, p.node, true, asker{pod.NS, a}})
		}
	}
	near, far := w.backends["near"], w.backends["far"]
	services := []*service{
		{name: "near", addresses: []netip.Addr{netip.MustParseAddr("10.96.0.21")}, backends: []*backend{near}},
		{name: "far", addresses: []netip.Addr{netip.MustParseAddr("10.96.0.22")}, backends: []*backend{far}},
		{name: "both", addresses: []netip.Addr{netip.MustParseAddr("10.96.0.23")}, backends: []*backend{near, far}},
	}
	for _, s := range services {
		s.port, s.protocols = 80, []model.Protocol{model.TCP, model.UDP}
		must(w.t, w.apply(w.manifest(s, s.backends...)))
		for _, c := range clients {
			for _, p := range s.protocols {
				w.calls = append(w.calls, &call{from: c, to: s, protocol: p, via: outside, at: netip.AddrPortFrom(s.addresses[0], s.port)})
			}
		}
	}
}

// manifest returns a Service with its EndpointSlice.
func (w *winkernel) manifest(s *service, backends ...*backend) string {
	var ready strings.Builder
	for _, b := range backends {
		fmt.Fprintf(&ready, "{addresses: [%q], nodeName: %s, conditions: {ready: true, serving: true}},", b.addresses[0], w.cluster.Nodes[b.node].Name)
	}
	return fmt.Sprintf(`
{apiVersion: v1, kind: Service, metadata: {name: %[1]s, namespace: shop}, spec: {clusterIP: %[2]q, clusterIPs: [%[2]q], ipFamilies: [IPv4],
 ports: [{name: tcp, protocol: TCP, port: %[3]d, targetPort: %[4]d}, {name: udp, protocol: UDP, port: %[3]d, targetPort: %[4]d}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %[1]s-0, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}, addressType: IPv4,
 ports: [{name: tcp, protocol: TCP, port: %[4]d}, {name: udp, protocol: UDP, port: %[4]d}], endpoints: [%[5]s]}
`, s.name, s.addresses[0], s.port, podPort, ready.String())
}

// startProxy starts kube-proxy.exe on the Windows node.
func (w *winkernel) startProxy() {
	w.t.Helper()
	bin, err := kubernetes.Build(context.Background(), os.Stderr, "kube-proxy.exe")
	must(w.t, err)
	path := filepath.Join(w.windows.Dir, "kube-proxy.yaml")
	kubeconfig := w.member("kube-proxy", "system:node-proxier")
	must(w.t, os.WriteFile(path, []byte(fmt.Sprintf(windowsProxyConfig, wine.Path(kubeconfig), w.windows.Name, w.source)), 0o600))
	log, err := os.OpenFile(w.logOf(1, "kube-proxy"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(w.t, err)
	defer log.Close()
	w.proxy, w.ended = w.windows.Executable(context.Background(), filepath.Join(bin, "kube-proxy.exe"), "--config="+wine.Path(path), "--v=2"), make(chan struct{})
	w.proxy.Stdout, w.proxy.Stderr = log, log
	w.proxy.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(w.t, w.windows.NS.Do(w.proxy.Start))
	go func() {
		w.proxy.Wait()
		close(w.ended)
	}()
	w.t.Cleanup(w.stopProxy)
}

func (w *winkernel) stopProxy() {
	w.proxy.Process.Kill() // an error means that it has ended
	<-w.ended
}

// installed returns the objects of the agent in HNS, as text.
func (w *winkernel) installed() string {
	w.t.Helper()
	w.settle()
	objects, _, err := w.windows.HNS(context.Background())
	must(w.t, err)
	var lines []string
	ours := false
	for line := range strings.Lines(objects) {
		if strings.HasPrefix(line, "  endpoint ") {
			ours = strings.Contains(line, "_eth0_isthmus ") || strings.Contains(line, " isthmus_ep ")
		}
		if ours && strings.HasPrefix(line, "  endpoint ") || ours && strings.HasPrefix(line, "    ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// trade tests calls of Services under policies, after a change of backends, and after a restart of
// kube-proxy.
func (w *winkernel) trade() {
	w.t.Helper()
	w.balanced(6)
	w.appeared()
	for _, c := range []judged{
		{"no policy", ""},
		{"egress to the backends' port", egressOf("client", `{to: [{podSelector: {matchLabels: {app: backend}}}], ports: [{port: 8080}]}`)},
		{"egress to one of two backends", egressOf("client", `{to: [{podSelector: {matchLabels: {name: far}}}]}`)},
		{"ingress from clients", ingressOf("backend", `{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 8080}]}`)},
		{"isolation of others", egressOf("other", "")},
		{"a backend's own isolation", egressOf("backend", "") + ingressOf("backend", "")},
	} {
		must(w.t, w.apply(c.manifests))
		w.judge(c.name)
		must(w.t, w.remove(c.manifests))
		w.settle()
	}
	both := w.calls[len(w.calls)-1].to
	must(w.t, w.apply(w.manifest(both, w.backends["far"])))
	both.backends = []*backend{w.backends["far"]}
	w.judge("one backend less")
	w.stopProxy()
	w.judge("without kube-proxy")
	w.startProxy()
	must(w.t, w.apply(w.manifest(both, w.backends["near"], w.backends["far"])))
	both.backends = []*backend{w.backends["near"], w.backends["far"]}
	w.judge("kube-proxy is back")
	w.balanced(6)
	w.undisturbed()
}

// judge repeats every call until its result is the expected one, because kube-proxy may still be
// starting or writing.
func (w *winkernel) judge(name string) {
	w.t.Helper()
	w.settle()
	e := w.reference()
	for _, c := range w.calls {
		want := c.expect(e)
		err := c.try(want)
		for deadline := time.Now().Add(patience); err != nil && time.Now().Before(deadline); {
			time.Sleep(100 * time.Millisecond)
			err = c.try(want)
		}
		w.flows++
		if len(want.allowed) > 0 {
			w.allowed++
		} else {
			w.denied++
		}
		if err != nil {
			w.differ++
			w.t.Errorf("%s: %s: %v", name, c, err)
		}
	}
}

// balanced waits until HNS has the given number of load balancer ports, all with direct server
// return.
func (w *winkernel) balanced(want int) {
	w.t.Helper()
	var have []string
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		select {
		case <-w.ended:
			w.t.Fatalf("kube-proxy.exe has ended:\n%s", w.said())
		default:
		}
		if have, err = w.windows.Balancers(context.Background()); err == nil && len(have) == want {
			break
		}
	}
	if len(have) != want || slices.ContainsFunc(have, func(line string) bool { return !strings.HasSuffix(line, "dsr=true") }) {
		w.t.Fatalf("HNS has the load balancers %q, %v, want %d with dsr\n%s", have, err, want, w.said())
	}
}

// appeared checks the endpoints that kube-proxy makes: for pods of other nodes, and its own on an
// overlay.
func (w *winkernel) appeared() {
	w.t.Helper()
	objects, _, err := w.windows.HNS(context.Background())
	must(w.t, err)
	endpoints := grep(objects, "  endpoint ")
	if far := grep(endpoints, "{"+w.backends["far"].addresses[0].String()+" "); !strings.Contains(far, " flags=1 ") {
		w.t.Errorf("no remote endpoint for the pod on Linux:\n%s", endpoints)
	}
	if w.source != "" && grep(endpoints, "{"+w.source+" ") == "" {
		w.t.Errorf("no endpoint has kube-proxy's address %s:\n%s", w.source, endpoints)
	}
}

// said returns the end of the log of kube-proxy.exe.
func (w *winkernel) said() string {
	text, err := os.ReadFile(w.logOf(1, "kube-proxy"))
	must(w.t, err)
	return string(text[max(0, len(text)-4000):])
}

// undisturbed checks that agent and kube-proxy did not interfere: the agent found no changed
// objects, and kube-proxy found the network that it needs.
func (w *winkernel) undisturbed() {
	w.t.Helper()
	metrics, _, err := w.windows.Get("/metrics")
	audit := grep(metrics, "isthmus_audit")
	var clean int
	fmt.Sscanf(grep(audit, "clean"), `isthmus_audit_runs_total{result="clean"} %d`, &clean)
	wrong := slices.ContainsFunc(strings.Split(grep(audit, "drift")+grep(audit, "error"), "\n"), func(line string) bool {
		return line != "" && !strings.HasSuffix(line, " 0")
	})
	if err != nil || clean < 5 || wrong {
		w.t.Errorf("the agent's audit: %v\n%s", err, audit)
	}
	text, err := os.ReadFile(w.logOf(1, "kube-proxy"))
	must(w.t, err)
	if bad := grep(string(text), "provider address"); bad != "" {
		w.t.Errorf("kube-proxy says %s", bad)
	}
}

func grep(text, word string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
