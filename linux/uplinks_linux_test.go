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

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/denylist"
	isthmuslink "github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// Addresses of the namespace outside that are never listed.
const (
	friend4 = "192.168.9.3"
	friend6 = "fd99::3"
)

func denyList(entries ...string) []*model.DenyList {
	l := &model.DenyList{Name: "guests"}
	for _, e := range entries {
		l.Entries = append(l.Entries, netip.MustParsePrefix(e))
	}
	return []*model.DenyList{l}
}

// newUplinkLab returns a lab whose node has its default route by eth0, and a pod that serves
// port 80.
func newUplinkLab(t *testing.T) *lab {
	l := newLab(t)
	l.xdp = denylist.Devices{Auto: true}
	l.again()
	l.must(l.node.Do(func() error { return route("0.0.0.0/0", outsideAddr4) }))
	l.must(l.outside.Do(func() error { return addresses("eth0", friend4+"/24", friend6+"/64") }))
	l.echo(l.pod("web", 11), 80)
	l.apply()
	return l
}

// again stops the backend and starts another.
func (l *lab) again() {
	l.t.Helper()
	l.must(l.backend.Close())
	l.start()
}

// denyAll applies deny lists.
func (l *lab) denyAll(lists []*model.DenyList) {
	l.t.Helper()
	l.deny = lists
	l.apply()
}

func (l *lab) status() dataplane.Counters {
	l.t.Helper()
	c, err := l.backend.Counters(context.Background())
	l.must(err)
	return c
}

// mode returns where the XDP program of a device runs.
func (l *lab) mode(device string) (mode string) {
	l.t.Helper()
	l.must(l.node.Do(func() error {
		index, err := isthmuslink.Index(device)
		if err != nil {
			return err
		}
		mode, err = isthmuslink.XDPMode(index)
		return err
	}))
	return mode
}

// reachFrom sends an echo from one of several own addresses.
func (l *lab) reachFrom(src, network, dst string, port uint16, limit time.Duration) error {
	return l.outside.Do(func() error {
		d := net.Dialer{Timeout: limit, LocalAddr: &net.TCPAddr{IP: net.ParseIP(src)}}
		if network == "udp" {
			d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(src)}
		}
		c, err := d.Dial(network, net.JoinHostPort(dst, fmt.Sprint(port)))
		if err != nil {
			return err
		}
		defer c.Close()
		return traffic.Exchange(c, limit)
	})
}

func TestDenyListOnUplink(t *testing.T) {
	l := newUplinkLab(t)
	if m := l.mode("eth0"); m != "none" {
		t.Errorf("without a list the device has an XDP program: %s", m)
	}
	pod4, pod6 := podIPs(11)[0].String(), podIPs(11)[1].String()
	var open net.Conn
	l.must(l.outside.Do(func() (err error) {
		open, err = net.DialTimeout("tcp", net.JoinHostPort(pod4, "80"), patience)
		return err
	}))
	defer open.Close()
	l.must(traffic.Exchange(open, patience))

	l.denyAll(denyList(outsideAddr4+"/32", outsideAddr6+"/127")) // ::2 and ::3; the latter is reached below
	if s := l.status().Deny; s.Entries != [2]int{1, 1} || len(s.Devices) != 1 || s.Devices[0] != (dataplane.DenyDevice{Name: "eth0", Mode: "native"}) || len(s.Problems) > 0 {
		t.Errorf("status %+v", s)
	}
	if modes := l.status().PathModes; !slices.Contains(modes, dataplane.PathMode{Part: "uplinks", Mode: "native", Count: 1}) {
		t.Errorf("path modes are %v", modes)
	}
	if len(l.refused) > 0 {
		t.Error(l.refused)
	}
	for _, network := range []string{"tcp", "udp"} {
		for _, dst := range []string{pod4, pod6} {
			src := map[bool]string{true: outsideAddr4, false: outsideAddr6}[dst == pod4]
			if err := l.reachFrom(src, network, dst, 80, silence); err == nil {
				t.Errorf("%s from %s gets through", network, src)
			}
		}
		if err := l.reachFrom(friend4, network, pod4, 80, patience); err != nil {
			t.Errorf("%s from %s: %v", network, friend4, err)
		}
	}
	if err := traffic.Exchange(open, silence); err == nil {
		t.Error("an open connection from a listed address goes on")
	}
	if d := l.status().Drops; d["deny_list_ipv4"] == 0 || d["deny_list_ipv6"] == 0 {
		t.Errorf("drops %v", d)
	}
	l.denyAll(nil)
	if m := l.mode("eth0"); m != "none" {
		t.Errorf("the list is gone, the program is not: %s", m)
	}
	for _, dst := range []string{pod4, pod6} {
		l.soon(dst)
	}
}

