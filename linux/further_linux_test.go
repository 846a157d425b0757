// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/denylist"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// assigned makes pods a and b. The network plugin gives b a further address of each family, and says so.
func assigned(l *lab) (a, b *netns.NS) {
	l.t.Helper()
	l.further = map[string][]netip.Addr{"b": furtherIPs(12)}
	a, b = l.pod("a", 11), l.pod("b", 12)
	l.furtherAddresses("b", 12)
	for _, ns := range []*netns.NS{a, b, l.outside, l.node} {
		l.echo(ns, 90)
	}
	l.apply()
	for i, to := range furtherIPs(12) { // the kernel needs time until a new IPv6 address is usable
		l.allowed(a, "tcp", to.String(), 90)
		l.from(b, to, podIPs(11)[i], true)
	}
	return a, b
}

// everyFlow is the name of each flow that pass tries.
var everyFlow = []string{"a to b", "b to a", "outside to b", "b to outside", "node to b", "b to node"}

// pass tries connections from and to addresses of pod b, and checks that those of these names pass, and no others.
func (l *lab) pass(when string, addresses []netip.Addr, names ...string) {
	l.t.Helper()
	for _, own := range addresses {
		outside, node, i := outsideAddr4, nodeAddr4, 0
		if own.Is6() {
			outside, node, i = outsideAddr6, nodeAddr6, 1
		}
		for name, end := range map[string]struct {
			ns *netns.NS
			ip string
		}{"a": {l.pods["a"], podIPs(11)[i].String()}, "outside": {l.outside, outside}, "node": {l.node, node}} {
			to := netip.AddrPortFrom(netip.MustParseAddr(end.ip), 90)
			for flow, f := range map[string]traffic.Flow{
				name + " to b": {NS: end.ns, To: netip.AddrPortFrom(own, 90), Protocol: model.TCP},
				"b to " + name: {NS: l.pods["b"], From: own, To: to, Protocol: model.TCP},
			} {
				want, limit := slices.Contains(names, flow), silence
				if want {
					limit = patience
				}
				err := f.Try(context.Background(), limit)
				// The pod may not answer ARP for an address that is not its own: the host then has no route.
				odd := err != nil && !traffic.Silent(err) && !errors.Is(err, unix.EHOSTUNREACH)
				if want != (err == nil) || odd {
					l.t.Errorf("%s: %s with %s: %v, want it to pass: %t", when, flow, own, err, want)
				}
			}
		}
	}
}

// alike checks that the first and the further addresses of pod b have the same verdicts: flows of these names pass.
func (l *lab) alike(when string, names ...string) {
	l.t.Helper()
	l.pass(when, podIPs(12), names...)
	l.pass(when, furtherIPs(12), names...)
}

// closed checks that no packet from and to the further addresses of pod b passes.
func (l *lab) closed(when string) {
	l.t.Helper()
	l.pass(when, furtherIPs(12))
}

// All addresses that its network plugin gave a pod have the same policy: that of the pod, and that of others about the pod.
func TestFurtherAddresses(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		assigned(l)
		l.alike("without policy", everyFlow...)
		l.apply(isolate("b", model.Ingress, accept(pods("a"), tcp(90))), isolate("b", model.Egress, accept(pods("a"), tcp(90))))
		l.alike("under policy of b", "a to b", "b to a", "node to b") // the node reaches its pod
		l.apply(isolate("a", model.Ingress, accept(pods("b"))), isolate("a", model.Egress, accept(pods("b"), tcp(90))))
		l.alike("under policy of a", everyFlow...)
		l.apply(isolate("a", model.Ingress), isolate("b", model.Ingress))
		l.alike("while a denies b", "b to outside", "b to node", "node to b")
		l.sound()
		l.unreported()
	})
}

// unreported checks that no address is reported.
func (l *lab) unreported() {
	l.t.Helper()
	l.must(l.node.Do(func() error {
		all, err := l.backend.Endpoints(context.Background())
		for _, i := range all {
			if len(i.InPod) > 0 {
				l.t.Errorf("reported: %q", i.InPod)
			}
		}
		return err
	}))
	if faults := l.backend.Faults(); len(faults) > 0 {
		l.t.Errorf("faults: %q", faults)
	}
}

