// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// twin is a pod on linux2, on the node of the server: pods are placed in order of their
// names.
const twin = `---
apiVersion: v1
kind: Pod
metadata: {name: twin, namespace: test}
spec: {containers: [{name: main}]}
`

// TestForwardingOfLimitedPods checks that packets of a pod with limited bandwidth pass the queues of its own
// node, and bypass the host stack of the other node. The limit and policy apply. Other pods of the node bypass
// both host stacks.
func TestForwardingOfLimitedPods(t *testing.T) {
	const rate = 16e6
	c, pods := startWatched(t, fabricManifests+twin, cluster.Config{Linux: 2, AgentFlags: []string{"--fabric=routes"},
		Bandwidth: map[string]cluster.Bandwidth{"server": {IngressRate: rate, IngressBurst: 1<<32 - 1, EgressRate: rate, EgressBurst: 1<<32 - 1}}})
	client, server := pods["client"], pods["server"] // on linux1, linux2
	for _, v6 := range []bool{false, true} {
		from, to := address(client, v6), address(server, v6)
		awaitFastPath(t, c, client.NS, address(pods["twin"], v6), true)
		past(t, c, "beside it", func() { sees(t, client.NS, address(pods["twin"], v6), from, false) })
		var before [2]int
		for i, n := range c.Nodes {
			before[i] = forwarded(t, n, "pods")
		}
		sees(t, client.NS, to, from, false)
		sees(t, server.NS, from, to, false)
		sees(t, pods["third"].NS, to, address(pods["third"], v6), true)
		if n := forwarded(t, c.Nodes[0], "pods") - before[0]; n != 0 {
			t.Errorf("the stack of the unlimited pod's node forwarded %d packets", n)
		}
		if n := forwarded(t, c.Nodes[1], "pods") - before[1]; n < 10 {
			t.Errorf("the stack of the limited pod's node forwarded %d packets", n)
		}
		underPolicy(t, c, client.NS, netip.AddrPortFrom(to, 7000))
	}
	for _, way := range []struct{ from, to *cluster.Pod }{{client, server}, {server, client}} {
		var got float64
		for range 3 { // the machine may be busy
			if got = receives(t, way.from, way.to); got > 0.85*rate {
				break
			}
		}
		if got < 0.85*rate || got > 1.1*rate {
			t.Errorf("from %s %.1f Mbit/s arrive at %s, want %.1f", way.from.Name, got/1e6, way.to.Name, rate/1e6)
		}
	}
	if got := receives(t, client, pods["twin"]); got < 5*rate {
		t.Errorf("without a limit %.1f Mbit/s arrive", got/1e6)
	}
}

// clientDenied is a deny list with the client's addresses.
func clientDenied(client *cluster.Pod) string {
	return fmt.Sprintf("apiVersion: isthmus.dev/v1alpha1\nkind: DenyList\nmetadata: {name: client}\nspec: {entries: [%q, %q]}\n", client.IPs[0], client.IPs[1])
}

// TestForwardingBehindXDP checks that XDP on the uplink drops packets from addresses of deny lists, also those of
// known flows on the fast path. In tunnels XDP sees only addresses of nodes, so policy decides.
func TestForwardingBehindXDP(t *testing.T) {
	for _, mode := range []string{"routes", "vxlan"} {
		t.Run(mode, func(t *testing.T) {
			c, pods := startWatched(t, fabricManifests+twin, cluster.Config{Linux: 2, AgentFlags: []string{"--fabric=" + mode, "--xdp-devices=eth0"}})
			for _, n := range c.Nodes {
				if text, _, err := n.Get("/metrics"); err != nil || !strings.Contains(text, `isthmus_deny_list_device{device="eth0"`) {
					t.Fatalf("%s has no XDP on its uplink: %v", n.Name, err)
				}
			}
			open := openBehindXDP(t, c, pods)
			stillOpen(t, c, "before there is a deny list", open)
			if err := c.Manifests.Put("denied", clientDenied(pods["client"])); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() error {
				for _, n := range c.Nodes {
					if text, _, err := n.Get("/metrics"); err != nil || !strings.Contains(text, `isthmus_deny_list_entries{family="ipv4"} 1`) {
						return fmt.Errorf("%s has no deny list: %w", n.Name, err)
					}
				}
				return nil
			})
			underDenyList(t, c, pods, open, mode == "routes") // in tunnels the source is the node, which no list denies
			if err := c.Manifests.Drop("denied"); err != nil {
				t.Fatal(err)
			}
			for _, conn := range open {
				eventually(t, func() error { return traffic.Exchange(conn, impatience) })
			}
			stillOpen(t, c, "without a deny list", open)
		})
	}
}

