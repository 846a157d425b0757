// SPDX-License-Identifier: Apache-2.0

package xdp_test

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/events"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/linux/xdp"
)

var (
	pod4    = netip.MustParseAddr("10.1.0.11")
	pod6    = netip.MustParseAddr("fd01::b")
	remote4 = netip.MustParseAddr("192.0.2.1")
	remote6 = netip.MustParseAddr("2001:db8::1")
)

// tableWeb allows only TCP port 80 for ingress. The lowest bit of a table number is the verdict
// on unlisted classes.
const tableWeb, webRow, webClass = 1 << 2, 2, 1

// refusal is a pod whose packets arrive by an uplink.
type refusal struct {
	t      *testing.T
	filter *xdp.Filter
	pods   *loader.DataPath
}

func newRefusal(t *testing.T) *refusal {
	t.Helper()
	r := &refusal{t: t}
	r.filter, r.pods = sandboxWithPods(t)
	web, _ := policymap.PortIndex(model.TCP, 80)
	err := r.pods.Execute(&policymap.Writes{
		Rows:     []policymap.RowWrite{{Index: webRow, Row: policymap.Row{Allow: [16]uint64{1 << webClass}}}},
		Tables:   []policymap.TableWrite{{Number: tableWeb}},
		Verdicts: []policymap.VerdictWrite{{VerdictKey: policymap.VerdictKey{Table: tableWeb, Peer: policymap.PeerKey(model.World, model.Ingress)}, VerdictRow: policymap.VerdictRow{Row: webRow}}},
		Ports:    []policymap.PortWrite{{Index: web, Count: 1, Class: webClass}},
	})
	if err == nil {
		err = r.pods.WriteSlot(policymap.SlotWrite{Slot: bpfobj.PodSlot{Table: tableWeb, Epoch: 1}})
	}
	if err == nil {
		err = r.pods.PutEndpoint(loader.SandboxInterface, bpfobj.PodEndpoint{Ip4: pod4.As4(), Ip6: pod6.As16()})
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func serialize(ls ...gopacket.SerializableLayer) []byte {
	eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}
	if _, ok := ls[0].(*layers.IPv6); ok {
		eth.EthernetType = layers.EthernetTypeIPv6
	}
	buf := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, append([]gopacket.SerializableLayer{eth}, ls...)...)
	if err != nil {
		panic(err)
	}
	return buf.Bytes()
}

func ipTo(dst netip.Addr, p layers.IPProtocol) gopacket.SerializableLayer {
	if dst.Is4() {
		return &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: p, SrcIP: remote4.AsSlice(), DstIP: dst.AsSlice()}
	}
	return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: p, SrcIP: remote6.AsSlice(), DstIP: dst.AsSlice()}
}

func tcpTo(dst netip.Addr, port layers.TCPPort, change func(*layers.TCP)) []byte {
	tcp := &layers.TCP{SrcPort: 1024, DstPort: port, SYN: true}
	if change != nil {
		change(tcp)
	}
	return serialize(ipTo(dst, layers.IPProtocolTCP), tcp)
}

// expect runs a frame. A denied frame must be counted as a verdict, any other must not.
func (r *refusal) expect(what string, frame []byte, pass bool) {
	r.t.Helper()
	before, err := r.pods.Counters()
	if err != nil {
		r.t.Fatal(err)
	}
	counted, err := r.pods.VerdictCounts(0)
	if err != nil {
		r.t.Fatal(err)
	}
	expect(r.t, r.filter, what, frame, pass, nothing)
	if !pass {
		counted[model.Ingress][model.Deny]++
	}
	if now, _ := r.pods.VerdictCounts(0); now != counted {
		r.t.Errorf("%s: the pod has the verdicts %v, want %v", what, now, counted)
	}
	after, _ := r.pods.Counters()
	for id := range after {
		want := before[id]
		if !pass && id == bpfobj.CountIngressDeny {
			want++
		}
		if after[id] != want {
			r.t.Errorf("%s: counter %d went from %d to %d, want %d", what, id, before[id], after[id], want)
		}
	}
}

