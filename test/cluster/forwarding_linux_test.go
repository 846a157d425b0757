// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/netns"
)

// watched makes a node count the packets of pods that its stack forwards. It also drops packets that connection
// tracking finds invalid, as kube-proxy does in iptables mode.
const watched = `
table inet watched {
	counter pods {}
	counter invalid {}
	chain forward {
		type filter hook forward priority 0;
		ct state invalid counter name invalid drop
		ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 meta l4proto { tcp, udp } counter name pods
		ip6 saddr fd44::/16 ip6 daddr fd44::/16 meta l4proto { tcp, udp } counter name pods
	}
}`

func watch(t *testing.T, n *cluster.Node) {
	t.Helper()
	inNode(t, n, func() error {
		nft := exec.Command("nft", "-f", "-")
		nft.Stdin = strings.NewReader(watched)
		if out, err := nft.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
}

// startWatched makes a cluster whose pods serve whoami, and whose nodes are watched.
func startWatched(t *testing.T, manifests string, cfg cluster.Config) (*cluster.Cluster, map[string]*cluster.Pod) {
	t.Helper()
	c, pods := startCluster(t, manifests, cfg)
	for _, p := range pods {
		whoami(t, p.NS, netip.IPv6Unspecified())
	}
	for _, n := range c.Nodes {
		watch(t, n)
	}
	return c, pods
}

// forwarded reads a counter of watched.
func forwarded(t *testing.T, n *cluster.Node, counter string) (packets int) {
	t.Helper()
	inNode(t, n, func() error {
		out, err := exec.Command("nft", "list", "counter", "inet", "watched", counter).CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		at := strings.Index(string(out), "packets ")
		if at < 0 {
			return fmt.Errorf("nft says %s", out)
		}
		_, err = fmt.Sscan(string(out)[at+len("packets "):], &packets)
		return err
	})
	return packets
}

// past runs f and checks that no host stack forwards a packet between pods meanwhile.
func past(t *testing.T, c *cluster.Cluster, what string, f func()) {
	t.Helper()
	var before []int
	for _, n := range c.Nodes {
		before = append(before, forwarded(t, n, "pods"))
	}
	f()
	for i, n := range c.Nodes {
		if now := forwarded(t, n, "pods"); now != before[i] {
			t.Errorf("%s: the stack of %s forwarded %d packets", what, n.Name, now-before[i])
		}
	}
}

// awaitFastPath waits until a new flow between two pods takes the fast path.
func awaitFastPath(t *testing.T, c *cluster.Cluster, from *netns.NS, to netip.Addr, want bool) {
	t.Helper()
	eventually(t, func() error {
		before := forwarded(t, c.Nodes[0], "pods") + forwarded(t, c.Nodes[1], "pods")
		if _, err := ask(from, model.TCP, to); err != nil {
			return err
		}
		if now := forwarded(t, c.Nodes[0], "pods") + forwarded(t, c.Nodes[1], "pods"); (now == before) != want {
			return fmt.Errorf("the stacks forwarded %d packets of a new flow", now-before)
		}
		return nil
	})
}

// TestFastPathBetweenNodes checks that packets between pods of two nodes take the fast path in both modes. Pods see no
// difference: hop limits, ICMP errors, sizes and policy are the same as on the slow path.
func TestFastPathBetweenNodes(t *testing.T) {
	for _, mode := range []string{"routes", "vxlan"} {
		t.Run(mode, func(t *testing.T) {
			c, pods := startWatched(t, fabricManifests, cluster.Config{Linux: 2, AgentFlags: []string{"--fabric=" + mode}})
			client, server := pods["client"], pods["server"] // on linux1, linux2
			for _, v6 := range []bool{false, true} {
				from, to := address(client, v6), address(server, v6)
				awaitFastPath(t, c, client.NS, to, true)
				past(t, c, "both ways", func() {
					sees(t, client.NS, to, from, false)
					sees(t, server.NS, from, to, false)
				})
				past(t, c, "refused by policy", func() { sees(t, pods["third"].NS, to, address(pods["third"], v6), true) })
				past(t, c, "large packets", func() { bulk(t, client.NS, server.NS, to) })
				past(t, c, "a closed port", func() {
					if err := client.NS.Do(func() error { return refused(netip.AddrPortFrom(to, 7999)) }); !errors.Is(err, syscall.ECONNREFUSED) {
						t.Errorf("a closed port says %v", err)
					}
				})
				past(t, c, "hops", func() { hops(t, client.NS, server.NS, to, 62) })
				for ttl, at := range map[int]int{1: 0, 2: 1} {
					expires(t, client.NS, to, ttl, c.Nodes[at].Addresses())
				}
			}
			for _, n := range c.Nodes {
				if invalid := forwarded(t, n, "invalid"); invalid != 0 {
					t.Errorf("the stack of %s found %d packets invalid", n.Name, invalid)
				}
			}
		})
	}
}

// noClient removes the client from the pods that may reach the server.
const noClient = `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: no-client}
spec:
  tier: Admin
  priority: 1
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: server}}}}
  ingress:
  - name: no-client
    action: Deny
    from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: client}}}}]
`

// TestForwardingChanges changes, while flows are open, the policy, the fabric, the forwarding mode and the MTU, and
// restarts agents. Each change affects the flows that it should affect, and no others.
func TestForwardingChanges(t *testing.T) {
	c, pods := startWatched(t, fabricManifests, cluster.Config{Linux: 2, AgentFlags: []string{"--fabric=routes"}})
	client, server := pods["client"], pods["server"]
	for _, v6 := range []bool{false, true} {
		awaitFastPath(t, c, client.NS, address(server, v6), true)
	}

	t.Run("policy", func(t *testing.T) {
		for _, v6 := range []bool{false, true} {
			past(t, c, "a policy that changes", func() { underPolicy(t, c, client.NS, netip.AddrPortFrom(address(server, v6), 7000)) })
		}
	})
	for _, step := range []struct {
		name, flags    string
		direct, fabric bool // fabric: the change is one of the fabric
	}{
		{"the same", "--fabric=routes", true, false},
		{"stack", "--fabric=routes --forwarding=stack", false, false},
		{"direct again", "--fabric=routes", true, false},
		{"vxlan", "--fabric=vxlan", true, true},
		{"routes again", "--fabric=routes", true, true},
	} {
		t.Run(step.name, func(t *testing.T) {
			keepsAll(t, client, server, step.fabric, func() time.Duration { return restarted(t, c, strings.Fields(step.flags), step.fabric) })
			for _, v6 := range []bool{false, true} {
				awaitFastPath(t, c, client.NS, address(server, v6), step.direct)
				sees(t, client.NS, address(server, v6), address(client, v6), false)
				sees(t, server.NS, address(client, v6), address(server, v6), false)
			}
		})
	}
	t.Run("IPsec", func(t *testing.T) { forwardingWithIPsec(t, c, client, server) })
	t.Run("smaller MTU", func(t *testing.T) { forwardingOfSmallerMTU(t, c, client, server) })
	t.Run("devices", func(t *testing.T) { forwardingWithoutFabric(t, c) })
}

// restarted replaces the agents by agents with other flags: one after the other, or, if they change the fabric, all at
// once. It returns the time between the first and the last one that was ready in the second case.
func restarted(t *testing.T, c *cluster.Cluster, flags []string, fabric bool) (apart time.Duration) {
	t.Helper()
	c.SetAgentFlags(flags...)
	ready, errs := make([]time.Time, len(c.Nodes)), make([]error, len(c.Nodes))
	var restarts sync.WaitGroup
	for i, n := range c.Nodes {
		restarts.Go(func() {
			errs[i] = n.Restart(t.Context(), syscall.SIGKILL)
			ready[i] = time.Now()
		})
		if !fabric {
			restarts.Wait()
		}
	}
	restarts.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // until each has reconciled its devices
	if !fabric {
		return 0
	}
	return slices.MaxFunc(ready, time.Time.Compare).Sub(slices.MinFunc(ready, time.Time.Compare))
}

// forwardingWithIPsec adds an IPsec policy to the node of the client: packets take the slow path until it is gone.
func forwardingWithIPsec(t *testing.T, c *cluster.Cluster, client, server *cluster.Pod) {
	n := c.Nodes[0]
	inNode(t, n, func() error {
		return ip("xfrm", "policy", "add", "src", "198.51.100.0/24", "dst", "203.0.113.0/24", "dir", "out",
			"tmpl", "src", "192.0.2.1", "dst", "192.0.2.2", "proto", "esp", "mode", "tunnel")
	})
	awaitFastPath(t, c, client.NS, address(server, false), false)
	inNode(t, n, func() error { return ip("xfrm", "policy", "flush") })
	awaitFastPath(t, c, client.NS, address(server, false), true)
}

// forwardingOfSmallerMTU lowers the MTU of all uplinks: pods learn it, and large packets are fragmented or refused.
func forwardingOfSmallerMTU(t *testing.T, c *cluster.Cluster, client, server *cluster.Pod) {
	for _, n := range c.Nodes {
		inNode(t, n, func() error { return ip("link", "set", "eth0", "mtu", "1400") })
	}
	for _, v6 := range []bool{false, true} {
		headers := 28
		if v6 {
			headers = 48
		}
		fits(t, client.NS, address(server, v6), 1401-headers, syscall.EMSGSIZE)
		fits(t, client.NS, address(server, v6), 1400-headers, nil)
		bulk(t, client.NS, server.NS, address(server, v6))
	}
}

// forwardingWithoutFabric restarts agents without a fabric: they detach the programs of its devices.
func forwardingWithoutFabric(t *testing.T, c *cluster.Cluster) {
	c.SetAgentFlags("--fabric=none")
	for _, n := range c.Nodes {
		if err := n.Restart(t.Context(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			pins, err := filepath.Glob(filepath.Join(c.BPFFS(), n.Name, "*", "links", "*-from_node"))
			if err == nil && len(pins) > 0 {
				err = fmt.Errorf("without a fabric there is %v", pins)
			}
			return err
		})
	}
}

// translations returns rules that redirect 10.99.0.1 and fd99::1, and port 8100 of the node, to port 7100 of a
// pod, as kube-proxy does for Services.
func translations(server *cluster.Pod, n *cluster.Node) string {
	rules := ""
	for i, v6 := range []bool{false, true} {
		ip, service := "ip", netip.MustParseAddr("10.99.0.1")
		if v6 {
			ip, service = "ip6", netip.MustParseAddr("fd99::1")
		}
		to := netip.AddrPortFrom(address(server, v6), 7100)
		for _, protocol := range []string{"tcp", "udp"} {
			rules += fmt.Sprintf("%[1]s daddr %[2]s %[3]s dport 80 dnat %[1]s to %[4]s\n%[1]s daddr %[5]s %[3]s dport 8100 dnat %[1]s to %[4]s\n",
				ip, service, protocol, to, n.Addresses()[i])
		}
	}
	return "table inet services {\nchain prerouting {\ntype nat hook prerouting priority dstnat;\n" + rules + "}\n}\n"
}

// A pod opens flows from one source port to another pod, in every order: directly, through a Service, and through
// a host port of the other node. Every answer has the address to which the pod sent.
func TestForwardingBesideTranslation(t *testing.T) {
	c, pods := startCluster(t, fabricManifests, cluster.Config{Linux: 2, AgentFlags: []string{"--fabric=routes"}})
	client, server := pods["client"], pods["server"]
	whoami(t, server.NS, netip.IPv6Unspecified())
	for _, n := range c.Nodes {
		watch(t, n)
		inNode(t, n, func() error {
			nft := exec.Command("nft", "-f", "-")
			nft.Stdin = strings.NewReader(translations(server, n))
			if out, err := nft.CombinedOutput(); err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
			return nil
		})
	}
	port := 40000
	for i, v6 := range []bool{false, true} {
		awaitFastPath(t, c, client.NS, address(server, v6), true)
		service := netip.MustParseAddrPort("10.99.0.1:80")
		if v6 {
			service = netip.MustParseAddrPort("[fd99::1]:80")
		}
		ways := []netip.AddrPort{netip.AddrPortFrom(address(server, v6), 7100), service, netip.AddrPortFrom(c.Nodes[1].Addresses()[i], 8100)}
		for _, network := range []string{"tcp", "udp"} {
			for _, order := range [][]int{{0, 1, 0, 1}, {1, 0, 1, 0}, {0, 2, 0, 2}, {2, 0, 2, 0}, {0, 1, 2, 0}} {
				port++
				for step, which := range order {
					err := client.NS.Do(func() error {
						return askFrom(network, netip.AddrPortFrom(address(client, v6), uint16(port)), ways[which])
					})
					if err != nil {
						t.Errorf("%s, order %v, step %d, to %s: %v", network, order, step, ways[which], err)
					}
				}
			}
		}
	}
	for _, n := range c.Nodes {
		if invalid := forwarded(t, n, "invalid"); invalid != 0 {
			t.Errorf("the stack of %s found %d packets invalid", n.Name, invalid)
		}
	}
}

// askFrom sends a request to whoami from a given source port. The UDP answer must come from the destination of
// the request.
func askFrom(network string, from, to netip.AddrPort) error {
	reuse := func(_, _ string, raw syscall.RawConn) (err error) {
		raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
		return err
	}
	d := net.Dialer{Timeout: patience, Control: reuse, LocalAddr: net.TCPAddrFromAddrPort(from)}
	if network == "udp" {
		d.LocalAddr = net.UDPAddrFromAddrPort(from)
	}
	conn, err := d.Dial(network, to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	if network == "udp" {
		if _, err := conn.Write([]byte("who am I")); err != nil {
			return err
		}
	}
	answer := make([]byte, 100)
	n, err := conn.Read(answer)
	if err == nil && strings.TrimSpace(string(answer[:n])) != from.Addr().String() {
		err = fmt.Errorf("seen as %s", answer[:n])
	}
	if err == nil && network == "tcp" {
		// The client reuses the port immediately, so it must not be the end that closes first.
		_, err = io.Copy(io.Discard, conn)
	}
	return err
}
