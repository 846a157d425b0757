// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// onForeign runs a test once for each plugin that makes the interfaces of pods.
func onForeign(t *testing.T, test func(*testing.T, *lab)) {
	t.Helper()
	onForeignHooks(t, false, test)
}

// onForeignHooks runs a test for each plugin; byClassifiers with programs on clsact hooks, as before Linux 6.6.
func onForeignHooks(t *testing.T, byClassifiers bool, test func(*testing.T, *lab)) {
	t.Helper()
	for name := range plugins {
		t.Run(name, func(t *testing.T) {
			test(t, newLabWith(t, func(c *linux.Config) { c.PolicyOnly, c.StateDir, c.ByClassifiers = true, name, byClassifiers }))
		})
	}
}

// Policy decides between pods of one node, from outside, and to outside, on interfaces that
// another CNI plugin made, in both IP versions.
func TestForeignInterfaces(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		a, b := l.pod("a", 11), l.pod("b", 12)
		l.echo(b, 90)
		l.echo(l.outside, 90)
		both := []string{"10.1.0.12", "fd01::c"}
		out := []string{outsideAddr4, outsideAddr6}
		for _, to := range append(both, out...) {
			l.denied(a, "tcp", to, 90) // no State names the pods
		}
		l.apply()
		for _, to := range append(both, out...) {
			l.allowed(a, "tcp", to, 90)
			l.allowed(a, "udp", to, 90)
		}
		l.apply(isolate("b", model.Ingress, accept(block(outsideAddr4+"/32"), tcp(90)), accept(block(outsideAddr6+"/128"), tcp(90))))
		for _, to := range both {
			l.denied(a, "tcp", to, 90)
			l.allowed(l.outside, "tcp", to, 90)
			l.denied(l.outside, "udp", to, 90)
			l.allowed(l.node, "tcp", to, 90) // the pod's own node
		}
		l.apply(isolate("b", model.Ingress, accept(pods("a"))), isolate("a", model.Egress, accept(pods("b"))))
		for i := range both {
			l.allowed(a, "tcp", both[i], 90)
			l.denied(a, "tcp", out[i], 90)
			l.denied(l.outside, "tcp", both[i], 90)
		}
	})
}

// Egress to Services is decided on the backend, also where the host receives the packets by a
// bridge.
func TestForeignServices(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) { egressToServices(serviceLab(t, l)) })
}

// portmap are rules as the plugin portmap makes them: packets with bit 13 of the mark are masqueraded. It sets the bit for
// host ports.
const portmap = `
table %[1]s portmap-test {
	chain pre { type nat hook prerouting priority -100; %[1]s daddr %[2]s tcp dport 18080 jump hostport; }
	chain hostport { meta mark set meta mark or 0x2000; tcp dport 18080 dnat to %[3]s; }
	chain post { type nat hook postrouting priority 99; meta mark and 0x2000 != 0 masquerade; }
}`

// Marks of packets are no marks of the plugin portmap, which would masquerade the packets. Its own mark does not drop packets.
func TestForeignMarksOfPortmap(t *testing.T) {
	onForeign(t, func(t *testing.T, l *lab) {
		a, b := l.pod("a", 11), l.pod("b", 12)
		l.load(fmt.Sprintf(portmap, "ip", nodeAddr4, "10.1.0.12:8080"))
		l.load(fmt.Sprintf(portmap, "ip6", nodeAddr6, "[fd01::c]:8080"))
		servers := traffic.ServersFor(t)
		for i, out := range []string{outsideAddr4, outsideAddr6} {
			l.must(servers.Greet(l.outside, netip.AddrPortFrom(netip.MustParseAddr(out), 8080), traffic.WhoAmI))
			l.must(servers.Greet(b, netip.AddrPortFrom(podIPs(12)[i], 8080), traffic.WhoAmI))
		}
		l.apply(isolate("a", model.Egress, accept(pods("b")), accept(block(outsideAddr4+"/32")), accept(block(outsideAddr6+"/128"))))
		l.echo(l.outside, 90)
		for _, out := range []string{outsideAddr4, outsideAddr6} {
			l.allowed(a, "tcp", out, 90) // the kernel needs time until a new IPv6 address is usable
		}
		for i, f := range families {
			own, out := podIPs(11)[i].String(), []string{outsideAddr4, outsideAddr6}[i]
			l.answers(a, map[string]string{net.JoinHostPort(out, "8080"): own, net.JoinHostPort(podIPs(12)[i].String(), "8080"): own})
			seen := l.answer(a, net.JoinHostPort(f.node, "18080"))
			if _, err := netip.ParseAddr(seen); err != nil || seen == own {
				t.Errorf("by a host port of %s, the client of pod b is %q, want an address of the node", f.node, seen)
			}
		}
	})
}

