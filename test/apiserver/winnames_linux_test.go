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
	"time"

	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/kubernetes"
)

// webAddress is the address of the Service shop/web.
const webAddress = "10.96.7.1"

// corefile serves the names of the cluster.
const corefile = `.:53 {
  errors
  kubernetes cluster.local {
    kubeconfig %s
    ttl 0
  }
}
`

// dnsRole is the role of CoreDNS.
const dnsRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: coredns}
rules:
- {apiGroups: [""], resources: [services, namespaces, pods], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
`

// dnsService is its Service, with the pod behind it.
const dnsService = `
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec: {clusterIP: %[1]s, ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-0, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
endpoints: [{addresses: [%[2]q], nodeName: %[3]s, conditions: {ready: true, serving: true}}]
`

// names lets a Windows pod resolve names with the real CoreDNS, which is a pod on
// Linux behind the load balancer of kube-proxy.exe. The pod asks the servers that HNS
// has for it. Its egress policy decides about them as about any other address.
func (w *winkernel) names() {
	t := w.t
	t.Helper()
	w.startDNS()
	must(t, w.apply(w.manifest(&service{name: "web", addresses: []netip.Addr{netip.MustParseAddr(webAddress)}, port: 80}, w.backends["far"])))
	w.balanced(6 + 2 + 2)
	client := w.pods["client"]
	d, err := client.Resolver(context.Background())
	must(t, err)
	if !slices.Equal(d.ServerList, []string{cluster.DNSAddress}) || !slices.Equal(d.Search, []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local"}) {
		t.Fatalf("HNS has the resolver %+v for the pod", d)
	}
	for _, name := range []string{"web.shop.svc.cluster.local", "web", "web.shop"} {
		w.resolves(client, name)
	}
	if found, err := client.Resolve(context.Background(), "missing", time.Second); err == nil {
		t.Errorf("a name that is none resolves to %v", found)
	}
	backends := egressOf("client", `{to: [{podSelector: {matchLabels: {app: backend}}}]}`)
	must(t, w.apply(backends))
	w.settle()
	if found, err := client.Resolve(context.Background(), "web", 500*time.Millisecond); err == nil {
		t.Errorf("the policy does not allow the DNS server, which answers %v", found)
	}
	must(t, w.apply(egressOf("client", `{to: [{podSelector: {matchLabels: {app: backend}}}]}, {to: [{namespaceSelector: {}, podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{protocol: UDP, port: 53}]}`)))
	w.settle()
	w.resolves(client, "web.shop.svc.cluster.local")
	must(t, w.remove(backends))
}

// resolves waits until a name resolves to the Service web.
func (w *winkernel) resolves(p *cluster.Pod, name string) {
	w.t.Helper()
	var found []netip.Addr
	var err error
	for deadline := time.Now().Add(waiting); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if found, err = p.Resolve(context.Background(), name, 2*time.Second); err == nil {
			break
		}
	}
	if err != nil || len(found) != 1 || found[0].String() != webAddress {
		log, _ := os.ReadFile(w.logOf(0, "coredns"))
		w.t.Fatalf("resolve %s from %s/%s: %v, %v\n%s", name, p.Node.Name, p.Name, found, err, log)
	}
	w.t.Logf("resolve %s from %s/%s: %s", name, p.Node.Name, p.Name, found[0])
}

// startDNS starts CoreDNS in a pod on Linux, behind the Service kube-dns.
func (w *winkernel) startDNS() {
	t := w.t
	t.Helper()
	bin, err := kubernetes.Build(context.Background(), os.Stderr, "coredns")
	must(t, err)
	must(t, w.apply("{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}"))
	must(t, w.server.Apply(context.Background(), dnsRole))
	pod := w.attach(w.place(0, "kube-system", "coredns", map[string]string{"k8s-app": "kube-dns"}))
	path := filepath.Join(w.cluster.Nodes[0].Dir, "Corefile")
	must(t, os.WriteFile(path, []byte(fmt.Sprintf(corefile, w.member("coredns", "coredns"))), 0o600))
	log, err := os.OpenFile(w.logOf(0, "coredns"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	defer log.Close()
	cmd := exec.Command(filepath.Join(bin, "coredns"), "-conf", path)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(t, pod.NS.Do(cmd.Start))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Kill() // an error means that it has ended
		<-ended
	})
	must(t, w.apply(fmt.Sprintf(strings.TrimSpace(dnsService), cluster.DNSAddress, familyOf(pod.IPs, false), w.cluster.Nodes[0].Name)))
}
