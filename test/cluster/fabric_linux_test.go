// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// fabricManifests are three pods, one per node; the server accepts only the client and
// the node linux1.
const fabricManifests = `
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: test, labels: {app: client}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: test, labels: {app: server}}
spec: {containers: [{name: main, ports: [{name: echo, containerPort: 7000, protocol: UDP}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: third, namespace: test, labels: {app: third}}
spec: {containers: [{name: main}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: test}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}, {ipBlock: {cidr: 172.30.0.11/32}}, {ipBlock: {cidr: "fd30::b/128"}}]
`

// TestFabric checks that pods on three nodes, two of them on one segment, reach each other with their own
// addresses, through routes and tunnels of the agents only.
func TestFabric(t *testing.T) {
	c, pods := startCluster(t, fabricManifests, cluster.Config{Linux: 3, Segments: 2, HostPorts: map[string][]cluster.HostPort{
		"third":  {{HostPort: 8100, ContainerPort: 7100, Protocol: "tcp"}, {HostPort: 8100, ContainerPort: 7100, Protocol: "udp"}},
		"server": {{HostPort: 8100, ContainerPort: 7100, Protocol: "TCP"}},
	}})
	for _, p := range pods {
		whoami(t, p.NS, netip.IPv6Unspecified())
	}
	for _, n := range c.Nodes {
		whoami(t, n.NS, netip.IPv6Unspecified())
	}
	outside, world := c.Outside()
	for _, a := range world { // the outside has several addresses, and answers from the requested one
		whoami(t, outside, a)
	}

	f := &fabricLab{c: c, pods: pods, nodes: make(map[string]*cluster.Node), outside: outside, world: world}
	for _, n := range c.Nodes {
		f.nodes[n.Name] = n
	}
	t.Run("pods", f.podsAndPods)
	t.Run("nodes", f.nodesAndPods)
	t.Run("masquerade", f.masquerade)
	t.Run("host ports", f.hostPorts)
	t.Run("size", f.size)
	t.Run("drift", f.drift)
	t.Run("foreign", f.foreignRoutes)
	t.Run("restart", f.restart)
	t.Run("leave and join", f.leaveAndJoin)
	t.Run("readdress", f.readdress)
	t.Run("uninstall", f.uninstall)
}

// fabricLab is a cluster with a fabric, and a host outside of it.
type fabricLab struct {
	c       *cluster.Cluster
	pods    map[string]*cluster.Pod
	nodes   map[string]*cluster.Node
	outside *netns.NS
	world   []netip.Addr // the addresses of outside
}

func (f *fabricLab) podsAndPods(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, from := range f.pods {
			for _, to := range f.pods {
				denied := to.Name == "server" && from.Name == "third"
				sees(t, from.NS, address(to, v6), address(from, v6), denied)
			}
		}
	}
}

func (f *fabricLab) nodesAndPods(t *testing.T) {
	for i, v6 := range []bool{false, true} {
		// The server's policy names the address of linux1, not that of linux3.
		sees(t, f.nodes["linux1"].NS, address(f.pods["server"], v6), f.nodes["linux1"].Addresses()[i], false)
		sees(t, f.nodes["linux3"].NS, address(f.pods["server"], v6), f.nodes["linux3"].Addresses()[i], true)
		for _, p := range f.pods {
			for _, n := range f.c.Nodes {
				sees(t, p.NS, n.Addresses()[i], address(p, v6), false)
				if p.Name != "server" {
					sees(t, n.NS, address(p, v6), n.Addresses()[i], false)
				}
			}
		}
	}
}

func (f *fabricLab) masquerade(t *testing.T) {
	for i := range f.world {
		sees(t, f.pods["client"].NS, f.world[i], f.nodes["linux1"].Addresses()[i], false)
		sees(t, f.pods["server"].NS, f.world[i], f.nodes["linux2"].Addresses()[i], false)
	}
}

