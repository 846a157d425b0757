// SPDX-License-Identifier: Apache-2.0

package vfp_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/windows/hns"
)

var (
	nodeAddr  = netip.MustParseAddr("192.0.2.9")
	nodeAddr6 = netip.MustParseAddr("2001:db8::9")
	vip       = netip.MustParseAddr("10.96.0.7")
)

// sum is the sum of RFC 1071, 0xFFFF over bytes with a correct checksum.
func sum(start uint32, b []byte) uint32 {
	for i := 0; i < len(b); i += 2 {
		start += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for start > 0xFFFF {
		start = start>>16 + start&0xFFFF
	}
	return start
}

// checksums sums up the IPv4 header, if there is one, and what follows the IP
// header; field is where the latter's checksum is.
func checksums(frame []byte) (header, transport uint32, field []byte) {
	ip := frame[14:]
	header, at, addresses, protocol := 0xFFFF, 40, ip[8:min(40, len(ip))], ip[6]
	if ip[0]>>4 == 4 {
		header, at, addresses, protocol = sum(0, ip[:20]), 20, ip[12:20], ip[9]
	}
	payload := ip[at:]
	field = payload[16:18]
	if protocol == 17 {
		field = payload[6:8]
	}
	return header, sum(sum(uint32(protocol)+uint32(len(payload)), addresses), payload), field
}

// sealed returns a frame with correct checksums.
func sealed(w wire) []byte {
	frame := w.frame()
	header, _, _ := checksums(frame)
	if frame[14]>>4 == 4 {
		binary.BigEndian.PutUint16(frame[14+10:], ^uint16(header))
	}
	_, transport, field := checksums(frame)
	binary.BigEndian.PutUint16(field, ^uint16(transport))
	return frame
}

// flow returns the ends of a frame, and whether its checksums are correct.
func flow(frame []byte) string {
	header, transport, _ := checksums(frame)
	ip := frame[14:]
	src, dst, ports := netip.Addr{}, netip.Addr{}, ip[20:]
	if ip[0]>>4 == 4 {
		src, dst = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
	} else {
		src, dst, ports = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40])), ip[40:]
	}
	text := fmt.Sprintf("%s > %s", netip.AddrPortFrom(src, binary.BigEndian.Uint16(ports)), netip.AddrPortFrom(dst, binary.BigEndian.Uint16(ports[2:])))
	if header != 0xFFFF || transport != 0xFFFF {
		text += fmt.Sprintf(" with checksums %04x %04x", header, transport)
	}
	return text
}

// carry sends a packet, and checks the port and the fields with which it arrives.
func (b *bench) carry(what, from string, w wire, at, want string) {
	b.t.Helper()
	got := b.send(from, sealed(w))
	text := ""
	if got != "" {
		text = flow(b.devices[got].frames[0])
	}
	if got != at || text != want {
		b.t.Errorf("%s: %s came out at %q, want %s at %q; %v", what, text, got, want, at, b.traces[max(0, len(b.traces)-2):])
	}
}

// change edits the port of a or b.
func (b *bench) change(port int, edit func(*vfp.Spec)) {
	b.t.Helper()
	edit(&b.specs[port])
	if err := b.sw.Set(b.specs); err != nil {
		b.t.Fatal(err)
	}
}

func connection(protocol uint8, src netip.Addr, sport uint16, dst netip.Addr, dport uint16) wire {
	return wire{src: src, dst: dst, protocol: protocol, srcPort: sport, dstPort: dport}
}