// soon waits until the namespace outside reaches port 80 of an address. The node must resolve
// its neighbour again, whose advertisements were dropped.
func (l *lab) soon(dst string) {
	l.t.Helper()
	var err error
	for deadline := time.Now().Add(2 * patience); time.Now().Before(deadline); {
		if err = reach(l.outside, "tcp", dst, 80, silence); err == nil {
			return
		}
	}
	l.t.Errorf("%s: %v", dst, err)
}

// Addresses of the node are never denied, and the conflict is reported.
func TestOwnAddressesAreExempt(t *testing.T) {
	l := newUplinkLab(t)
	l.denyAll(denyList("192.168.9.0/24"))
	found := false
	for _, u := range l.state.Deny.Exempt {
		found = found || u.String() == nodeAddr4
	}
	if !found {
		t.Errorf("exempt: %v", l.state.Deny.Exempt)
	}
	// An address that only the node knows.
	l.must(l.node.Do(func() error { return addresses("eth0", "192.168.9.77/24") }))
	l.denyAll(denyList("192.168.9.0/25"))
	reported := ""
	for _, u := range l.refused {
		reported += u.String() + "\n"
	}
	if !strings.Contains(reported, "DenyList guests: entry 192.168.9.0/25 on linux") || !strings.Contains(reported, "192.168.9.77 is an address of this machine") {
		t.Errorf("reported: %q", reported)
	}
	l.denied(l.outside, "tcp", podIPs(11)[0].String(), 80)
}

// The deny list stays in force while an agent of another layout replaces this one. That agent
// then has its own program.
func TestDenyListOverUpgrade(t *testing.T) {
	t.Parallel()
	l := newUplinkLab(t)
	l.denyAll(denyList(outsideAddr4 + "/32"))
	judge := func() {
		t.Helper()
		l.denied(l.outside, "tcp", podIPs(11)[0].String(), 80)
		l.allowed(l.outside, "tcp", podIPs(11)[1].String(), 80)
	}
	judge()
	before := l.uplinkProgram()
	l.must(l.backend.Close())
	l.must(os.Rename(filepath.Join(l.bpffs, loader.LayoutVersion), filepath.Join(l.bpffs, "v1")))
	l.start()
	judge()
	l.state = nil
	for name := range l.pods {
		l.must(l.add(name, 11))
	}
	l.denyAll(l.deny)
	judge()
	l.must(l.backend.Close())
	l.start()
	judge()
	if after := l.uplinkProgram(); after == before {
		t.Errorf("program %d of the older layout is still on the uplink", after)
	}
	if _, err := os.Stat(filepath.Join(l.bpffs, "v1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the older layout is still there: %v", err)
	}
}

// uplinkProgram returns the ID of the XDP program on the uplink.
func (l *lab) uplinkProgram() (id uint32) {
	l.t.Helper()
	l.must(l.node.Do(func() error {
		uplink, err := netlink.LinkByName("eth0")
		if err == nil {
			id = uplink.Attrs().Xdp.ProgId
		}
		return err
	}))
	return id
}

