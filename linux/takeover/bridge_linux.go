// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	ebpflink "github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/link"
)

// A bridge drops the packets of a port for some milliseconds while the port joins or leaves. Programs on the
// ingress hook see a packet before the bridge does. So during that time a program after those of the pod
// redirects its packets to the bridge's own interface.

// byIndex returns a link that only has an index.
func byIndex(index int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

// leave makes a port an interface to which the node routes. Pods send to the MAC of the bridge, which it has.
func (h *Host) leave(p *Plan, pod *Pod, port netlink.Link) error {
	if port.Attrs().MasterIndex == 0 {
		return nil
	}
	if port.Attrs().MasterIndex != p.Bridge.Index {
		return fmt.Errorf("interface %s is a port of another bridge now", pod.Port)
	}
	end, err := pass(pod.Index, p.Bridge.Index)
	if err != nil {
		return err
	}
	defer end()
	if err := h.h.LinkSetNoMaster(port); err != nil {
		return fmt.Errorf("remove %s from %s: %w", pod.Port, p.Bridge.Name, err)
	}
	return nil
}

// enter makes an interface a port of the bridge again.
func (h *Host) enter(p *Plan, pod *Pod, port netlink.Link) error {
	end, err := pass(pod.Index, p.Bridge.Index)
	if err != nil {
		return err
	}
	defer end()
	if port.Attrs().MasterIndex != p.Bridge.Index {
		if err := h.h.LinkSetMasterByIndex(port, p.Bridge.Index); err != nil {
			return fmt.Errorf("add %s to %s: %w", pod.Port, p.Bridge.Name, err)
		}
	}
	if err := h.h.LinkSetHairpin(port, pod.Hairpin); err != nil {
		return fmt.Errorf("set hairpin mode of %s: %w", pod.Port, err)
	}
	return nil
}

// setMAC sets the MAC of a host end. The kernel then forgets all neighbours of the interface.
func (h *Host) setMAC(port netlink.Link, text string) error {
	mac, err := net.ParseMAC(text)
	if err != nil || mac.String() == port.Attrs().HardwareAddr.String() {
		return err
	}
	if err := h.h.LinkSetHardwareAddr(port, mac); err != nil {
		return fmt.Errorf("set MAC %s of %s: %w", mac, port.Attrs().Name, err)
	}
	return nil
}

// pass redirects what an interface receives to the bridge's own interface, until end is called or this process
// ends. A qdisc would do the same, but the kernel drops packets to the pod while it adds one.
func pass(index, bridge int) (end func(), err error) {
	const ingress = 1 // BPF_F_INGRESS
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "past_bridge", Type: ebpf.SchedCLS, Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R1, int32(bridge)), asm.Mov.Imm(asm.R2, ingress), asm.FnRedirect.Call(), asm.Return(),
	}})
	if err != nil {
		return nil, fmt.Errorf("load the program that passes the bridge: %w", err)
	}
	defer program.Close()
	l, err := ebpflink.AttachTCX(ebpflink.TCXOptions{Interface: index, Program: program, Attach: ebpf.AttachTCXIngress, Anchor: ebpflink.Tail()})
	if err != nil {
		return nil, fmt.Errorf("take packets of interface %d past the bridge: %w", index, err)
	}
	return func() { _ = l.Close() }, nil
}

// removeBridge removes the bridge. One with ports is an error, because something uses it.
func (h *Host) removeBridge(p *Plan) error {
	l, err := h.h.LinkByName(p.Bridge.Name)
	var notFound netlink.LinkNotFoundError
	if errors.As(err, &notFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", p.Bridge.Name, err)
	}
	links, err := link.Whole(h.h.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, port := range links {
		if port.Attrs().MasterIndex == l.Attrs().Index {
			return fmt.Errorf("bridge %s has the port %s, which was not there before: delete its pod, and run migrate run again", p.Bridge.Name, port.Attrs().Name)
		}
	}
	if err := h.h.LinkDel(l); err != nil {
		return fmt.Errorf("remove bridge %s: %w", p.Bridge.Name, err)
	}
	return nil
}

// makeBridge makes the bridge again, with the same index, MAC, addresses and promiscuous mode. After a restart of the node its
// network makes it with the next pod.
func (h *Host) makeBridge(p *Plan) error {
	if h.restarted(p) {
		return nil
	}
	mac, err := net.ParseMAC(p.Bridge.MAC)
	if err != nil {
		return fmt.Errorf("MAC of %s: %w", p.Bridge.Name, err)
	}
	b := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()} // else its queue has the length 0
	b.Name, b.Index, b.MTU, b.HardwareAddr = p.Bridge.Name, p.Bridge.Index, p.Bridge.MTU, mac
	if err := h.h.LinkAdd(b); errors.Is(err, unix.EEXIST) { // also if another interface has the index
		there, err := h.h.LinkByIndex(p.Bridge.Index)
		if err != nil || there.Type() != "bridge" || there.Attrs().Name != p.Bridge.Name {
			return fmt.Errorf("make bridge %s with index %d: another interface has this name or index: remove it: %w", p.Bridge.Name, p.Bridge.Index, unix.EEXIST)
		}
	} else if err != nil {
		return fmt.Errorf("make bridge %s: %w", p.Bridge.Name, err)
	}
	if p.Bridge.Promiscuous {
		if err := h.h.SetPromiscOn(byIndex(p.Bridge.Index)); err != nil {
			return fmt.Errorf("set promiscuous mode of %s: %w", p.Bridge.Name, err)
		}
	}
	for _, a := range p.Bridge.Addresses {
		addr := &netlink.Addr{IPNet: netipx.PrefixIPNet(a), Flags: unix.IFA_F_NODAD}
		addr.IPNet.IP = a.Addr().AsSlice()
		if err := h.h.AddrReplace(byIndex(p.Bridge.Index), addr); err != nil {
			return fmt.Errorf("add address %s to %s: %w", a, p.Bridge.Name, err)
		}
	}
	if err := h.h.LinkSetUp(byIndex(p.Bridge.Index)); err != nil {
		return fmt.Errorf("set %s up: %w", p.Bridge.Name, err)
	}
	return nil
}