// Policy stays in force while the agent is away, and a new agent continues it. Known connections
// survive. The other plugin may then delete and create interfaces.
func TestForeignRestart(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		a, b := l.pod("a", 11), l.pod("b", 12)
		l.echo(b, 90)
		l.echo(b, 91)
		only90 := isolate("b", model.Ingress, accept(pods("a"), tcp(90)))
		l.apply(only90)
		conn := l.dial("a", "10.1.0.12", 90)
		defer conn.Close()
		l.denied(a, "tcp", "fd01::c", 91)
		l.must(l.backend.Close())
		l.denied(a, "tcp", "10.1.0.12", 91)
		l.allowed(a, "tcp", "fd01::c", 90)
		l.start()
		l.must(traffic.Exchange(conn, patience)) // before the agent knows the pods again
		l.denied(a, "tcp", "10.1.0.12", 91)
		l.must(l.add("a", 11))
		l.must(l.add("b", 12))
		l.apply(only90)
		l.must(traffic.Exchange(conn, patience))
		l.sound()
		// The other plugin creates the interface again, with another index.
		l.must(l.node.Do(func() error { return netns.Remove("veth-b") }))
		l.must(l.node.Do(func() error { return l.plugin(l, "b", 12) }))
		for began := time.Now(); l.follows("b") != nil; l.idle() {
			if time.Since(began) > 5*time.Second {
				t.Fatal("policy does not follow the interface")
			}
		}
		l.must(a.Do(forgetNeighbours)) // plugins announce new addresses
		l.denied(a, "tcp", "10.1.0.12", 91)
		l.allowed(a, "tcp", "10.1.0.12", 90)
	})
}

// follows reports whether policy is on the current interface of a pod.
func (l *lab) follows(pod string) error {
	for _, p := range l.problems() {
		if strings.Contains(p, "policy is on") || strings.Contains(p, "missing") {
			return errors.New(p)
		}
	}
	return nil
}

// A pod is gone once both its network namespace and its interface are. An agent that cannot see the path of the
// namespace must not take a running pod for one that is gone.
func TestForeignGone(t *testing.T) {
	onForeign(t, func(t *testing.T, l *lab) {
		a, b := l.pod("a", 11), l.pod("b", 12)
		l.echo(b, 90)
		l.apply()
		l.must(l.backend.Close())
		l.start()
		again := func() error {
			return l.node.Do(func() error {
				_, err := l.backend.AddEndpoint(context.Background(), dataplane.EndpointSpec{ID: model.MakeEndpointID("b", "eth0"), ContainerID: "b", IfName: "eth0",
					Pod: model.PodID{Namespace: "default", Name: "b"}, NetNS: filepath.Join(l.dir, "invisible"), IPs: podIPs(12)})
				return err
			})
		}
		if err := again(); !errors.Is(err, dataplane.ErrInterfaceKind) || errors.Is(err, dataplane.ErrNoNetNS) || !strings.Contains(err.Error(), "veth-b") {
			t.Errorf("an invisible namespace: %v", err)
		}
		l.allowed(a, "tcp", "10.1.0.12", 90)
		l.must(l.node.Do(func() error { return netns.Remove("veth-b") }))
		if err := again(); !errors.Is(err, dataplane.ErrNoNetNS) {
			t.Errorf("a pod that is gone: %v", err)
		}
	})
}