// Only the pod may send from its further addresses. No other pod and no host may.
func TestFurtherAddressesForged(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		a, _ := assigned(l)
		c := l.pod("c", 13)
		l.apply()
		// The kernel drops some of these by itself, but only for IPv4.
		l.must(l.node.Do(func() error {
			return errors.Join(sysctl("ipv4/conf/all/rp_filter", "0"), sysctl("ipv4/conf/eth0/rp_filter", "0"))
		}))
		for _, ip := range podIPs(11) { // the pod finds its gateway
			l.allowed(c, "tcp", ip.String(), 90)
		}
		const proto = 253 // for experiments
		for i, further := range furtherIPs(12) {
			for _, ns := range []*netns.NS{c, l.outside} {
				device := "eth0"
				l.must(ns.Do(func() error { return netns.AddAddresses(device, netip.PrefixFrom(further, further.BitLen())) }))
				to := podIPs(11)[i].String()
				before := l.drops("spoofed")
				if l.packet(ns, a, proto, further.String(), to, []byte("forged"), silence) {
					t.Errorf("a forged packet from %s arrives", further)
				}
				if l.drops("spoofed") == before {
					t.Errorf("a forged packet from %s is not counted as spoofed", further)
				}
				l.must(ns.Do(func() error { return removeAddress(device, further) }))
			}
			if !l.packet(l.pods["b"], a, proto, further.String(), podIPs(11)[i].String(), []byte("right"), patience) {
				t.Errorf("a packet of the pod from %s does not arrive", further)
			}
		}
	})
}

func removeAddress(device string, a netip.Addr) error {
	eth0, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(netip.PrefixFrom(a, a.BitLen()).String())
	if err != nil {
		return err
	}
	return netlink.AddrDel(eth0, addr)
}

// A restart of the agent and a new interface keep further addresses, and connections of them.
func TestFurtherAddressesRestart(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		a, b := assigned(l)
		l.echo(b, 91)
		only90 := isolate("b", model.Ingress, accept(pods("a"), tcp(90)))
		l.apply(only90)
		further := furtherIPs(12)
		conn := l.dial("a", further[0].String(), 90)
		defer conn.Close()
		check := func() {
			t.Helper()
			l.must(traffic.Exchange(conn, patience))
			for i, to := range further {
				l.allowed(a, "tcp", to.String(), 90)
				l.denied(a, "tcp", to.String(), 91)
				l.from(b, to, podIPs(11)[i], true)
			}
		}
		l.must(l.backend.Close())
		check()
		l.start()
		check() // before the agent knows the pods again
		l.must(l.add("b", 12))
		check()
		l.must(l.add("a", 11))
		l.apply(only90)
		check()
		l.sound()
		l.unreported()
		l.repaired(further[0], only90)
		check()
	})
}

// repaired checks that an audit finds an address that is missing in the map or strange there, and that Apply repairs it.
func (l *lab) repaired(further netip.Addr, policies ...*model.Policy) {
	l.t.Helper()
	locals4, err := ebpf.LoadPinnedMap(l.pinned("locals4"), nil)
	l.must(err)
	defer locals4.Close()
	audit := func() (found []dataplane.Drift) {
		l.must(l.node.Do(func() (err error) {
			found, err = l.backend.Audit(context.Background(), l.state)
			return err
		}))
		return found
	}
	strange := netip.MustParseAddr("10.1.0.200").As4()
	for name, damage := range map[string]func() error{
		"missing": func() error { return locals4.Delete(further.As4()) },
		"strange": func() error { return locals4.Put(strange, bpfobj.PodSlotIndex{Slot: 1}) },
	} {
		if found := audit(); len(found) > 0 {
			l.t.Errorf("before %s: %v", name, found)
		}
		l.must(damage())
		if found := audit(); len(found) != 1 || found[0].Object != "locals" {
			l.t.Errorf("%s: %v", name, found)
		}
		l.apply(policies...)
	}
	if found := audit(); len(found) > 0 {
		l.t.Errorf("after the repairs: %v", found)
	}
}

// The further addresses of a pod end with its endpoint. The next pod does not get them, also not with its slot.
func TestFurtherAddressesDelete(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		a, _ := assigned(l)
		l.delete("b")
		m, err := loader.ReadPinned(filepath.Join(l.bpffs, loader.LayoutVersion), false)
		l.must(err)
		for _, ip := range furtherIPs(12) {
			if slot, ok := m.Locals[ip]; ok {
				t.Errorf("slot %d still has %s", slot, ip)
			}
		}
		l.closed("after DEL")
		l.must(l.node.Do(func() error { return netns.Remove("veth-b") }))
		c := l.pod("c", 12) // the address of b, and its slot
		l.furtherAddresses("c", 12)
		l.echo(c, 90)
		l.pods["b"] = c
		l.closed("before policy of the next pod")
		l.apply()
		l.allowed(a, "tcp", podIPs(12)[0].String(), 90)
		l.closed("under policy of the next pod")
		l.reportsFurther(furtherIPs(12))
	})
}

