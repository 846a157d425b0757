// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// nodes are two nodes whose uplinks are connected.
type nodes [2]*lab

// Their pod ranges and addresses.
var nearAndFar = [2]*model.Node{
	{Name: "near", OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr(nodeAddr4), netip.MustParseAddr(nodeAddr6)},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/25"), netip.MustParsePrefix("fd01::/121")}},
	{Name: "far", OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr(outsideAddr4), netip.MustParseAddr(outsideAddr6)},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.128/25"), netip.MustParsePrefix("fd01::80/121")}},
}

// newNodes starts both nodes with a changed configuration.
func newNodes(t *testing.T, change func(*linux.Config)) nodes {
	t.Helper()
	return newNodesOn(t, nearAndFar, change)
}

// newNodesOn is newNodes with the addresses of other nodes.
func newNodesOn(t *testing.T, cluster [2]*model.Node, change func(*linux.Config)) nodes {
	t.Helper()
	var n nodes
	for i := range n {
		n[i] = newNode(t)
		n[i].change = change
	}
	n[0].must(n[0].cable(n[1].node))
	for i, l := range n {
		l.must(l.node.Do(func() error {
			var all []string
			for _, a := range cluster[i].Addresses {
				all = append(all, fmt.Sprintf("%s/%d", a, map[bool]int{false: 24, true: 64}[a.Is6()]))
			}
			return addresses("eth0", all...)
		}))
		l.start()
		t.Cleanup(func() { l.backend.Close() })
	}
	return n
}

// apply enforces policies on the pods of both nodes. It calls Idle until no work is left and
// devices have been checked.
func (n nodes) apply(policies ...*model.Policy) {
	n[0].t.Helper()
	n.applyTo(nearAndFar[:], policies...)
}

// applyTo is apply in a cluster with these nodes.
func (n nodes) applyTo(cluster []*model.Node, policies ...*model.Policy) {
	n[0].t.Helper()
	var all []*model.Pod
	for i, l := range n {
		for _, e := range l.local {
			all = append(all, &model.Pod{PodID: e.Pod, Node: nearAndFar[i].Name, IPs: e.IPs, Labels: model.MakeLabels(map[string]string{"name": e.Pod.Name})})
		}
	}
	snapshot := model.MakeSnapshot(nil, cluster, all, policies)
	for i, l := range n {
		l.must(l.node.Do(func() (err error) {
			l.state, _ = compile.Once(compile.Input{Snapshot: snapshot, Node: nearAndFar[i].Name, Endpoints: l.local, Previous: l.state})
			_, err = l.backend.Apply(context.Background(), l.state)
			return err
		}))
	}
	n.settle()
}

func (n nodes) settle() {
	n[0].t.Helper()
	time.Sleep(1100 * time.Millisecond) // fastpath.period
	for _, l := range n {
		for l.idle() {
		}
	}
}

// straight runs f and checks that both host stacks saw none of its packets, or that both did.
func (n nodes) straight(want bool, f func()) {
	n[0].t.Helper()
	var ends [2][]*wire
	for i, l := range n {
		ends[i] = l.hostEnds(slices.Collect(maps.Keys(l.pods))...)
	}
	f()
	for i, l := range n {
		var packets [][]byte
		for _, end := range ends[i] {
			packets = append(packets, end.handedOver()...)
		}
		if (len(packets) == 0) != want {
			l.t.Errorf("%d packets to pods of %s went through its stack", len(packets), nearAndFar[i].Name)
			for _, frame := range packets[:min(len(packets), 4)] {
				l.t.Logf("% x", frame[:min(len(frame), 80)])
			}
		}
	}
}

// hops checks what both nodes report about the ranges of the other.
func (n nodes) hops(mode string) {
	n[0].t.Helper()
	for i, l := range n {
		var got []dataplane.PathMode
		for _, w := range l.status().PathModes {
			if w.Part == "other_nodes" {
				got = append(got, w)
			}
		}
		if want := []dataplane.PathMode{{Part: "other_nodes", Mode: mode, Count: 2}}; !slices.Equal(got, want) {
			l.t.Errorf("%s says of pods of others %v, want %v", nearAndFar[i].Name, got, want)
		}
	}
}

// hooksHere returns the kinds of hooks to test on this kernel, and whether each works without
// links.
func hooksHere(t *testing.T) map[string]bool {
	t.Helper()
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	kinds := map[string]bool{"classifiers": true}
	if hasTCX(t) {
		kinds["links"] = false
	}
	return kinds
}