// openBehindXDP checks that packets between client and server take the fast path, and opens a UDP and a TCP flow of
// each family from the client to the server, in this order.
func openBehindXDP(t *testing.T, c *cluster.Cluster, pods map[string]*cluster.Pod) (open []net.Conn) {
	t.Helper()
	client, server := pods["client"], pods["server"] // on linux1, linux2
	for _, v6 := range []bool{false, true} {
		from, to := address(client, v6), address(server, v6)
		awaitFastPath(t, c, client.NS, to, true)
		past(t, c, "behind XDP", func() {
			sees(t, client.NS, to, from, false)
			sees(t, server.NS, from, to, false)
			sees(t, pods["third"].NS, to, address(pods["third"], v6), true)
			bulk(t, client.NS, server.NS, to)
		})
		open = append(open, dial(t, client.NS, "udp", netip.AddrPortFrom(to, 7000)), dial(t, client.NS, "tcp", netip.AddrPortFrom(to, 9999)))
	}
	return open
}

// stillOpen checks that packets of open flows take the fast path and are answered.
func stillOpen(t *testing.T, c *cluster.Cluster, when string, open []net.Conn) {
	t.Helper()
	past(t, c, when, func() {
		for _, conn := range open {
			if err := traffic.Exchange(conn, patience); err != nil {
				t.Errorf("%s: on an open flow to %s: %v", when, conn.RemoteAddr(), err)
			}
		}
	})
}

// underDenyList checks open and new flows while a deny list has the addresses of the client.
func underDenyList(t *testing.T, c *cluster.Cluster, pods map[string]*cluster.Pod, open []net.Conn, denied bool) {
	t.Helper()
	client, server := pods["client"], pods["server"]
	past(t, c, "under a deny list", func() {
		for i, conn := range open {
			if i%2 == 1 && denied {
				continue // TCP would retransmit, so that the flow recovers later than UDP
			}
			wait := patience
			if denied {
				wait = impatience
			}
			if err := traffic.Exchange(conn, wait); (err != nil) != denied {
				t.Errorf("on an open flow to %s: %v, denied is %t", conn.RemoteAddr(), err, denied)
			}
		}
		for _, v6 := range []bool{false, true} {
			sees(t, client.NS, address(server, v6), address(client, v6), denied)
			sees(t, server.NS, address(client, v6), address(server, v6), denied) // the client sends the answers
			sees(t, pods["third"].NS, address(pods["twin"], v6), address(pods["third"], v6), false)
		}
	})
}

