// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

func TestPolicyBetweenPods(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := l.pod("a", 11), l.pod("b", 12)
	for _, ns := range l.pods {
		l.echo(ns, 80)
		l.echo(ns, 81)
	}
	// Default deny until the first State.
	l.denied(a, "tcp", "10.1.0.12", 80)
	l.denied(l.node, "tcp", "10.1.0.12", 80)

	l.apply()
	for _, network := range []string{"tcp", "udp"} {
		l.allowed(a, network, "10.1.0.12", 80)
		l.allowed(a, network, "fd01::c", 80)
		l.allowed(l.outside, network, "10.1.0.12", 80)
		l.allowed(l.outside, network, "fd01::c", 80)
	}

	l.apply(isolate("b", model.Ingress, accept(pods("a"), tcp(80))))
	for _, to := range []string{"10.1.0.12", "fd01::c"} {
		l.allowed(a, "tcp", to, 80)
		l.denied(a, "tcp", to, 81)
		l.denied(a, "udp", to, 80)
		l.denied(l.outside, "tcp", to, 80)
		l.allowed(l.node, "tcp", to, 81)
		l.allowed(b, "tcp", to, 81) // itself
	}
	l.allowed(b, "tcp", "10.1.0.11", 81)

	l.apply(isolate("a", model.Egress, accept(model.Peer{Kind: model.PeerBlock, Block: model.IPBlock{
		CIDR: netip.MustParsePrefix("192.168.9.0/24"), Except: []netip.Prefix{netip.MustParsePrefix("192.168.9.1/32")}}})))
	l.echo(l.outside, 80)
	l.echo(l.node, 80)
	l.allowed(a, "tcp", outsideAddr4, 80)
	l.denied(a, "tcp", outsideAddr6, 80)
	l.denied(a, "tcp", nodeAddr4, 80)
	l.denied(a, "tcp", "10.1.0.12", 80)
	l.allowed(b, "tcp", outsideAddr6, 80)
}

// A stricter policy applies to the next packet of an established connection. Replies of
// connections that stay allowed keep passing.
func TestPolicyReachesLiveConnections(t *testing.T) {
	l := newLab(t)
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.echo(b, 80)
	l.apply(isolate("b", model.Ingress, accept(pods("a"), tcp(80))))
	for _, to := range []string{"10.1.0.12:80", "[fd01::c]:80"} {
		var c net.Conn
		l.must(a.Do(func() (err error) { c, err = net.Dial("tcp", to); return err }))
		defer c.Close()
		l.must(traffic.Exchange(c, patience))
		l.apply(isolate("b", model.Ingress, accept(pods("a"), tcp(80), tcp(81))))
		l.must(traffic.Exchange(c, patience))
		l.apply(isolate("b", model.Ingress))
		if err := traffic.Exchange(c, silence); err == nil {
			t.Errorf("%s: the connection goes on under a policy that denies it", to)
		}
		l.apply(isolate("b", model.Ingress, accept(pods("a"), tcp(80))))
		if err := traffic.Exchange(c, patience); err != nil {
			t.Errorf("%s: after the policy was given back: %v", to, err)
		}
	}
}

// A new backend finds the objects of the old one and changes nothing.
func TestRestart(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.echo(b, 80)
	p := isolate("b", model.Ingress, accept(pods("a"), tcp(80)))
	l.apply(p)
	var c net.Conn
	l.must(a.Do(func() (err error) { c, err = net.Dial("tcp", "10.1.0.12:80"); return err }))
	defer c.Close()
	l.must(traffic.Exchange(c, patience))
	for range 3 {
		l.must(l.backend.Close())
		l.must(traffic.Exchange(c, patience))
		l.denied(l.outside, "tcp", "10.1.0.12", 80)
		l.start()
		l.state = nil
		l.must(traffic.Exchange(c, patience))
		l.must(l.add("a", 11))
		l.must(l.add("b", 12))
		l.must(traffic.Exchange(c, patience))
		l.apply(p)
		l.must(traffic.Exchange(c, patience))
		l.allowed(a, "tcp", "10.1.0.12", 80)
		l.denied(l.outside, "tcp", "10.1.0.12", 80)
	}
	l.delete("a")
	l.delete("b")
	l.delete("b")
}