// The deny list stays in force while agents stop, start and replace the program. No listed
// source passes, and no other packet is lost.
func TestDenyListOverRestarts(t *testing.T) {
	t.Parallel()
	l := newUplinkLab(t)
	l.denyAll(denyList(outsideAddr4 + "/32"))
	stop, result := make(chan bool), make(chan error, 2)
	ping := func(src string, want bool) {
		var sent, back int
		err := l.outside.Do(func() error {
			c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(src)}, &net.UDPAddr{IP: podIPs(11)[0].AsSlice(), Port: 80})
			if err != nil {
				return err
			}
			defer c.Close()
			buf := make([]byte, 16)
			for {
				select {
				case <-stop:
					return nil
				default:
				}
				if _, err := c.Write([]byte("x")); err != nil {
					return err
				}
				sent++
				c.SetReadDeadline(time.Now().Add(map[bool]time.Duration{true: patience, false: time.Millisecond}[want]))
				if _, err := c.Read(buf); err == nil {
					back++
				}
			}
		})
		if want && back != sent || !want && back > 0 || sent < 100 {
			err = errors.Join(err, fmt.Errorf("from %s: %d sent, %d answered", src, sent, back))
		}
		result <- err
	}
	go ping(friend4, true)
	go ping(outsideAddr4, false)
	for range 5 {
		l.again()
		l.apply()
		time.Sleep(50 * time.Millisecond)
	}
	close(stop)
	l.must(errors.Join(<-result, <-result))
	if m := l.mode("eth0"); m != "native" {
		t.Error(m)
	}
	l.xdp = denylist.Devices{}
	l.again()
	if m := l.mode("eth0"); m != "none" {
		t.Errorf("switched off, but the program is there: %s", m)
	}
	l.apply()
	if len(l.refused) != 1 || !strings.Contains(l.refused[0].String(), "XDP is switched off") {
		t.Errorf("reported: %v", l.refused)
	}
	l.soon(podIPs(11)[0].String())
}

// An XDP program of another owner stays, and is reported until it is gone.
func TestForeignXDPProgram(t *testing.T) {
	l := newUplinkLab(t)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	l.must(err)
	defer prog.Close()
	var foreign link.Link
	l.must(l.node.Do(func() (err error) {
		index, err := isthmuslink.Index("eth0")
		if err == nil {
			foreign, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: index, Flags: link.XDPGenericMode})
		}
		return err
	}))
	defer foreign.Close()
	l.denyAll(denyList(outsideAddr4 + "/32"))
	if len(l.refused) != 1 || !strings.Contains(l.refused[0].String(), "XDP on eth0: the device has an XDP program of another owner") {
		t.Errorf("reported: %v", l.refused)
	}
	if m := l.mode("eth0"); m != "generic" {
		t.Errorf("mode %s", m)
	}
	if s := l.status().Deny; len(s.Problems) != 1 || len(s.Devices) != 0 {
		t.Errorf("status %+v", s)
	}
	l.must(foreign.Close())
	time.Sleep(1100 * time.Millisecond) // until the agent retries
	l.must(l.node.Do(func() error { _, err := l.backend.Idle(context.Background()); return err }))
	if s := l.status().Deny; len(s.Problems) != 0 || len(s.Devices) != 1 || l.mode("eth0") != "native" {
		t.Errorf("status %+v, mode %s", s, l.mode("eth0"))
	}
	l.denied(l.outside, "tcp", podIPs(11)[0].String(), 80)
}

// If the driver has no XDP, the generic hook of the kernel runs the program. A missing device
// is reported. The program leaves a device that is no longer named.
func TestNamedDevices(t *testing.T) {
	l := newUplinkLab(t)
	l.xdp = denylist.Devices{Names: []string{"eth0", "lo", "eth7"}}
	l.again()
	l.apply()
	if s := l.status().Deny; len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "eth7") ||
		fmt.Sprint(s.Devices) != "[{eth0 native} {lo generic}]" {
		t.Errorf("status %+v", s)
	}
	l.xdp.Names = []string{"eth0"}
	l.again()
	l.apply()
	if l.mode("lo") != "none" || l.mode("eth0") != "native" {
		t.Errorf("lo %s, eth0 %s", l.mode("lo"), l.mode("eth0"))
	}
	// XDP already drops what policy denies, and counts it as usual.
	l.apply(isolate("web", model.Ingress, accept(pods("web"))))
	before := l.status().Verdicts[model.Ingress][model.Deny]
	l.denied(l.outside, "tcp", podIPs(11)[0].String(), 80)
	l.denied(l.outside, "tcp", podIPs(11)[1].String(), 80)
	if after := l.status().Verdicts[model.Ingress][model.Deny]; after < before+2 {
		t.Errorf("refused flows went from %d to %d", before, after)
	}
	l.must(l.node.Do(func() error { // the device disappears
		eth0, err := netlink.LinkByName("eth0")
		if err == nil {
			err = netlink.LinkDel(eth0)
		}
		return err
	}))
	if m := l.status().Deny; len(m.Devices) != 1 {
		t.Errorf("%+v", m)
	}
}