// DEL closes the interface until the other plugin removes it. A pod that then gets the address is
// another endpoint.
func TestForeignDelete(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		a, b := l.pod("a", 11), l.pod("b", 12)
		l.echo(b, 90)
		l.echo(a, 90)
		l.apply()
		l.allowed(a, "tcp", "10.1.0.12", 90)
		l.delete("b")
		l.delete("b")
		l.denied(a, "tcp", "10.1.0.12", 90)
		l.denied(b, "tcp", "fd01::b", 90)
		l.must(l.node.Do(func() error { return netns.Remove("veth-b") }))
		c := l.pod("c", 12) // the address of b
		l.echo(c, 90)
		l.denied(a, "tcp", "10.1.0.12", 90) // no State names it
		l.apply(isolate("c", model.Ingress), isolate("b", model.Ingress, accept(pods("a"))))
		l.denied(a, "tcp", "10.1.0.12", 90)
		l.denied(a, "tcp", "fd01::c", 90)
		l.apply()
		l.must(a.Do(forgetNeighbours)) // plugins announce new addresses
		l.allowed(a, "tcp", "10.1.0.12", 90)
		// The node is as before after removal, except for what the other plugin made.
		l.must(l.backend.Close())
		cfg := linux.Defaults()
		cfg.BPFFS, cfg.PolicyOnly, cfg.StateDir = l.bpffs, true, filepath.Join(l.dir, "state")
		l.must(l.node.Do(func() error { return linux.Remove(context.Background(), cfg) }))
		l.allowed(a, "tcp", "fd01::c", 90)
		l.must(l.node.Do(func() error {
			for _, name := range []string{"veth-a", "veth-c"} {
				veth, err := netlink.LinkByName(name)
				if err != nil {
					return err
				}
				qdiscs, err := link.Whole(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(veth) })
				if err != nil || slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "clsact" }) {
					return fmt.Errorf("qdiscs of %s: %v, %w", name, qdiscs, err)
				}
			}
			return nil
		}))
	})
}

// fillDisk makes writes of the registry fail for lack of space, until free is called.
func (l *lab) fillDisk() (free func()) {
	l.t.Helper()
	path := filepath.Join(l.dir, "state", "interfaces.json.new")
	l.must(os.Symlink("/dev/full", path))
	return func() {
		l.t.Helper()
		l.must(os.Remove(path))
	}
}

// An interface is closed for a claim although the claim cannot be stored. The claim is stored once there is space.
func TestCloseOnFullDisk(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		l.echo(l.running("c", 12), 90)
		l.allowed(l.outside, "tcp", "10.1.0.12", 90)
		handle := l.having(12)[0].Handle
		free := l.fillDisk()
		err := l.node.Do(func() error { return l.backend.CloseInterface(context.Background(), handle, "default/b/1") })
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("closing on a full disk: %v", err)
		}
		l.denied(l.outside, "tcp", "10.1.0.12", 90)
		l.denied(l.pods["c"], "tcp", outsideAddr4, 90)
		l.idleUntilQuiet()
		if found := l.having(12); len(found) != 1 || !found[0].Closed || found[0].ClosedFor != "default/b/1" {
			t.Errorf("the closed interface is %+v", found)
		}
		free()
		l.idleUntilQuiet()
		l.must(l.backend.Close())
		l.start()
		if found := l.having(12); len(found) != 1 || !found[0].Closed || found[0].ClosedFor != "default/b/1" {
			t.Errorf("after a restart the closed interface is %+v", found)
		}
		l.denied(l.outside, "tcp", "10.1.0.12", 90)
	})
}