// The agent does not add programs beside those of a newer layout; the error names the remedy. A
// directory without pins is no layout, and does not prevent a start.
func TestOtherLayoutIsRefused(t *testing.T) {
	l := newLab(t)
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.echo(b, 80)
	l.apply()
	for name, word := range map[string]string{"v1": "older", "v99": "newer"} {
		l.must(l.backend.Close())
		path := filepath.Join(l.bpffs, name)
		l.must(os.Mkdir(path, 0o700))
		l.must(replace(filepath.Join(path, "events"), ebpf.Hash, 4, 4))
		l.must(l.node.Do(func() error {
			cfg := linux.Defaults()
			cfg.BPFFS, cfg.Uplink = l.bpffs, "eth0"
			_, err := linux.New(context.Background(), cfg, slog.New(slog.NewTextHandler(io.Discard, nil)))
			if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), "drain") {
				t.Errorf("beside %s: %v", path, err)
			}
			return nil
		}))
		l.allowed(a, "tcp", "10.1.0.12", 80)
		l.must(os.Remove(filepath.Join(path, "events")))
		l.must(os.Mkdir(filepath.Join(path, "links"), 0o700))
		l.start()
		l.allowed(a, "tcp", "10.1.0.12", 80)
	}
}

// An ADD whose CNI_NETNS is the network namespace of the node changes nothing there.
func TestNamespaceOfTheNode(t *testing.T) {
	l := newLab(t)
	l.pods["a"] = l.node
	before := l.interfaces()
	if err := l.add("a", 11); !errors.Is(err, dataplane.ErrInterfaceKind) || !strings.Contains(err.Error(), "is that of the node") {
		t.Errorf("ADD: %v", err)
	}
	if after := l.interfaces(); !slices.Equal(before, after) {
		t.Errorf("the node has interfaces %q, before it had %q", after, before)
	}
}

// A path of a pod's network namespace may lead to another one later, as /proc/PID/ns/net does. That one does not become the pod.
func TestPathOfAnotherNamespace(t *testing.T) {
	l := newLab(t)
	first, second := l.namespace("first"), l.namespace("second")
	path := filepath.Join(t.TempDir(), "netns")
	spec := dataplane.EndpointSpec{ID: model.MakeEndpointID("a", "eth0"), ContainerID: "a", IfName: "eth0",
		Pod: model.PodID{Namespace: "default", Name: "a"}, NetNS: path, IPs: podIPs(11)}
	add := func(at *netns.NS) (a dataplane.Attachment, err error) {
		l.must(errors.Join(os.RemoveAll(path), os.Symlink(at.Path(), path)))
		l.must(l.node.Do(func() error { a, err = l.backend.AddEndpoint(context.Background(), spec); return nil }))
		return a, err
	}
	lose := func() {
		l.must(l.node.Do(func() error { return link.DeletePair(spec.ID) }))
	}
	made, err := add(first)
	l.must(err)
	spec.NetNSID = made.NetNSID
	lose()
	if again, err := add(first); err != nil || again.NetNSID != made.NetNSID {
		t.Errorf("the pair is made again in the namespace of the pod: %+v, %v", again, err)
	}
	lose()
	if _, err := add(second); !errors.Is(err, dataplane.ErrNoNetNS) {
		t.Errorf("at the path of another namespace: %v", err)
	}
	l.must(second.Do(func() error {
		if _, err := netlink.LinkByName("eth0"); err == nil {
			t.Error("another namespace has the interface of the pod")
		}
		return nil
	}))
	spec.NetNSID = ""
	if other, err := add(second); err != nil || other.NetNSID == "" || other.NetNSID == made.NetNSID {
		t.Errorf("the second namespace has the identity %q, the first %q: %v", other.NetNSID, made.NetNSID, err)
	}
}

// interfaces returns the names of the interfaces of the node, each with its addresses.
func (l *lab) interfaces() (all []string) {
	l.t.Helper()
	l.must(l.node.Do(func() error {
		links, err := link.Whole(netlink.LinkList)
		if err != nil {
			return err
		}
		for _, i := range links {
			addresses, err := link.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(i, netlink.FAMILY_ALL) })
			if err != nil {
				return err
			}
			all = append(all, fmt.Sprint(i.Attrs().Name, addresses))
		}
		return nil
	}))
	return all
}