// TestOutBoundNAT: what leaves the cluster has the node's address and a port that
// no other flow has; answers come back to the pod.
func TestOutBoundNAT(t *testing.T) {
	for _, protocol := range []uint8{6, 17} {
		b := newBench(t, vfp.Options{})
		b.change(1, func(s *vfp.Spec) {
			s.NAT = []vfp.NAT{{Exceptions: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, {V6: true, Destinations: []netip.Prefix{netip.MustParsePrefix("2001:db8:1::/48")}}}
		})
		out := connection(protocol, aAddr, 5000, far, 80)
		b.carry("to the outside", "a", out, "host", "192.0.2.9:40000 > 203.0.113.9:80")
		b.carry("again", "a", out, "host", "192.0.2.9:40000 > 203.0.113.9:80")
		b.carry("another flow", "a", connection(protocol, aAddr, 5001, far, 80), "host", "192.0.2.9:40001 > 203.0.113.9:80")
		b.carry("the answer", "host", connection(protocol, far, 80, nodeAddr, 40000), "a", "203.0.113.9:80 > 10.0.0.3:5000")
		b.carry("from another", "host", connection(protocol, far, 81, nodeAddr, 40000), "", "")
		b.carry("to an exception", "a", connection(protocol, aAddr, 5000, netip.MustParseAddr("10.1.2.3"), 80), "host", "10.0.0.3:5000 > 10.1.2.3:80")
		b.carry("from a pod without NAT", "b", connection(protocol, bAddr, 5000, far, 80), "host", "10.0.0.4:5000 > 203.0.113.9:80")
		inside, outside := netip.MustParseAddr("fd00::3"), netip.MustParseAddr("2001:db8:1::1")
		b.carry("to a destination", "a", connection(protocol, inside, 5000, outside, 80), "host", "[2001:db8::9]:40002 > [2001:db8:1::1]:80")
		b.carry("to no destination", "a", connection(protocol, inside, 5000, netip.MustParseAddr("2001:db8:2::1"), 80), "host", "[fd00::3]:5000 > [2001:db8:2::1]:80")
		b.now = b.now.Add(241 * time.Second)
		b.carry("an answer too late", "host", connection(protocol, far, 80, nodeAddr, 40001), "", "")
	}
	b := newBench(t, vfp.Options{})
	b.change(1, func(s *vfp.Spec) { s.NAT = []vfp.NAT{{}} })
	ping := wire{src: aAddr, dst: far, protocol: 1, srcPort: 7}
	if b.want("a ping", b.send("a", ping.frame()), "host"); netip.AddrFrom4([4]byte(b.devices["host"].frames[0][26:30])) != aAddr {
		t.Error("ICMP is translated")
	}
}

// TestOutBoundNATAndAnswers checks both readings of OutBoundNAT for answers.
func TestOutBoundNATAndAnswers(t *testing.T) {
	for _, all := range []bool{false, true} {
		b := newBench(t, vfp.Options{NATAnswers: all})
		b.change(1, func(s *vfp.Spec) { s.NAT = []vfp.NAT{{}} })
		b.carry("a question", "host", connection(6, far, 80, aAddr, 5000), "a", "203.0.113.9:80 > 10.0.0.3:5000")
		want := "10.0.0.3:5000 > 203.0.113.9:80"
		if all {
			want = "192.0.2.9:40000 > 203.0.113.9:80"
		}
		b.carry("its answer", "a", connection(6, aAddr, 5000, far, 80), "host", want)
	}
}

// TestNoPortIsFree: there are 4096 flows of a protocol at a time.
func TestNoPortIsFree(t *testing.T) {
	b := newBench(t, vfp.Options{})
	b.change(1, func(s *vfp.Spec) { s.NAT = []vfp.NAT{{}} })
	for i := range vfp.LastNATPort - vfp.FirstNATPort + 1 {
		b.want("a flow", b.send("a", connection(6, aAddr, uint16(1000+i), far, 80).frame()), "host")
	}
	b.want("one more", b.send("a", connection(6, aAddr, 9999, far, 80).frame()), "")
	b.want("of another protocol", b.send("a", connection(17, aAddr, 9999, far, 80).frame()), "host")
	b.now = b.now.Add(241 * time.Second)
	b.want("when the others are idle", b.send("a", connection(6, aAddr, 9999, far, 80).frame()), "host")
}

// TestPortMapping: a port of the node leads to a pod, whose ACLs see who called.
func TestPortMapping(t *testing.T) {
	fromFar := allowIn80
	fromFar.RemoteAddresses = far.String()
	b := newBench(t, vfp.Options{}, fromFar, blockIn)
	b.change(2, func(s *vfp.Spec) {
		s.Mappings = []vfp.Mapping{{Protocol: 6, External: 8080, Internal: 80}, {Protocol: 6, VIP: vip, External: 8081, Internal: 80}}
	})
	b.carry("from outside", "host", connection(6, far, 999, nodeAddr, 8080), "b", "203.0.113.9:999 > 10.0.0.4:80")
	b.carry("its answer", "b", connection(6, bAddr, 80, far, 999), "host", "192.0.2.9:8080 > 203.0.113.9:999")
	b.carry("from who may not", "a", connection(6, aAddr, 999, nodeAddr, 8080), "", "")
	b.carry("another protocol", "host", connection(17, far, 999, nodeAddr, 8080), "", "")
	b.carry("an address of its own", "host", connection(6, far, 998, vip, 8081), "b", "203.0.113.9:998 > 10.0.0.4:80")
	b.carry("its port at the node", "host", connection(6, far, 997, nodeAddr, 8081), "", "")
	b.sw.SetBalancers([]vfp.Balancer{{Protocol: 6, External: 8080, Internal: 80, Backends: []netip.Addr{aAddr}}})
	b.carry("also a NodePort: no source says which is first", "host", connection(6, far, 996, nodeAddr, 8080), "b", "203.0.113.9:996 > 10.0.0.4:80")
}

// TestBalancers: a service leads to a pod. With DSR the sender's ACLs see that pod
// and the pod the sender; without, the service and the node.
func TestBalancers(t *testing.T) {
	for _, dsr := range []bool{true, false} {
		for _, first := range []bool{false, true} { // ACLs before load balancers
			for _, seen := range []netip.Addr{bAddr, vip} {
				b := newBench(t, vfp.Options{ACLSeesVIP: first})
				b.sw.SetBalancers([]vfp.Balancer{{VIP: vip, Protocol: 6, External: 8000, Internal: 80, Backends: []netip.Addr{bAddr}, DSR: dsr}})
				only := hns.ACL{ID: "only", Protocols: "6", Action: hns.Allow, Direction: hns.Out, RemoteAddresses: seen.String(), RuleType: hns.Switch, Priority: 1000}
				b.change(1, func(s *vfp.Spec) { s.Rules, s.Revision = rules(t, only, blockOut, blockInAll), "only" })
				name := fmt.Sprintf("DSR %t, ACLs first %t, allowed %s", dsr, first, seen)
				call := connection(6, aAddr, 5000, vip, 8000)
				if passes := seen == vip == (first || !dsr); !passes {
					b.carry(name, "a", call, "", "")
					continue
				}
				client := "10.0.0.3:5000"
				back := connection(6, bAddr, 80, aAddr, 5000)
				if !dsr {
					client, back = "192.0.2.9:40000", connection(6, bAddr, 80, nodeAddr, 40000)
				}
				b.carry(name, "a", call, "b", client+" > 10.0.0.4:80")
				b.carry(name+": answer", "b", back, "a", "10.96.0.7:8000 > 10.0.0.3:5000")
				b.carry(name+": another port", "a", connection(6, aAddr, 5000, vip, 8001), map[bool]string{true: "host"}[seen == vip], map[bool]string{true: "10.0.0.3:5000 > 10.96.0.7:8001"}[seen == vip])
			}
		}
	}
}

var blockInAll = hns.ACL{ID: "in-all", Protocols: "256", Action: hns.Block, Direction: hns.In, RuleType: hns.Switch, Priority: 2000}

// TestNodePorts: other hosts reach the pods of a service through a port of the node, and the pods see the node.
// All pods get connections at their addresses of that IP version, and a flow keeps its pod.
func TestNodePorts(t *testing.T) {
	b := newBench(t, vfp.Options{})
	b.sw.SetBalancers([]vfp.Balancer{{Protocol: 17, External: 30000, Internal: 53, Backends: []netip.Addr{aAddr, netip.MustParseAddr("fd00::3"), bAddr}, DSR: true}})
	reached := make(map[string]int)
	for port := range uint16(64) {
		w := connection(17, far, 1000+port, nodeAddr, 30000)
		at := b.send("host", sealed(w))
		reached[at]++
		if again := b.send("host", sealed(w)); again != at {
			t.Errorf("a flow went to %q and then to %q", at, again)
		}
	}
	if reached["a"] < 16 || reached["b"] < 16 || reached["a"]+reached["b"] != 64 {
		t.Errorf("reached %v", reached)
	}
	b.sw.SetBalancers(nil)
	b.carry("a service that is gone", "host", connection(17, far, 5, nodeAddr, 30000), "", "")
}

// TestShortPackets: a datagram of UDP may be shorter than the header of TCP, and
// what is shorter than its own header is not translated.
func TestShortPackets(t *testing.T) {
	b := newBench(t, vfp.Options{})
	b.change(1, func(s *vfp.Spec) { s.NAT = []vfp.NAT{{}} })
	frame := connection(17, aAddr, 5000, far, 80).frame()
	for size := 14 + 20; size <= len(frame); size++ {
		at, translated := b.send("a", slices.Clone(frame[:size])), false
		if at != "" {
			translated = netip.AddrFrom4([4]byte(b.devices[at].frames[0][26:30])) == nodeAddr
		}
		if want := size >= 14+20+8; translated != want {
			t.Errorf("of %d bytes: translated %t, want %t", size, translated, want)
		}
	}
}

// TestFragmentsAreNotTranslated: fragments pass unchanged.
func TestFragmentsAreNotTranslated(t *testing.T) {
	b := newBench(t, vfp.Options{})
	b.change(1, func(s *vfp.Spec) { s.NAT = []vfp.NAT{{}} })
	frame := fragment(connection(17, aAddr, 1, far, 2), 9, 0, true)
	b.want("a first fragment", b.send("a", slices.Clone(frame)), "host")
	if got := b.devices["host"].frames[0]; netip.AddrFrom4([4]byte(got[26:30])) != aAddr {
		t.Errorf("a fragment is translated: %x", got)
	}
}
