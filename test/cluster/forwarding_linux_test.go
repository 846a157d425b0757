// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// watched has a node count what its stack forwards of pods, and drop there what
// connection tracking finds invalid, as kube-proxy does in iptables mode.
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

// past runs f and makes sure that no node's stack forwards a packet between pods.
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

// awaitWays waits until a new flow between two pods passes the stack by.
func awaitWays(t *testing.T, c *cluster.Cluster, from *netns.NS, to netip.Addr, want bool) {
	t.Helper()
	eventually(t, func() error {
		before := forwarded(t, c.Nodes[0], "pods") + forwarded(t, c.Nodes[1], "pods")
		if _, err := ask(from, "tcp", to); err != nil {
			return err
		}
		if now := forwarded(t, c.Nodes[0], "pods") + forwarded(t, c.Nodes[1], "pods"); (now == before) != want {
			return fmt.Errorf("the stacks forwarded %d packets of a new flow", now-before)
		}
		return nil
	})
}

// In both modes packets between pods of two nodes pass the stacks by, and it
// makes no difference that anybody could see: hops, errors, sizes and policy are
// as through the stack.
func TestForwardingPassesTheStackBy(t *testing.T) {
	for _, mode := range []string{"routes", "vxlan"} {
		t.Run(mode, func(t *testing.T) {
			c, pods := startCluster(t, fabricManifests, cluster.Config{Linux: 2, AgentFlags: []string{"--fabric=" + mode}})
			client, server := pods["client"], pods["server"] // on linux1, linux2
			for _, p := range pods {
				whoami(t, p.NS, "::")
			}
			for _, n := range c.Nodes {
				watch(t, n)
			}
			for _, v6 := range []bool{false, true} {
				from, to := address(client, v6), address(server, v6)
				awaitWays(t, c, client.NS, to, true)
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

// noClient takes the client from who may reach the server.
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

// Policy that changes, a smaller MTU, agents that end, that start with the stack
// as way and with another fabric: flows that are open meet each of them, and lose
// nothing else.
func TestForwardingChanges(t *testing.T) {
	c, pods := startCluster(t, fabricManifests, cluster.Config{Linux: 2, AgentFlags: []string{"--fabric=routes"}})
	client, server := pods["client"], pods["server"]
	for _, p := range pods {
		whoami(t, p.NS, "::")
	}
	for _, n := range c.Nodes {
		watch(t, n)
	}
	for _, v6 := range []bool{false, true} {
		awaitWays(t, c, client.NS, address(server, v6), true)
	}

	t.Run("policy", func(t *testing.T) {
		for _, v6 := range []bool{false, true} {
			past(t, c, "a policy that changes", func() { underPolicy(t, c, client.NS, netip.AddrPortFrom(address(server, v6), 7000)) })
		}
	})
	restart := func(flags ...string) func() {
		return func() {
			c.SetAgentFlags(flags...)
			for _, n := range c.Nodes {
				if err := n.Restart(t.Context(), syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(2 * time.Second) // in which all of them look after their devices
		}
	}
	for _, step := range []struct {
		name   string
		change func()
		direct bool
	}{
		{"the same", restart("--fabric=routes"), true},
		{"stack", restart("--fabric=routes", "--forwarding=stack"), false},
		{"direct again", restart("--fabric=routes"), true},
		{"vxlan", restart("--fabric=vxlan"), true},
		{"routes again", restart("--fabric=routes"), true},
	} {
		t.Run(step.name, func(t *testing.T) {
			keepsAll(t, client, server, step.change, step.name == "vxlan" || step.name == "routes again")
			for _, v6 := range []bool{false, true} {
				awaitWays(t, c, client.NS, address(server, v6), step.direct)
				sees(t, client.NS, address(server, v6), address(client, v6), false)
				sees(t, server.NS, address(client, v6), address(server, v6), false)
			}
		})
	}
	t.Run("IPsec", func(t *testing.T) {
		n := c.Nodes[0]
		inNode(t, n, func() error {
			return ip("xfrm", "policy", "add", "src", "198.51.100.0/24", "dst", "203.0.113.0/24", "dir", "out",
				"tmpl", "src", "192.0.2.1", "dst", "192.0.2.2", "proto", "esp", "mode", "tunnel")
		})
		awaitWays(t, c, client.NS, address(server, false), false)
		inNode(t, n, func() error { return ip("xfrm", "policy", "flush") })
		awaitWays(t, c, client.NS, address(server, false), true)
	})
	t.Run("smaller MTU", func(t *testing.T) {
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
	})
	t.Run("devices", func(t *testing.T) {
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
	})
}

// translations lead 10.99.0.1 and fd99::1, and port 8100 of the node, to port 7100
// of a pod, as kube-proxy does for Services.
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

// From one and the same port a pod speaks to another directly, by a Service that
// its node translates, and by a port that the other's node translates, in every
// order, each time anew: every answer has the address that was asked.
func TestForwardingBesideTranslation(t *testing.T) {
	c, pods := startCluster(t, fabricManifests, cluster.Config{Linux: 2, AgentFlags: []string{"--fabric=routes"}})
	client, server := pods["client"], pods["server"]
	whoami(t, server.NS, "::")
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
		awaitWays(t, c, client.NS, address(server, v6), true)
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

// askFrom asks whoami from a given port. The answer over UDP must come from where
// the question went.
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
	return err
}

// underPolicy denies an open connection for a while.
func underPolicy(t *testing.T, c *cluster.Cluster, from *netns.NS, to netip.AddrPort) {
	t.Helper()
	err := from.Do(func() error {
		conn, err := net.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		echo := func() error {
			conn.SetDeadline(time.Now().Add(200 * time.Millisecond))
			if _, err := conn.Write([]byte("still there?")); err != nil {
				return err
			}
			_, err := conn.Read(make([]byte, 100))
			return err
		}
		if err := echo(); err != nil {
			return err
		}
		if err := c.Manifests.Put("no-client", noClient); err != nil {
			return err
		}
		eventually(t, func() error {
			if echo() == nil {
				return errors.New("an open flow gets around a new policy")
			}
			return nil
		})
		if err := c.Manifests.Drop("no-client"); err != nil {
			return err
		}
		eventually(t, echo)
		return nil
	})
	if err != nil {
		t.Errorf("to %s: %v", to, err)
	}
}

// keepsAll sends packets and has connections open while something changes. Over
// a change of the fabric the device that packets are in may go with them.
func keepsAll(t *testing.T, client, server *cluster.Pod, change func(), mayLose bool) {
	t.Helper()
	var to []traffic.Target
	for _, v6 := range []bool{false, true} {
		to = append(to, traffic.Target{NS: server.NS, From: address(client, v6), To: netip.AddrPortFrom(address(server, v6), 7300)})
	}
	open, err := traffic.Connect(client.NS, to, 20)
	if err != nil {
		t.Fatal(err)
	}
	s, err := traffic.NewStream(client.NS, to, 2000)
	if err != nil {
		t.Fatal(err)
	}
	change()
	got, err := s.Finish()
	if err != nil {
		t.Fatal(err)
	}
	broken, exchanges, retransmits := open.Finish()
	t.Logf("sent=%d lost=%d twice=%d connections broken=%d exchanges=%d retransmits=%d", got.Sent, got.Lost(), got.Twice, len(broken), exchanges, retransmits)
	if got.Sent < 100 || got.Twice > 0 || got.Lost() > 0 && !mayLose {
		t.Errorf("of %d packets %d were lost, and %d came twice", got.Sent, got.Lost(), got.Twice)
	}
	if len(broken) > 0 || exchanges < 100 {
		t.Errorf("%d connections broke, after %d exchanges: %v", len(broken), exchanges, errors.Join(broken...))
	}
}

// bulk sends some megabytes, in segments of many packets.
func bulk(t *testing.T, from, to *netns.NS, addr netip.Addr) {
	t.Helper()
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	var ln net.Listener
	err := to.Do(func() (err error) { ln, err = net.Listen("tcp", netip.AddrPortFrom(addr, 7200).String()); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		io.Copy(conn, conn)
	}()
	err = from.Do(func() error {
		conn, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		go conn.Write(data)
		got := make([]byte, len(data))
		if _, err := io.ReadFull(conn, got); err != nil {
			return err
		}
		if !bytes.Equal(got, data) {
			return errors.New("data came back changed")
		}
		return nil
	})
	if err != nil {
		t.Errorf("bulk to %s: %v", addr, err)
	}
}

// refused sends a datagram and waits for what comes back.
func refused(to netip.AddrPort) error {
	conn, err := net.Dial("udp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write([]byte("anybody?")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 100))
	return err
}

// hops sends a datagram with 64 hops and looks how many are left of them.
func hops(t *testing.T, from, to *netns.NS, addr netip.Addr, want int) {
	t.Helper()
	level, receive, send, kind := unix.IPPROTO_IP, unix.IP_RECVTTL, unix.IP_TTL, unix.IP_TTL
	domain := unix.AF_INET
	if addr.Is6() {
		level, receive, send, kind = unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, unix.IPV6_UNICAST_HOPS, unix.IPV6_HOPLIMIT
		domain = unix.AF_INET6
	}
	var fd int
	err := to.Do(func() (err error) {
		if fd, err = unix.Socket(domain, unix.SOCK_DGRAM, 0); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(fd, level, receive, 1), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}),
			unix.Bind(fd, socketAddress(addr, 7201)))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	err = from.Do(func() error {
		out, err := unix.Socket(domain, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(out)
		return errors.Join(unix.SetsockoptInt(out, level, send, 64), unix.Sendto(out, []byte("hop"), 0, socketAddress(addr, 7201)))
	})
	if err != nil {
		t.Fatal(err)
	}
	oob := make([]byte, 100)
	_, n, _, _, err := unix.Recvmsg(fd, make([]byte, 100), oob, 0)
	if err != nil {
		t.Errorf("a datagram to %s: %v", addr, err)
		return
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 || int(messages[0].Header.Type) != kind || int(messages[0].Data[0]) != want {
		t.Errorf("to %s: want %d hops left, got %v, %v", addr, want, messages, err)
	}
}

func socketAddress(a netip.Addr, port int) unix.Sockaddr {
	if a.Is6() {
		return &unix.SockaddrInet6{Port: port, Addr: a.As16()}
	}
	return &unix.SockaddrInet4{Port: port, Addr: a.As4()}
}

// expires sends a datagram of a known flow, whose hops end on the way, and wants
// to be told by the node where they do.
func expires(t *testing.T, from *netns.NS, to netip.Addr, ttl int, node []netip.Addr) {
	t.Helper()
	err := from.Do(func() error {
		level, send, receive, domain := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_RECVERR, unix.AF_INET
		if to.Is6() {
			level, send, receive, domain = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_RECVERR, unix.AF_INET6
		}
		fd, err := unix.Socket(domain, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		err = errors.Join(unix.SetsockoptInt(fd, level, receive, 1), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}),
			unix.Connect(fd, socketAddress(to, 7100)))
		if err != nil {
			return err
		}
		buffer := make([]byte, 200)
		if _, err := unix.Write(fd, []byte("who am I")); err != nil {
			return err
		}
		if _, err := unix.Read(fd, buffer); err != nil {
			return fmt.Errorf("wait for an answer: %w", err)
		}
		if err := unix.SetsockoptInt(fd, level, send, ttl); err != nil {
			return err
		}
		if _, err := unix.Write(fd, []byte("who am I")); err != nil {
			return err
		}
		if n, err := unix.Read(fd, buffer); !errors.Is(err, unix.EHOSTUNREACH) {
			return fmt.Errorf("read %q, %v, want that the host cannot be reached", buffer[:max(n, 0)], err)
		}
		oob := make([]byte, 300)
		_, n, _, _, err := unix.Recvmsg(fd, buffer, oob, unix.MSG_ERRQUEUE)
		if err != nil {
			return fmt.Errorf("read the error: %w", err)
		}
		for _, a := range node {
			if a.Is6() == to.Is6() && bytes.Contains(oob[:n], a.AsSlice()) {
				return nil
			}
		}
		return fmt.Errorf("none of %v is in the error % x", node, oob[:n])
	})
	if err != nil {
		t.Errorf("a datagram to %s with %d hops: %v", to, ttl, err)
	}
}