func (f *fabricLab) hostPorts(t *testing.T) {
	check := func(from *netns.NS, protocol model.Protocol, to, want netip.Addr) {
		t.Helper()
		if got, err := askAt(from, protocol, netip.AddrPortFrom(to, 8100), patience); err != nil || got != want {
			t.Errorf("%s from %s to host port of %s: seen as %s, %v", protocol, want, to, got, err)
		}
	}
	judge := func() {
		t.Helper()
		for i, v6 := range []bool{false, true} {
			at := f.nodes["linux3"].Addresses()[i]
			for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
				check(f.outside, protocol, at, f.world[i])
				check(f.pods["client"].NS, protocol, at, address(f.pods["client"], v6))
				check(f.nodes["linux1"].NS, protocol, at, f.nodes["linux1"].Addresses()[i])
				check(f.nodes["linux3"].NS, protocol, at, at)
			}
			check(f.pods["third"].NS, model.TCP, at, at)
			// The policy of the server applies to the original source.
			at = f.nodes["linux2"].Addresses()[i]
			check(f.pods["client"].NS, model.TCP, at, address(f.pods["client"], v6))
			if got, err := askAt(f.outside, model.TCP, netip.AddrPortFrom(at, 8100), impatience); err == nil {
				t.Errorf("a host port gets around policy, seen as %s", got)
			}
		}
		check(f.nodes["linux3"].NS, model.TCP, netip.MustParseAddr("127.0.0.1"), f.nodes["linux3"].Addresses()[0])
	}
	judge()
	inNode(t, f.nodes["linux3"], func() error { return run("nft", "flush", "ruleset") })
	eventually(t, func() error {
		_, err := askAt(f.outside, model.TCP, netip.AddrPortFrom(f.nodes["linux3"].Addresses()[0], 8100), impatience)
		return err
	})
	if err := f.nodes["linux3"].Kill(); err != nil {
		t.Fatal(err)
	}
	check(f.outside, model.TCP, f.nodes["linux3"].Addresses()[0], f.world[0])
	if err := f.nodes["linux3"].Start(); err != nil {
		t.Fatal(err)
	}
	judge()
}

func (f *fabricLab) size(t *testing.T) {
	// 1450 bytes pass the tunnel without fragmentation; the interfaces of pods have this MTU.
	for _, v6 := range []bool{false, true} {
		headers := 28
		if v6 {
			headers = 48
		}
		fits(t, f.pods["client"].NS, address(f.pods["server"], v6), 1450-headers, nil)
		fits(t, f.pods["client"].NS, address(f.pods["server"], v6), 1451-headers, syscall.EMSGSIZE)
	}
}

func (f *fabricLab) drift(t *testing.T) {
	was := repairs(t, f.nodes["linux1"])
	inNode(t, f.nodes["linux1"], func() error {
		return errors.Join(ip("route", "del", "10.244.2.0/24"), ip("-6", "route", "del", "fd44:0:0:3::/64"),
			ip("neigh", "flush", "dev", "isthmus-vxlan", "nud", "permanent"), ip("rule", "del", "priority", "7300"),
			ip("addr", "flush", "dev", "isthmus-vxlan"), run("nft", "delete", "table", "inet", "isthmus"))
	})
	eventually(t, func() error {
		for _, v6 := range []bool{false, true} {
			if _, err := ask(f.pods["client"].NS, model.TCP, address(f.pods["server"], v6)); err != nil {
				return err
			}
		}
		if got, err := ask(f.pods["client"].NS, model.TCP, f.world[0]); err != nil || got != f.nodes["linux1"].Addresses()[0] {
			return fmt.Errorf("the world sees %s: %v", got, err)
		}
		return nil
	})
	eventually(t, func() error { // the agent pauses after a slow read of its counters
		if now := repairs(t, f.nodes["linux1"]); now < was+6 {
			return fmt.Errorf("%d repairs were counted, want at least 6", now-was)
		}
		return nil
	})
}

