// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A pod with CAP_NET_ADMIN in the user namespace of the node makes interfaces in the network of the node, as SECURITY.md says. It
// names that network by the number that the kernel gives the other end of its interface.
func TestNetAdminMakesInterfacesOfTheNode(t *testing.T) {
	l := newLab(t)
	a := l.pod("a", 11)
	l.must(a.Do(func() error {
		own, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return withCapabilities(1<<unix.CAP_NET_ADMIN, func() error {
			req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
			req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
			req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("of-a")))
			req.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(own.Attrs().NetNsID))))
			info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
			info.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
			req.AddData(info)
			_, err := req.Execute(unix.NETLINK_ROUTE, 0)
			return err
		})
	}))
	l.must(l.node.Do(func() error {
		_, err := netlink.LinkByName("of-a")
		return err
	}))
}

// withCapabilities runs a function in a thread whose effective capabilities are the given ones.
func withCapabilities(all uint32, f func() error) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var was [2]unix.CapUserData
	if err := unix.Capget(&header, &was[0]); err != nil {
		return err
	}
	only := was
	only[0].Effective, only[1].Effective = all, 0
	if err := unix.Capset(&header, &only[0]); err != nil {
		return err
	}
	err := f()
	return errors.Join(err, unix.Capset(&header, &was[0]))
}