// Packets between pods of two nodes use the fast path, with either kind of hook and over either
// fabric, under the policy of the receiver. This also holds after the agents restart, and after
// another process detaches from_node.
func TestFastPathBetweenNodes(t *testing.T) {
	t.Parallel()
	for _, mode := range []fabric.Mode{fabric.Routes, fabric.VXLAN} {
		for hook, clsact := range hooksHere(t) {
			t.Run(string(mode)+"/"+hook, func(t *testing.T) {
				n := newNodes(t, func(cfg *linux.Config) { cfg.Fabric.Mode, cfg.ByClassifiers = mode, clsact })
				client, other, server := n[0].pod("client", 11), n[0].pod("other", 12), n[1].pod("server", 139)
				n[1].echo(server, 80)
				n[0].echo(client, 80)
				only := isolate("server", model.Ingress, accept(pods("client"), tcp(80), udp(80)))
				n.apply(only)
				n.hops("direct_" + string(mode))
				judge := func() {
					t.Helper()
					for _, to := range [][2]string{{"10.1.0.139", "10.1.0.11"}, {"fd01::8b", "fd01::b"}} {
						n.straight(true, func() {
							for _, network := range []string{"tcp", "udp"} {
								n[0].allowed(client, network, to[0], 80)
								n[1].allowed(server, network, to[1], 80)
							}
							n[0].transfer(client, to[0])
						})
					}
				}
				judge()
				n.straight(true, func() {
					for _, network := range []string{"tcp", "udp"} {
						n[0].denied(other, network, "10.1.0.139", 80)
						n[0].denied(other, network, "fd01::8b", 80)
					}
				})
				var open []net.Conn
				for _, network := range []string{"tcp", "udp"} {
					n[0].must(client.Do(func() error {
						c, err := net.Dial(network, "10.1.0.139:80")
						open = append(open, c)
						return err
					}))
					defer open[len(open)-1].Close()
					n[0].must(traffic.Exchange(open[len(open)-1], patience))
				}
				for _, l := range n {
					l.must(l.backend.Close())
					l.start()
				}
				n[0].must(n[0].add("client", 11))
				n[0].must(n[0].add("other", 12))
				n[1].must(n[1].add("server", 139))
				n.apply(only)
				n.straight(true, func() {
					for _, c := range open {
						n[0].must(traffic.Exchange(c, patience))
					}
				})
				judge()
				pins, err := filepath.Glob(filepath.Join(n[1].bpffs, "*", "links", "*-from_node"))
				n[1].must(err)
				if (len(pins) == 0) != clsact {
					t.Errorf("pins of from_node are %v", pins)
				}
				if !clsact {
					return
				}
				n[1].must(n[1].node.Do(func() error { return link.DropNodeClassifiers(nil) }))
				n.settle()
				judge()
			})
		}
	}
}

// If the kernel offers no lookup in connection tracking, packets use the host stacks of both
// nodes under policy, and the agent reports it. After its module is loaded, packets use the
// fast path, while open connections continue.
func TestTrackingComesLater(t *testing.T) {
	t.Parallel()
	for hook, clsact := range hooksHere(t) {
		t.Run(hook, func(t *testing.T) {
			there := loader.NoTracking
			n := newNodes(t, func(cfg *linux.Config) {
				cfg.Tracking, cfg.ByClassifiers = func() loader.Tracking { return there }, clsact
			})
			var log bytes.Buffer
			n[0].log = &log
			n[0].must(n[0].backend.Close())
			n[0].start()
			client, other, server := n[0].pod("client", 11), n[0].pod("other", 12), n[1].pod("server", 139)
			n[1].echo(server, 80)
			n.apply(isolate("server", model.Ingress, accept(pods("client"))))
			judge := func(direct bool) {
				t.Helper()
				for _, to := range []string{"10.1.0.139", "fd01::8b"} {
					for _, network := range []string{"tcp", "udp"} {
						n.straight(direct, func() { n[0].allowed(client, network, to, 80) })
						n[0].denied(other, network, to, 80)
					}
				}
			}
			n.hops("stack_routes")
			if !strings.Contains(log.String(), "packets between nodes go through the host stack") {
				t.Errorf("the log says nothing of it: %s", log.String())
			}
			judge(false)
			var open []net.Conn
			for _, to := range []string{"10.1.0.139:80", "[fd01::8b]:80"} {
				for _, network := range []string{"tcp", "udp"} {
					n[0].must(client.Do(func() error {
						c, err := net.Dial(network, to)
						open = append(open, c)
						return err
					}))
					defer open[len(open)-1].Close()
					n[0].must(traffic.Exchange(open[len(open)-1], patience))
				}
			}
			there = loader.Loaded
			n.settle()
			n.hops("direct_routes")
			if !strings.Contains(log.String(), "programs can query connection tracking now") {
				t.Errorf("the log says nothing of it: %s", log.String())
			}
			for _, c := range open {
				n[0].must(traffic.Exchange(c, patience))
			}
			judge(true)
			for _, l := range n {
				l.sound()
			}
		})
	}
}