// The other plugin creates an interface again while the registry cannot be written: the interface stays closed
// until there is space.
func TestFollowOnFullDisk(t *testing.T) {
	onForeign(t, func(t *testing.T, l *lab) {
		a, b := l.pod("a", 11), l.pod("b", 12)
		l.echo(b, 90)
		l.apply()
		l.allowed(a, "tcp", "10.1.0.12", 90)
		free := l.fillDisk()
		l.must(l.node.Do(func() error { return netns.Remove("veth-b") }))
		l.must(l.node.Do(func() error { return l.plugin(l, "b", 12) }))
		for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
			err := l.node.Do(func() error { return l.backend.Follow(context.Background()) })
			if errors.Is(err, unix.ENOSPC) && strings.Contains(err.Error(), "default/b") {
				break
			}
			if time.Since(began) > 5*time.Second {
				t.Fatalf("the backend does not report the interface: %v", err)
			}
		}
		l.must(errors.Join(a.Do(forgetNeighbours), l.node.Do(forgetNeighbours)))
		l.denied(a, "tcp", "10.1.0.12", 90)
		l.denied(b, "tcp", "10.1.0.11", 90)
		free()
		for began := time.Now(); l.follows("b") != nil; l.idle() {
			if time.Since(began) > 5*time.Second {
				t.Fatal("policy does not follow the interface")
			}
		}
		l.must(errors.Join(a.Do(forgetNeighbours), l.node.Do(forgetNeighbours)))
		l.allowed(a, "tcp", "10.1.0.12", 90)
	})
}

// DEL closes the interface on a full disk, too. A process that starts before there is space finds the interface
// closed, as one without a record, and removes it again.
func TestForeignDeleteOnFullDisk(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		l.echo(l.pod("b", 12), 90)
		l.apply()
		l.allowed(l.outside, "tcp", "10.1.0.12", 90)
		free := l.fillDisk()
		l.delete("b")
		l.denied(l.outside, "tcp", "10.1.0.12", 90)
		l.must(l.backend.Close())
		l.start()
		l.denied(l.outside, "tcp", "10.1.0.12", 90)
		installed := func() (ids []model.EndpointID) {
			t.Helper()
			l.must(l.node.Do(func() error {
				all, err := l.backend.Endpoints(context.Background())
				for _, i := range all {
					ids = append(ids, i.ID)
				}
				return err
			}))
			return ids
		}
		if got := installed(); len(got) != 1 || got[0] != model.MakeEndpointID("b", "eth0") {
			t.Fatalf("after a restart: endpoints %q", got)
		}
		l.delete("b")
		if got := installed(); len(got) != 0 {
			t.Errorf("after the second removal: endpoints %q", got)
		}
		l.denied(l.outside, "tcp", "10.1.0.12", 90)
		free()
		l.idleUntilQuiet()
		l.must(l.backend.Close())
		l.start()
		if got := installed(); len(got) != 0 {
			t.Errorf("after there was space: endpoints %q", got)
		}
		l.denied(l.outside, "tcp", "10.1.0.12", 90)
	})
}

// An interface that DEL closed stays closed when another process renames it.
func TestRenamedClosedInterface(t *testing.T) {
	t.Parallel()
	if !hasTCX(t) {
		t.Skip("clsact hooks stay on an interface without pins")
	}
	onForeign(t, func(t *testing.T, l *lab) {
		a, b := l.pod("a", 11), l.pod("b", 12)
		l.echo(b, 90)
		l.apply()
		l.allowed(a, "tcp", "10.1.0.12", 90)
		l.delete("b")
		l.denied(l.outside, "tcp", "10.1.0.12", 90)
		l.must(l.node.Do(func() error { return rename("veth-b", "veth-x") }))
		l.idleUntilQuiet()
		l.denied(l.outside, "tcp", "10.1.0.12", 90)
		l.denied(b, "tcp", outsideAddr4, 90)
		if pins, err := filepath.Glob(filepath.Join(l.bpffs, "*", "links", "veth-x-*")); err != nil || len(pins) != 2 {
			t.Errorf("pins of the closed interface: %q, %v", pins, err)
		}
		l.must(l.node.Do(func() error { return netns.Remove("veth-x") }))
		l.idleUntilQuiet()
		if pins, err := filepath.Glob(filepath.Join(l.bpffs, "*", "links", "veth-[bx]-*")); err != nil || len(pins) != 0 {
			t.Errorf("pins of an interface that is gone: %q, %v", pins, err)
		}
	})
}