// dial opens a connection that ends with the test.
func dial(t *testing.T, from *netns.NS, network string, to netip.AddrPort) (conn net.Conn) {
	t.Helper()
	err := from.Do(func() (err error) {
		conn, err = net.DialTimeout(network, to.String(), patience)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// fixed is a pod that requests addresses in the range of linux2.
const fixed = `
apiVersion: v1
kind: Namespace
metadata: {name: test, annotations: {isthmus.dev/allowed-addresses: "10.244.0.0/16, fd44::/48"}}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: test}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: fixed, namespace: test, annotations: {isthmus.dev/addresses: "10.244.2.77, fd44:0:0:2::77"}}
spec: {containers: [{name: main, ports: [{name: echo, containerPort: 7000, protocol: UDP}]}]}
`

// TestForwardingToFixedAddresses checks that flows to a pod with fixed addresses take the fast path. After the pod is
// deleted, no other pod receives its packets, not even the pod that has its slot now. When its range and the pod
// move to another node, flows go there.
func TestForwardingToFixedAddresses(t *testing.T) {
	for _, mode := range []string{"routes", "vxlan"} {
		t.Run(mode, func(t *testing.T) {
			c, pods := startWatched(t, fixed, cluster.Config{Linux: 3, AgentFlags: []string{"--fabric=" + mode}})
			client, was := pods["client"], pods["fixed"] // on linux1, linux2
			udp, tcp := openToFixed(t, c, client, was)
			if err := errors.Join(c.Detach(t.Context(), was), c.Manifests.RemovePod(was.PodID)); err != nil {
				t.Fatal(err)
			}
			noneAnswers(t, c, was, udp, tcp)

			now := moveFixed(t, c, was)
			for _, conn := range udp {
				eventually(t, func() error { return traffic.Exchange(conn, impatience) })
			}
			for _, conn := range tcp {
				conn.SetDeadline(time.Now().Add(5 * patience))
				conn.Write([]byte("still there?"))
				if _, err := conn.Read(make([]byte, 100)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%s: the new pod does not refuse a connection that it does not know: %v", conn.RemoteAddr(), err)
				}
			}
			for i, v6 := range []bool{false, true} {
				awaitFastPath(t, c, client.NS, address(now, v6), true)
				past(t, c, "to fixed addresses elsewhere", func() {
					sees(t, client.NS, address(now, v6), address(client, v6), false)
					sees(t, now.NS, address(client, v6), address(now, v6), false)
					if err := traffic.Exchange(udp[i], patience); err != nil {
						t.Errorf("on an open flow to %s: %v", udp[i].RemoteAddr(), err)
					}
				})
			}
		})
	}
}

// openToFixed checks that packets to a pod take the fast path, and opens flows of both families to it.
func openToFixed(t *testing.T, c *cluster.Cluster, client, pod *cluster.Pod) (udp, tcp []net.Conn) {
	t.Helper()
	for _, v6 := range []bool{false, true} {
		to := address(pod, v6)
		awaitFastPath(t, c, client.NS, to, true)
		past(t, c, "to fixed addresses", func() {
			sees(t, client.NS, to, address(client, v6), false)
			sees(t, pod.NS, address(client, v6), to, false)
		})
		udp = append(udp, dial(t, client.NS, "udp", netip.AddrPortFrom(to, 7000)))
		tcp = append(tcp, dial(t, client.NS, "tcp", netip.AddrPortFrom(to, 9999)))
	}
	for _, conn := range slices.Concat(udp, tcp) {
		if err := traffic.Exchange(conn, patience); err != nil {
			t.Fatalf("%s: %v", conn.RemoteAddr(), err)
		}
	}
	return udp, tcp
}

// noneAnswers gives the slot of a deleted pod to another pod, and checks that this pod gets no packet of flows to
// the deleted one.
func noneAnswers(t *testing.T, c *cluster.Cluster, deleted *cluster.Pod, udp, tcp []net.Conn) {
	t.Helper()
	heir := heirOf(t, c, deleted)
	for range 5 {
		for _, conn := range udp {
			if err := traffic.Exchange(conn, 50*time.Millisecond); err == nil {
				t.Errorf("%s: another pod answers for a deleted one", conn.RemoteAddr())
			}
		}
		for _, conn := range tcp {
			conn.Write([]byte("still there?")) // the caller reads the result after the pod moved
		}
	}
	if n := heir.heard(t); n > 0 {
		t.Errorf("the pod with the slot of a deleted pod got %d of its datagrams", n)
	}
	if err := errors.Join(c.Detach(t.Context(), heir.Pod), c.Manifests.RemovePod(heir.PodID)); err != nil {
		t.Fatal(err)
	}
}

// moveFixed exchanges the ranges of the second and third node, and attaches the pod again on the third, with servers.
func moveFixed(t *testing.T, c *cluster.Cluster, was *cluster.Pod) (now *cluster.Pod) {
	t.Helper()
	c.Nodes[1].PodCIDRs, c.Nodes[2].PodCIDRs = c.Nodes[2].PodCIDRs, c.Nodes[1].PodCIDRs
	if err := c.Manifests.WriteNodes(c.Nodes); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() (err error) {
		now, err = attachLate(t, c, &model.Pod{PodID: was.PodID, Node: c.Nodes[2].Name, FixedIPs: was.FixedIPs, Ports: was.Pod.Ports})
		return err
	})
	if now == nil {
		t.FailNow()
	}
	for _, at := range now.Ports() {
		if err := c.ServeAt(now, at); err != nil {
			t.Fatal(err)
		}
	}
	return now
}

// heir is a pod with the slot of a deleted pod. It counts datagrams to the addresses of that pod.
type heir struct {
	*cluster.Pod
	ears []net.PacketConn
}

func heirOf(t *testing.T, c *cluster.Cluster, gone *cluster.Pod) *heir {
	t.Helper()
	p, err := attachLate(t, c, &model.Pod{PodID: model.PodID{Namespace: "test", Name: "heir"}, Node: gone.Node.Name})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := &heir{Pod: p}
	err = p.NS.Do(func() error {
		for _, a := range gone.IPs {
			if err := ip("address", "add", netip.PrefixFrom(a, a.BitLen()).String(), "dev", "lo", "nodad"); err != nil {
				return err
			}
			ear, err := net.ListenPacket("udp", netip.AddrPortFrom(a, 7000).String())
			if err != nil {
				return err
			}
			t.Cleanup(func() { ear.Close() })
			h.ears = append(h.ears, ear)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// heard returns the number of received datagrams.
func (h *heir) heard(t *testing.T) (n int) {
	t.Helper()
	for _, ear := range h.ears {
		ear.SetDeadline(time.Now().Add(impatience))
		for buffer := make([]byte, 100); ; n++ {
			if _, _, err := ear.ReadFrom(buffer); err != nil {
				break
			}
		}
	}
	return n
}
