// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/linux/link"
)

// HostEnd is the host end of a pod's interface.
type HostEnd struct {
	Name  string `json:"name"`
	Index int    `json:"index"`
	// PeerIndex is the index of the pod's end in its network namespace, PodMAC its hardware address.
	PeerIndex int              `json:"peerIndex"`
	PodMAC    net.HardwareAddr `json:"podMac"`
	// Bridge is the index of the bridge whose port the host end is; 0 if the node routes to it.
	Bridge int `json:"bridge,omitempty"`
	// HostMAC is the address to which the pod sends what leaves its segment: that of the bridge, or of the
	// host end.
	HostMAC net.HardwareAddr `json:"hostMac"`
	// Addresses are those of the pod.
	Addresses []netip.Addr `json:"addresses"`
	// Return is set while the interface moves back to the bridge. Its packets may already arrive by the bridge.
	Return Return `json:"return,omitempty"`
	Up     bool   `json:"-"`
	MTU    int    `json:"-"`
}

// Return is the stage of an interface that moves back to a bridge.
type Return string

// The stages.
const (
	// ReturnRequested is written by isthmusctl migrate rollback, while no agent runs.
	ReturnRequested Return = "asked"
	// ReturnReady is written by the agent once its programs accept the packets of the pod from the bridge, too.
	ReturnReady Return = "ready"
)

func (r Return) valid() bool { return r == "" || r == ReturnRequested || r == ReturnReady }

// Returning returns the host end as it will be, if was shows that it moves back to a bridge. Both describe the
// same interface.
func (e HostEnd) Returning(was HostEnd) HostEnd {
	if was.Return != "" && e.Bridge == 0 && e.Index == was.Index && e.PeerIndex == was.PeerIndex {
		e.Bridge, e.HostMAC, e.Return = was.Bridge, was.HostMAC, was.Return
	}
	return e
}

// Find returns the host end of the interface ifName in a network namespace, which must have all of the
// addresses. The path may be the handle of an interface, as Scan returns it. The error wraps dataplane.ErrNoNetNS if the namespace does not exist, and
// dataplane.ErrInterfaceKind if policy cannot be enforced on the interface.
func Find(path, ifName string, addresses []netip.Addr) (HostEnd, error) {
	if strings.HasPrefix(path, dataplane.HandlePrefix) {
		return findHandle(path, addresses)
	}
	ns, err := link.OpenNetNS(path)
	if err != nil {
		return HostEnd{}, err
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return HostEnd{}, fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	defer inside.Close()
	pod, err := inside.LinkByName(ifName)
	if isGone(err) {
		return HostEnd{}, fmt.Errorf("interface %s in %s does not exist: put isthmus-cni behind the plugin that makes it: %w", ifName, path, dataplane.ErrInterfaceKind)
	}
	if err != nil {
		return HostEnd{}, fmt.Errorf("find interface %s in %s: %w", ifName, path, err)
	}
	if pod.Type() != "veth" {
		return HostEnd{}, fmt.Errorf("interface %s in %s is of kind %s: policy needs a veth pair: %w", ifName, path, pod.Type(), dataplane.ErrInterfaceKind)
	}
	e, err := hostEnd(ns, pod, addresses)
	if err != nil {
		return e, fmt.Errorf("interface %s in %s: %w", ifName, path, err)
	}
	return e, nil
}

// hostEnd returns the other end of the pod's end of a veth pair, after it has checked that the two are a pair and that
// the pod's end has all of the addresses.
func hostEnd(ns netns.NsHandle, pod netlink.Link, addresses []netip.Addr) (HostEnd, error) {
	in, err := newReader()
	if err != nil {
		return HostEnd{}, err
	}
	defer in.close()
	other := fmt.Errorf("its other end is not in the network namespace of the node: policy needs one there: %w", dataplane.ErrInterfaceKind)
	host, err := in.host.LinkByIndex(pod.Attrs().ParentIndex)
	if isGone(err) {
		return HostEnd{}, other
	}
	if err != nil {
		return HostEnd{}, fmt.Errorf("find interface %d: %w", pod.Attrs().ParentIndex, err)
	}
	number, err := in.host.GetNetNsIdByFd(int(ns))
	if err != nil {
		return HostEnd{}, fmt.Errorf("read the number of the network namespace: %w", err)
	}
	// Indexes are unique in a namespace only. The kernel names the namespace of the peer by a number.
	if host.Type() != "veth" || host.Attrs().ParentIndex != pod.Attrs().Index || number < 0 || host.Attrs().NetNsID != number {
		return HostEnd{}, other
	}
	has, err := in.addresses(host.Attrs())
	if err != nil {
		return HostEnd{}, fmt.Errorf("list addresses: %w", err)
	}
	for _, ip := range addresses {
		if !slices.Contains(has, ip) {
			return HostEnd{}, fmt.Errorf("it does not have the address %s of prevResult: %w", ip, dataplane.ErrInterfaceKind)
		}
	}
	e, err := describe(in.host, host)
	e.Addresses, e.PeerIndex, e.PodMAC = has, pod.Attrs().Index, pod.Attrs().HardwareAddr
	return e, err
}

// describe returns what the node's namespace shows of a host end.
func describe(h *netlink.Handle, host netlink.Link) (HostEnd, error) {
	a := host.Attrs()
	e := HostEnd{Name: a.Name, Index: a.Index, PeerIndex: a.ParentIndex, HostMAC: a.HardwareAddr, Up: a.Flags&net.FlagUp != 0, MTU: a.MTU}
	if strings.Contains(a.Name, ".") { // the file system of pins reserves dots
		return e, fmt.Errorf("interface %s: programs cannot be pinned for a name with a dot: %w", a.Name, dataplane.ErrInterfaceKind)
	}
	if a.MasterIndex == 0 {
		return e, nil
	}
	master, err := h.LinkByIndex(a.MasterIndex)
	if err != nil {
		return e, fmt.Errorf("find the master of interface %s: %w", a.Name, err)
	}
	if master.Type() != "bridge" {
		return e, fmt.Errorf("interface %s is a port of %s, which is of kind %s: policy needs a routed interface or a bridge: %w",
			a.Name, master.Attrs().Name, master.Type(), dataplane.ErrInterfaceKind)
	}
	e.Bridge, e.HostMAC = a.MasterIndex, master.Attrs().HardwareAddr
	return e, nil
}

func isGone(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) || errors.Is(err, unix.ENODEV)
}