func (f *fabricLab) foreignRoutes(t *testing.T) {
	n := f.nodes["linux1"]
	inNode(t, n, func() error { return ip("route", "replace", "192.0.2.0/24", "via", "172.30.0.1", "proto", "static") })
	inNode(t, n, func() error {
		return errors.Join(ip("route", "del", "10.244.3.0/24"), ip("route", "add", "10.244.3.0/24", "via", "172.30.0.1", "proto", "static"))
	})
	eventually(t, func() error { return saying(n, "route to 10.244.3.0/24") })
	inNode(t, n, func() error {
		have, err := link.Whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) })
		for _, r := range have {
			if r.Dst != nil && r.Dst.String() == "10.244.3.0/24" && r.Protocol != unix.RTPROT_STATIC {
				err = errors.Join(err, fmt.Errorf("a foreign route was replaced by %s", r))
			}
		}
		return errors.Join(err, ip("route", "del", "10.244.3.0/24"))
	})
	eventually(t, func() error {
		_, err := ask(f.pods["client"].NS, model.TCP, address(f.pods["third"], false))
		return err
	})
	inNode(t, n, func() error { return ip("route", "get", "192.0.2.1") })
}

func (f *fabricLab) restart(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		s := newStream(t, f.pods["client"].NS, address(f.pods["client"], v6), netip.AddrPortFrom(address(f.pods["server"], v6), 7000))
		for _, n := range f.c.Nodes {
			if err := n.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.c.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		sent, lost := s.finish()
		t.Logf("IPv6=%t sent=%d lost=%d over restarts of all agents", v6, sent, len(lost))
		if sent < 100 || len(lost) != 0 {
			t.Errorf("IPv6=%t: of %d packets %d were lost", v6, sent, len(lost))
		}
	}
}

func (f *fabricLab) leaveAndJoin(t *testing.T) {
	if err := f.c.Manifests.WriteNodes(f.c.Nodes[:2]); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		return f.nodes["linux2"].NS.Do(func() error {
			if out, _ := exec.Command("ip", "route", "show", "10.244.3.0/24").Output(); len(out) > 0 {
				return fmt.Errorf("route to a node that left: %s", out)
			}
			if out, _ := exec.Command("bridge", "fdb", "show", "dev", "isthmus-vxlan").Output(); strings.Contains(string(out), "172.30.0.13") {
				return fmt.Errorf("entry of a node that left: %s", out)
			}
			return nil
		})
	})
	if err := f.c.Manifests.WriteNodes(f.c.Nodes); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		_, err := ask(f.pods["server"].NS, model.TCP, address(f.pods["third"], true))
		return err
	})
}

func (f *fabricLab) readdress(t *testing.T) {
	if err := f.nodes["linux2"].Readdress(99); err != nil {
		t.Fatal(err)
	}
	if err := f.c.Manifests.WriteNodes(f.c.Nodes); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		for i, v6 := range []bool{false, true} {
			if _, err := ask(f.pods["client"].NS, model.TCP, address(f.pods["server"], v6)); err != nil {
				return err
			}
			if got, err := ask(f.nodes["linux2"].NS, model.TCP, address(f.pods["client"], v6)); err != nil || got != f.nodes["linux2"].Addresses()[i] {
				return fmt.Errorf("linux2 is seen as %s: %v", got, err)
			}
		}
		return nil
	})
}

