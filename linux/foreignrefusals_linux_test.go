// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/test/netns"
)

// findInterface looks up the interface of a pod with the addresses 10.1.0.n and fd01::n.
func (l *lab) findInterface(name string, n byte) (mac net.HardwareAddr, err error) {
	l.must(l.node.Do(func() error {
		mac, err = l.backend.FindInterface(context.Background(), dataplane.EndpointSpec{IfName: "eth0", NetNS: l.pods[name].Path(), IPs: podIPs(n)})
		return nil
	}))
	return mac, err
}

// What is not a veth pair between the pod and the node is refused by name.
func TestForeignRefusals(t *testing.T) {
	l := newLabWith(t, func(c *linux.Config) { c.PolicyOnly, c.StateDir = true, "routed" })
	l.pod("a", 11)
	l.plugin = func(*lab, string, byte) error { return nil }
	other := l.namespace("other")
	refused := func(name string, n byte, text string) {
		t.Helper()
		if err := l.add(name, n); err == nil || !strings.Contains(err.Error(), text) || !errors.Is(err, dataplane.ErrInterfaceKind) {
			t.Errorf("pod %s: got %v, want %q", name, err, text)
		}
		_, err := l.findInterface(name, n)
		if owned := strings.HasPrefix(text, "belongs"); (err == nil) != owned || !owned && (!strings.Contains(err.Error(), text) || !errors.Is(err, dataplane.ErrInterfaceKind)) {
			t.Errorf("pod %s: the interface is found with error %v, want %q", name, err, text)
		}
	}
	if mac, err := l.findInterface("a", 11); err != nil || mac.String() != l.macIn(l.pods["a"], "eth0").String() {
		t.Errorf("the interface of pod a has MAC %v, %v", mac, err)
	}
	empty := l.namespace("empty")
	l.pods["empty"] = empty
	refused("empty", 20, "does not exist")
	l.must(empty.Do(func() error { return netns.Bridge("eth0") }))
	refused("empty", 20, "of kind bridge")
	// The peer has the index of an interface of the node, in another namespace.
	far := l.namespace("far")
	l.pods["far"] = far
	l.must(netns.Connect(netns.End{NS: other, Name: "veth-far"}, netns.End{NS: far, Name: "eth0"}))
	l.must(far.Do(func() error { return addresses("eth0", "10.1.0.21/24", "fd01::15/64") }))
	refused("far", 21, "not in the network namespace of the node")
	near := l.namespace("near")
	l.pods["near"] = near
	l.must(netns.Connect(netns.End{NS: l.node, Name: "veth.near"}, netns.End{NS: near, Name: "eth0"}))
	refused("near", 22, "does not have the address 10.1.0.22")
	l.must(near.Do(func() error { return addresses("eth0", "10.1.0.22/24", "fd01::16/64") }))
	refused("near", 22, "a name with a dot")
	master := l.node.Do(func() error {
		veth, err := netlink.LinkByName("veth.near")
		if err != nil {
			return err
		}
		vrf := &netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "vrf0"}, Table: 7}
		if err := errors.Join(netlink.LinkSetName(veth, "veth-near"), netlink.LinkAdd(vrf)); err != nil {
			return err
		}
		return netlink.LinkSetMaster(veth, vrf)
	})
	if errors.Is(master, unix.EOPNOTSUPP) {
		t.Log("this kernel has no VRF: a port of one is not tested")
	} else {
		l.must(master)
		refused("near", 22, "of kind vrf")
	}
	l.pods["again"] = l.pods["a"]
	refused("again", 11, "belongs to endpoint a:eth0")
	l.pods["host"] = l.node
	refused("host", 11, "is that of the node")
}
