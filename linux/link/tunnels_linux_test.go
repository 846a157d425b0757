// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/test/netns"
)

// The devices that are up say which tunneled packets a node receives.
func TestTunnels(t *testing.T) {
	up := func(index int) netlink.LinkAttrs { return netlink.LinkAttrs{Index: index, Flags: net.FlagUp} }
	got := tunnelsOf([]netlink.Link{
		&netlink.Vxlan{LinkAttrs: up(2), Port: 8472}, &netlink.Geneve{LinkAttrs: up(3), Dport: 6081}, &netlink.Iptun{LinkAttrs: up(4)},
		&netlink.Gretun{LinkAttrs: up(5), Local: net.IPv4(10, 0, 0, 1)}, &netlink.Sittun{LinkAttrs: up(6)},
		&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Index: 7}, Port: 4789}, &netlink.Veth{LinkAttrs: up(8)},
		&netlink.BareUDP{LinkAttrs: up(9), Port: 6635}, &netlink.GTP{LinkAttrs: up(10)}, &netlink.GenericLink{LinkAttrs: up(11), LinkType: "pfcp"},
	}, []*netlink.GenlFamily{{Name: "nlctrl"}, {Name: "l2tp"}})
	want := map[Tunnel]int{{17, 8472}: 2, {17, 6081}: 3, {17, 6635}: 9, {17, 2152}: 10, {17, 3386}: 10, {17, 8805}: 11,
		{115, 0}: 0, {4, 0}: 6, {137, 0}: 6, {41, 0}: 6, {47, 0}: 5}
	if !maps.Equal(got, want) {
		t.Errorf("tunnels %v, want %v", got, want)
	}
	if none := tunnelsOf([]netlink.Link{&netlink.Iptun{LinkAttrs: netlink.LinkAttrs{Index: 9}}}, nil); len(none) > 0 {
		t.Errorf("tunnels of a device that is down: %v", none)
	}
	for device, protocol := range map[netlink.Link]uint8{&netlink.Iptun{LinkAttrs: up(4)}: 4, &netlink.Ip6tnl{LinkAttrs: up(4)}: 41,
		&netlink.Gretap{LinkAttrs: up(5)}: 47, &netlink.GenericLink{LinkAttrs: up(5), LinkType: "ip6gre"}: 47} {
		got := tunnelsOf([]netlink.Link{device}, nil)
		if got[Tunnel{Protocol: protocol}] == 0 || (protocol != 47) != (got[Tunnel{Protocol: 137}] != 0) {
			t.Errorf("device of kind %s: %v, want protocol %d, and MPLS if it is not that of GRE", device.Type(), got, protocol)
		}
	}
}

// The kernel unpacks what arrives at a port of FOU, without a device. That of L2TP directly in IP it unpacks if the module is loaded.
func TestTunnelsOfPorts(t *testing.T) {
	for name, family := range map[string]int{"IPv4": unix.AF_INET, "IPv6": unix.AF_INET6} {
		t.Run(name, func(t *testing.T) {
			err := inNamespace(t, func() error {
				want := make(map[Tunnel]int)
				if _, err := os.Stat("/sys/module/l2tp_netlink"); err == nil {
					want[Tunnel{Protocol: unix.IPPROTO_L2TP}] = 0
				}
				if got, err := Tunnels(); err != nil || !maps.Equal(got, want) {
					t.Errorf("tunnels of a new namespace: %v, %v, want %v", got, err, want)
				}
				if err := netlink.FouAdd(netlink.Fou{Family: family, Port: 5555, Protocol: unix.IPPROTO_IPIP, EncapType: netlink.FOU_ENCAP_DIRECT}); err != nil {
					return err
				}
				want[Tunnel{unix.IPPROTO_UDP, 5555}] = 0
				if got, err := Tunnels(); err != nil || !maps.Equal(got, want) {
					t.Errorf("tunnels %v, %v, want %v", got, err, want)
				}
				return nil
			})
			if errors.Is(err, unix.ENOENT) {
				t.Skip("the kernel lacks the module fou: make test-kernel has it")
			} else if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A multicast router receives PIM register messages by a device that the kernel makes.
func TestTunnelsOfMulticastRouters(t *testing.T) {
	// Constants of linux/mroute.h.
	const mrtInit, mrtAddVIF, viffRegister = 200, 202, 4
	err := inNamespace(t, func() error {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_IGMP)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		vif := [16]byte{2: viffRegister} // struct vifctl
		if err := errors.Join(unix.SetsockoptInt(s, unix.IPPROTO_IP, mrtInit, 1), unix.SetsockoptString(s, unix.IPPROTO_IP, mrtAddVIF, string(vif[:]))); err != nil {
			return err
		}
		register, err := netlink.LinkByName("pimreg")
		if err != nil {
			return err
		}
		all, err := Tunnels()
		if got, want := all[Tunnel{Protocol: unix.IPPROTO_PIM}], register.Attrs().Index; got != want {
			t.Errorf("tunnels %v, want PIM of device %d", all, want)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// inNamespace runs a function in a new network namespace.
func inNamespace(t *testing.T, f func() error) error {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: make test runs it")
	}
	ns, err := netns.New(filepath.Join(t.TempDir(), "ns"))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	return ns.Do(f)
}