// A further address that is another pod's is dropped from the ADD of that pod on, and one that an interface of the node gets
// within a second. Both return once the other owner is gone.
func TestFurtherAddressesConflict(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		_, b := assigned(l)
		further := furtherIPs(12)
		l.pod("c", 112) // the further addresses of b
		for i, own := range further {
			l.from(b, own, podIPs(11)[i], false)
		}
		l.delete("c")
		l.must(l.node.Do(func() error { return netns.Remove("veth-c") }))
		l.furtherAddresses("b", 12)
		l.apply()
		l.alike("after the other pod", everyFlow...)

		l.must(l.node.Do(func() error { return addresses("eth0", further[0].String()+"/32", further[1].String()+"/128") }))
		l.must(l.node.Do(func() error { return l.backend.Follow(context.Background()) }))
		if faults := strings.Join(l.backend.Faults(), "\n"); !strings.Contains(faults, further[0].String()) || !strings.Contains(faults, further[1].String()) ||
			!strings.Contains(faults, "an interface of this node has it") {
			t.Errorf("faults %q", faults)
		}
		for i, own := range further {
			l.from(b, own, podIPs(11)[i], false)
		}
		l.must(l.node.Do(func() error {
			for _, ip := range further {
				if err := removeAddress("eth0", ip); err != nil {
					return err
				}
			}
			return l.backend.Follow(context.Background())
		}))
		l.furtherAddresses("b", 12)
		l.alike("after the node", everyFlow...)
		l.unreported()

		// The agent found an owner: the next State does not have them.
		id := model.MakeEndpointID("b", "eth0")
		e := l.local[id]
		e.Further = nil
		l.local[id] = e
		l.apply()
		l.closed("once another object has them")
	})
}

// The pinned maps show all addresses of a pod with its table.
func TestFurtherAddressesInMaps(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		assigned(l)
		m, err := loader.ReadPinned(filepath.Join(l.bpffs, loader.LayoutVersion), false)
		l.must(err)
		var got [][]netip.Addr
		for _, table := range m.Tables() {
			got = append(got, table.Addresses)
		}
		want := [][]netip.Addr{podIPs(11), slices.SortedFunc(slices.Values(slices.Concat(podIPs(12), furtherIPs(12))), netip.Addr.Compare)}
		if !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("tables of %v, want %v", got, want)
		}
	})
}

// Packets of an observed pod pass with all of its addresses, also where the XDP program of a deny list sees them. Once policy is
// enforced, they do not.
func TestFurtherAddressesObserved(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		l.xdp, l.deny = denylist.Devices{Auto: true}, denyList("203.0.113.0/24")
		l.must(l.node.Do(func() error { return route("0.0.0.0/0", outsideAddr4) }))
		observing(t, l)
		assigned(l)
		if l.mode("eth0") == "" {
			t.Fatal("the uplink has no XDP program")
		}
		closed := []*model.Policy{isolate("b", model.Ingress), isolate("b", model.Egress)}
		l.apply(closed...)
		l.alike("while b is observed", everyFlow...)
		further := furtherIPs(12)[0].String()
		l.takeObserved()
		l.allowed(l.outside, "tcp", further, 90)
		l.from(l.pods["b"], furtherIPs(12)[0], podIPs(11)[0], true)
		l.observes(
			"b: deny of ingress from "+outsideAddr4+" to "+further+" TCP/90: isolated for ingress by NetworkPolicy default/b-ingress, no rule accepts",
			"b: deny of egress from "+further+" to 10.1.0.11 TCP/90: isolated for egress by NetworkPolicy default/b-egress, no rule accepts")
		l.observe = model.ObserveNone
		l.startAgain()
		l.apply(closed...)
		l.alike("while policy of b is enforced", "node to b")
	})
}

// Egress to a Service is decided on its backend for a client with a further address, and ingress on that client, also if it is
// masqueraded.
func TestFurtherAddressesToServices(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		l.further = map[string][]netip.Addr{"a": furtherIPs(11)}
		serviceLab(t, l)
		l.furtherAddresses("a", 11)
		l.apply()
		for i, own := range furtherIPs(11) { // the kernel needs time until a new IPv6 address is usable
			l.must(traffic.Flow{NS: l.pods["a"], From: own, To: netip.AddrPortFrom(podIPs(12)[i], 8080), Protocol: model.TCP}.Try(context.Background(), patience))
		}
		egress := isolate("a", model.Egress, accept(pods("b")))
		for _, c := range []struct {
			ingress            model.Peer
			pod, out, nodePort bool
		}{{pods("a"), true, false, true}, {pods("c"), false, false, false}} {
			l.apply(egress, isolate("b", model.Ingress, accept(c.ingress)))
			for i, f := range families {
				for _, own := range []netip.Addr{podIPs(11)[i], furtherIPs(11)[i]} {
					service, node := netip.MustParseAddr(f.service), netip.MustParseAddr(f.node)
					for to, want := range map[netip.AddrPort]bool{netip.AddrPortFrom(service, 80): c.pod, netip.AddrPortFrom(service, 81): c.out,
						netip.AddrPortFrom(node, 30080): c.nodePort} {
						limit := silence
						if want {
							limit = patience
						}
						err := traffic.Flow{NS: l.pods["a"], From: own, To: to, Protocol: model.TCP}.Try(context.Background(), limit)
						if want != (err == nil) {
							t.Errorf("from %s to %s, where %s may enter: %v, want it to pass: %t", own, to, c.ingress, err, want)
						}
					}
				}
			}
		}
	})
}