// takeEvents returns the events since the last call.
func (r *refusal) takeEvents() (all []events.Record) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // do not wait for more
	err := r.pods.ReadEvents(ctx, func(records [][]byte) {
		for _, raw := range records {
			e, err := events.Decode(raw)
			if err != nil {
				r.t.Error(err)
			}
			all = append(all, e)
		}
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

// A denied flow on an uplink causes the same event as in the pod's own program.
func TestRefusedFlowsAreReported(t *testing.T) {
	r := newRefusal(t)
	for _, dst := range []netip.Addr{pod4, pod6} {
		r.expect("allowed port", tcpTo(dst, 80, nil), true)
		if all := r.takeEvents(); len(all) != 0 {
			t.Errorf("events of packets that to_pod decides: %+v", all)
		}
		r.expect("denied port", tcpTo(dst, 81, nil), false)
		all := r.takeEvents()
		if len(all) != 1 || all[0].ID != bpfobj.CountIngressDeny || all[0].Dst != dst || all[0].DstPort != 81 || all[0].Table == 0 || all[0].Direction != model.Ingress {
			t.Errorf("event of a denied flow to %s: %+v", dst, all)
		}
	}
}

// The program drops packets that certainly open a flow that the pod's table denies. It leaves
// all others to the pod's own program.
func TestRefusedFlows(t *testing.T) {
	r := newRefusal(t)
	ack := func(tcp *layers.TCP) { tcp.ACK = true }
	for _, dst := range []netip.Addr{pod4, pod6} {
		other := map[bool]netip.Addr{true: netip.MustParseAddr("10.1.0.12"), false: netip.MustParseAddr("fd01::c")}[dst.Is4()]
		r.expect("allowed port", tcpTo(dst, 80, nil), true)
		r.expect("denied port", tcpTo(dst, 81, nil), false)
		r.expect("not a pod of this node", tcpTo(other, 81, nil), true)
		r.expect("answer to an opening", tcpTo(dst, 81, ack), true)
		r.expect("middle of a connection", tcpTo(dst, 81, func(tcp *layers.TCP) { tcp.SYN, tcp.ACK = false, true }), true)
		r.expect("UDP, which may be an answer", serialize(ipTo(dst, layers.IPProtocolUDP), &layers.UDP{SrcPort: 53, DstPort: 4000}), true)
		tagged := slices.Insert(tcpTo(dst, 81, nil), 12, 0x81, 0, 0, 7)
		r.expect("denied port in a VLAN", tagged, false)
	}
	echo4 := func(kind uint8) []byte {
		return serialize(ipTo(pod4, layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind, 0), Id: 3})
	}
	r.expect("echo request", echo4(8), false)
	r.expect("echo reply", echo4(0), true)
	r.expect("error", echo4(3), true)
	icmp6 := func(kind uint8) []byte {
		return serialize(ipTo(pod6, layers.IPProtocolICMPv6), gopacket.Payload([]byte{kind, 0, 0, 0, 0, 3, 0, 1}))
	}
	r.expect("echo request, IPv6", icmp6(128), false)
	r.expect("echo reply, IPv6", icmp6(129), true)
	r.expect("neighbour solicitation", icmp6(135), true)
	syn := tcpTo(pod6, 81, nil)[14+40:]
	hops := append([]byte{6, 0, 1, 4, 0, 0, 0, 0}, syn...)
	r.expect("behind an extension header", serialize(ipTo(pod6, layers.IPProtocolIPv6HopByHop), gopacket.Payload(hops)), false)

	options := ipTo(pod4, layers.IPProtocolTCP).(*layers.IPv4)
	options.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}
	r.expect("behind options", serialize(options, &layers.TCP{SrcPort: 1024, DstPort: 81, SYN: true}), false)
	first := tcpTo(pod4, 81, nil)
	first[14+6] = 0x20
	r.expect("first fragment", first, false)
	later := tcpTo(pod4, 81, nil)
	later[14+7] = 9
	r.expect("later fragment", later, true)
	later6 := serialize(ipTo(pod6, layers.IPProtocolIPv6Fragment), gopacket.Payload(append([]byte{6, 0, 0, 8, 0, 0, 0, 9}, bytes.Repeat([]byte{1}, 40)...)))
	r.expect("later fragment, IPv6", later6, true)

}

// Malformed headers are dropped only in packets to a pod; other packets are left to their
// receivers.
func TestMalformedTowardsPods(t *testing.T) {
	r := newRefusal(t)
	for _, dst := range []netip.Addr{pod4, pod6, netip.MustParseAddr("10.1.0.12"), netip.MustParseAddr("fd01::c")} {
		header := 14 + map[bool]int{true: 20, false: 40}[dst.Is4()]
		short := tcpTo(dst, 80, nil)[:header+19]
		offset := tcpTo(dst, 80, nil)
		offset[header+12] = 0x40 // 16 bytes of TCP header
		for what, frame := range map[string][]byte{"cut off": short, "data offset": offset} {
			local := dst == pod4 || dst == pod6
			want := nothing
			if local {
				want = malformed
			}
			expect(t, r.filter, what+" to "+dst.String(), frame, !local, want)
		}
	}
}