// rename renames an interface. Before Linux 6.2 it must be down meanwhile, which takes its IPv6 addresses and routes: it gets them back.
func rename(from, to string) error {
	veth, err := netlink.LinkByName(from)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetName(veth, to); !errors.Is(err, unix.EBUSY) {
		return err
	}
	addresses, err := link.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(veth, netlink.FAMILY_V6) })
	if err != nil {
		return err
	}
	routes, err := link.Whole(func() ([]netlink.Route, error) { return netlink.RouteList(veth, netlink.FAMILY_ALL) })
	if err != nil {
		return err
	}
	err = errors.Join(netlink.LinkSetDown(veth), netlink.LinkSetName(veth, to), netlink.LinkSetUp(veth))
	for _, a := range addresses {
		a.Label = ""
		err = errors.Join(err, netlink.AddrReplace(veth, &a))
	}
	for _, r := range routes {
		if r.Protocol != unix.RTPROT_KERNEL {
			err = errors.Join(err, netlink.RouteReplace(&r))
		}
	}
	return err
}

// The decisions are read from the maps for every pod, and not for one whose interface is closed.
func TestForeignDecisions(t *testing.T) {
	onForeign(t, func(t *testing.T, l *lab) {
		l.pod("a", 11)
		l.pod("b", 12)
		l.apply(isolate("b", model.Ingress, accept(pods("a"), tcp(90))))
		read := func(want ...string) {
			t.Helper()
			var d dataplane.Decisions
			l.must(l.node.Do(func() (err error) { d, err = l.backend.ReadDecisions(context.Background()); return err }))
			if d.State == nil || len(d.Problems) > 0 {
				t.Fatalf("state %+v, problems %q", d.State, d.Problems)
			}
			for _, name := range want {
				id := model.MakeEndpointID(name, "eth0")
				e, ok := d.State.Policy.Endpoints[id]
				if !ok || d.State.Policy.Tables[e.Table] == nil || e.Table != l.state.Policy.Endpoints[id].Table {
					t.Errorf("decisions of pod %s are %+v of tables %v", name, e, d.State.Policy.Tables)
				}
			}
			if len(d.State.Policy.Endpoints) != len(want) {
				t.Errorf("endpoints %v, want %q", d.State.Policy.Endpoints, want)
			}
		}
		read("a", "b")
		l.delete("b")
		read("a")
	})
}

// A bridge changes its MAC: pods still reach what is not on their segment.
func TestForeignBridgeMAC(t *testing.T) {
	l := newLabWith(t, func(c *linux.Config) { c.PolicyOnly, c.StateDir = true, "bridged" })
	a := l.pod("a", 11)
	l.echo(l.outside, 90)
	l.apply()
	l.allowed(a, "tcp", outsideAddr4, 90)
	l.must(l.node.Do(func() error { return l.setBridgeMAC("02:00:00:00:c0:02") }))
	l.must(a.Do(forgetNeighbours))
	for began := time.Now(); reach(a, "tcp", outsideAddr4, 90, silence) != nil; l.idle() {
		if time.Since(began) > 5*time.Second {
			t.Fatal("the pod does not reach the outside after the bridge changed its MAC")
		}
	}
}

func forgetNeighbours() error {
	all, err := link.Whole(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, netlink.FAMILY_ALL) })
	for _, n := range all {
		err = errors.Join(err, netlink.NeighDel(&n))
	}
	return err
}
