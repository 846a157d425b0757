// SPDX-License-Identifier: Apache-2.0

package mixed_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/cluster/clustertest"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
	"github.com/isthmus-net/isthmus/test/wine"
)

// TestTranslation checks address translation on Windows nodes. Packets of pods that leave the
// cluster have the node's address. Host ports lead to pods; the pods see the address of the client,
// and their policies apply to it. All other packets keep their addresses.
func TestTranslation(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	c := begin(t, cluster.Config{Bin: build(t), Linux: 1, Windows: 1, AgentFlags: []string{"--fabric=routes"},
		WindowsFlags: []string{"--cluster-cidr=10.244.0.0/16"},
		HostPorts:    map[string][]cluster.HostPort{"win": {{HostPort: 8100, ContainerPort: 7100, Protocol: "tcp"}, {HostPort: 8100, ContainerPort: 7100, Protocol: "udp"}}}})
	if err := c.Manifests.WriteNamespaces([]*model.Namespace{model.NewNamespace("test", nil)}); err != nil {
		t.Fatal(err)
	}
	pods := make(map[string]*cluster.Pod)
	for i, name := range []string{"lin", "win"} {
		p := &model.Pod{PodID: model.PodID{Namespace: "test", Name: name}, Node: c.Nodes[i].Name, Labels: model.MakeLabels(map[string]string{"app": name})}
		if err := c.Manifests.WritePod(p); err != nil {
			t.Fatal(err)
		}
		pod, _, err := c.Attach(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		pods[name] = pod
	}
	outside, world := c.Outside()
	lin, win, linux, windows := pods["lin"], pods["win"], c.Nodes[0], c.Nodes[1]
	servers := traffic.ServersFor(t)
	if err := errors.Join(servers.Greet(outside, netip.AddrPortFrom(world[0], 7100), traffic.WhoAmI),
		servers.Greet(lin.NS, netip.AddrPortFrom(lin.IPs[0], 7100), traffic.WhoAmI),
		servers.Greet(win.NS, netip.AddrPortFrom(win.IPs[0], 7100), traffic.WhoAmI)); err != nil {
		t.Fatal(err)
	}
	settle := func() {
		t.Helper()
		if err := c.Settle(ctx); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, from *netns.NS, to netip.Addr, port uint16, want netip.Addr) {
		t.Helper()
		for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
			if got, err := (traffic.Flow{NS: from, To: netip.AddrPortFrom(to, port), Protocol: protocol}).Seen(20 * time.Second); got != want {
				t.Errorf("%s by %s: seen as %s, want %s: %v", what, protocol, got, want, err)
			}
		}
	}
	node := windows.Addresses()[0]
	settle()
	check("Windows pod to the outside", win.NS, world[0], 7100, node)
	check("Windows pod to a Linux pod", win.NS, lin.IPs[0], 7100, win.IPs[0])
	check("Linux pod to a Windows pod", lin.NS, win.IPs[0], 7100, lin.IPs[0])
	check("Linux node to a Windows pod", linux.NS, win.IPs[0], 7100, linux.Addresses()[0])
	check("outside to a Windows pod", outside, win.IPs[0], 7100, world[0])
	check("outside to a host port", outside, node, 8100, world[0])
	check("Linux pod to a host port", lin.NS, node, 8100, lin.IPs[0])
	check("Linux node to a host port", linux.NS, node, 8100, linux.Addresses()[0])
	if err := c.Manifests.Put("only", fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only, namespace: test}
spec: {podSelector: {matchLabels: {app: win}}, ingress: [{from: [{ipBlock: {cidr: %s/32}}]}]}
`, world[0])); err != nil {
		t.Fatal(err)
	}
	settle()
	h := hostPort{at: netip.AddrPortFrom(node, 8100), pod: netip.AddrPortFrom(win.IPs[0], 7100), servers: servers}
	h.denied(t, lin.NS, outside, world[0])
	check("the denied pod's own connections", win.NS, lin.IPs[0], 7100, win.IPs[0])
}

// hostPort is a port of a node that leads to a server in a pod.
type hostPort struct {
	at, pod netip.AddrPort
	servers *traffic.Servers
}

// denied checks that nothing from one namespace arrives at the pod. Flows from another one, which policy allows, do.
func (h hostPort) denied(t *testing.T, from, allowed *netns.NS, source netip.Addr) {
	t.Helper()
	for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
		before := h.servers.Arrived(h.pod, protocol)
		for range 3 {
			if got, err := (traffic.Flow{NS: from, To: h.at, Protocol: protocol}).Seen(time.Second); err == nil || !traffic.Silent(err) {
				t.Errorf("denied flow to a host port by %s: seen as %s, %v, want silence", protocol, got, err)
			}
		}
		if got, err := (traffic.Flow{NS: allowed, To: h.at, Protocol: protocol}).Seen(20 * time.Second); got != source {
			t.Errorf("allowed flow to a host port by %s: seen as %s, want %s: %v", protocol, got, source, err)
		}
		if n := h.servers.Arrived(h.pod, protocol) - before; n != 1 {
			t.Errorf("denied flow to a host port by %s: with the allowed flow %d arrived, want 1", protocol, n)
		}
	}
}

// commands are what the nodes of all tests run, under Wine also the executables for Windows.
var commands clustertest.Commands

func TestMain(m *testing.M) { os.Exit(commands.Main(m)) }

// build compiles the commands, once for all tests, and returns their directory.
func build(t *testing.T) string {
	t.Helper()
	if underWine(t) {
		commands.More = wine.Build
	}
	return commands.Dir(t, "../..")
}

// underWine reports whether Windows nodes run the executables for Windows.
func underWine(t *testing.T) bool {
	if os.Getenv("ISTHMUS_WINE") == "" {
		return false
	}
	if missing := wine.Missing(); missing != "" {
		t.Fatal(missing)
	}
	return true
}