func (f *fabricLab) uninstall(t *testing.T) {
	n := f.nodes["linux3"]
	if err := f.c.DetachAll(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if out, err := n.Uninstall(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := n.Uninstall(); err != nil {
		t.Fatalf("again: %v: %s", err, out)
	}
	inNode(t, n, func() error {
		for _, command := range [][]string{{"ip", "link"}, {"ip", "route"}, {"ip", "-6", "route"}, {"ip", "rule"}, {"nft", "list", "tables"}} {
			out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
			if err != nil {
				return err
			}
			for _, trace := range []string{"isthmus", "10.244.", "fd44:", "7300", "ist"} {
				if strings.Contains(string(out), trace) {
					return fmt.Errorf("%v shows %q after it:\n%s", command, trace, out)
				}
			}
		}
		return nil
	})
}

// whoami serves TCP and UDP 7100 in a namespace: the answer is the source address of the request.
func whoami(t *testing.T, ns *netns.NS, at netip.Addr) {
	t.Helper()
	if err := traffic.ServersFor(t).Greet(ns, netip.AddrPortFrom(at, 7100), traffic.WhoAmI); err != nil {
		t.Fatal(err)
	}
}

// ask connects and returns the address that the server sees, for callers that retry.
func ask(from *netns.NS, p model.Protocol, to netip.Addr) (seen netip.Addr, err error) {
	return askAt(from, p, netip.AddrPortFrom(to, 7100), time.Second)
}

// patience is the timeout for an answer that should arrive, also on a busy machine. impatience is the timeout for
// one that should not.
const (
	patience   = 15 * time.Second
	impatience = 250 * time.Millisecond
)

func askAt(from *netns.NS, p model.Protocol, to netip.AddrPort, wait time.Duration) (seen netip.Addr, err error) {
	return traffic.Flow{NS: from, To: to, Protocol: p}.Seen(wait)
}

func sees(t *testing.T, from *netns.NS, to, want netip.Addr, denied bool) {
	t.Helper()
	wait := patience
	if denied {
		wait = impatience
	}
	for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
		got, err := askAt(from, protocol, netip.AddrPortFrom(to, 7100), wait)
		switch {
		case denied && err == nil:
			t.Errorf("%s from %s to %s gets through, seen as %s", protocol, want, to, got)
		case denied && !traffic.Silent(err):
			t.Errorf("%s from %s to %s: %v, want silence", protocol, want, to, err)
		case !denied && err != nil:
			t.Errorf("%s from %s to %s: %v", protocol, want, to, err)
		case !denied && got != want:
			t.Errorf("%s from %s to %s is seen as %s", protocol, want, to, got)
		}
	}
}

// fits sends a datagram that must not be fragmented and waits for its echo.
func fits(t *testing.T, from *netns.NS, to netip.Addr, size int, want error) {
	t.Helper()
	err := from.Do(func() error {
		conn, err := net.Dial("udp", netip.AddrPortFrom(to, 7000).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		raw, err := conn.(*net.UDPConn).SyscallConn()
		if err != nil {
			return err
		}
		raw.Control(func(fd uintptr) {
			if to.Is6() {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
			} else {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
			}
		})
		if err != nil {
			return err
		}
		conn.SetDeadline(time.Now().Add(patience))
		if _, err := conn.Write(make([]byte, size)); err != nil {
			return err
		}
		n, err := conn.Read(make([]byte, 2048))
		if err == nil && n != size {
			err = fmt.Errorf("%d bytes came back", n)
		}
		return err
	})
	if !errors.Is(err, want) {
		t.Errorf("%d bytes to %s: %v, want %v", size, to, err, want)
	}
}

func inNode(t *testing.T, n *cluster.Node, f func() error) {
	t.Helper()
	if err := n.NS.Do(f); err != nil {
		t.Error(err)
	}
}

func ip(args ...string) error { return run("ip", args...) }

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

func eventually(t *testing.T, check func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Error(err)
}

// repairs reads the number of repairs of an agent.
func repairs(t *testing.T, n *cluster.Node) int {
	t.Helper()
	text, _, err := n.Get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if after, ok := strings.CutPrefix(line, "isthmus_repairs_total "); ok {
			count := 0
			fmt.Sscan(after, &count)
			return count
		}
	}
	t.Error("no metric isthmus_repairs_total")
	return 0
}

// saying fails unless the log of the agent has a problem with the given text.
func saying(n *cluster.Node, words string) error {
	text, err := os.ReadFile(filepath.Join(n.Dir, "agent.log"))
	if err == nil && !strings.Contains(string(text), words) {
		err = fmt.Errorf("the log of %s does not say %q", n.Name, words)
	}
	return err
}
