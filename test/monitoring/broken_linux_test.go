// SPDX-License-Identifier: Apache-2.0

package monitoring_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/cluster/clustertest"
	"github.com/isthmus-net/isthmus/test/netns"
)

// shop has pods on two Linux nodes; the names place them.
const shop = `
apiVersion: v1
kind: Pod
metadata: {name: api-linux1, namespace: shop, labels: {app: api}}
spec: {containers: [{name: main, ports: [{containerPort: 80, protocol: TCP}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-linux1, namespace: shop, labels: {app: web}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db-linux2, namespace: shop, labels: {app: db}}
spec: {containers: [{name: main}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: api, namespace: shop}
spec:
  podSelector: {matchLabels: {app: api}}
  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 80}]}]
`

// broken is a cluster that tests break.
type broken struct {
	*operator
	cluster *cluster.Cluster
	pods    map[string]*cluster.Pod
	// flags are those of the Linux nodes, by name; another start of the agent takes them.
	flags map[string][]string
}

func startBroken(t *testing.T, manifests string, cfg cluster.Config) *broken {
	t.Helper()
	tool(t, "prometheus")
	b := &broken{flags: make(map[string][]string)}
	for node, flags := range cfg.NodeFlags {
		b.flags[node] = flags
	}
	cfg.NodeFlags = b.flags
	b.cluster = commands.Start(t, manifests, cfg)
	b.pods = clustertest.Attach(t, b.cluster)
	b.operator = &operator{t: t, bin: commands.Dir(t, "../..")}
	return b
}

func (b *broken) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// restart restarts an agent with other flags.
func (b *broken) restart(n *cluster.Node, flags ...string) {
	b.t.Helper()
	b.must(n.Stop())
	b.flags[n.Name] = flags
	b.must(n.Start())
	b.ready(n)
}

func (b *broken) ready(n *cluster.Node) {
	b.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if s, err := n.Status(b.t.Context()); err == nil && s.GetReady() {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("the agent of %s is not ready", n.Name)
		}
	}
}

// repeat calls f all the time until stop is called, or the test ends. An error fails the test.
func (b *broken) repeat(every time.Duration, f func() error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := f(); err != nil {
				b.t.Error(err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(every):
			}
		}
	}()
	stop = func() { cancel(); <-done }
	b.t.Cleanup(stop)
	return stop
}

// at runs a command in the namespace of a node.
func (b *broken) at(n *cluster.Node, command string) error {
	fields := strings.Fields(command)
	return n.NS.Do(exec.CommandContext(context.Background(), fields[0], fields[1:]...).Run)
}

// add attaches one more pod.
func (b *broken) add(name, node string) error {
	pod := &model.Pod{PodID: model.PodID{Namespace: "shop", Name: name}, Node: node, Labels: model.MakeLabels(map[string]string{"app": "more"})}
	if err := b.cluster.Manifests.WritePod(pod); err != nil {
		return err
	}
	p, _, err := b.cluster.Attach(b.t.Context(), pod)
	if err == nil {
		b.pods[name] = p
	}
	return err
}

// many is a policy with many addresses.
func many(n int) string {
	var from []string
	for i := range n {
		from = append(from, fmt.Sprintf("{ipBlock: {cidr: 192.0.%d.%d/32}}", i/100, i%100*2))
	}
	return "kind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nmetadata: {name: many, namespace: shop}\nspec: {podSelector: {}, ingress: [{from: [" + strings.Join(from, ", ") + "]}]}\n"
}

// bad is a policy that the API server would reject.
const bad = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec: {podSelector: web}
`

// corrupt removes every verdict from the maps of a node, as another process could.
func (b *broken) corrupt(n *cluster.Node) error {
	m, err := ebpf.LoadPinnedMap(filepath.Join(b.cluster.BPFFS(), n.Name, "v4", "verdicts"), nil)
	if err != nil {
		return err
	}
	defer m.Close()
	var keys [][]byte
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	for it := m.Iterate(); it.Next(&key, &value); {
		keys = append(keys, slices.Clone(key))
	}
	for _, k := range keys {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}

// spoof sends a datagram from an address that the pod does not have.
func spoof(from, to *cluster.Pod) error {
	source := netip.MustParsePrefix("192.0.2.77/32")
	return from.NS.Do(func() error {
		if err := netns.AddAddresses("lo", source); err != nil {
			return err
		}
		conn, err := net.DialUDP("udp", &net.UDPAddr{IP: source.Addr().AsSlice()}, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.IPs[0], 7000)))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("12345678"))
		return errors.Join(err, netns.RemoveAddresses("lo", source))
	})
}

// hostInterface returns the interface of a pod at its node.
func (b *broken) hostInterface(p *cluster.Pod) string {
	b.t.Helper()
	alias := "alias isthmus:" + strings.ReplaceAll(p.PodID.String(), "/", "-") + ":eth0"
	var out []byte
	b.must(p.Node.NS.Do(func() (err error) { out, err = exec.Command("ip", "-o", "link").Output(); return err }))
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, alias) {
			name, _, _ := strings.Cut(strings.Fields(line)[1], "@")
			return name
		}
	}
	b.t.Fatalf("no interface has the %s:\n%s", alias, out)
	return ""
}
