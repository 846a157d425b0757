// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/events"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// takeEvents returns the events since the last call.
func takeEvents(t *testing.T, path *loader.DataPath) (all []events.Record) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // do not wait for more
	err := path.ReadEvents(ctx, func(records [][]byte) {
		for _, raw := range records {
			r, err := events.Decode(raw)
			if err != nil {
				t.Error(err)
			}
			all = append(all, r)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// emits runs a frame and checks that it causes exactly the wanted events. It also checks the
// fields that are equal for all events.
func (b *bench) emits(d way, frame []byte, want ...events.Record) {
	b.t.Helper()
	before := time.Now()
	if _, err := b.path.Run(b.pod, d, frame); err != nil {
		b.t.Fatal(err)
	}
	got := takeEvents(b.t, b.path)
	if len(got) != len(want) {
		b.t.Fatalf("%d events, want %d: %+v", len(got), len(want), got)
	}
	for i, r := range got {
		if r.Time <= 0 || time.Since(before) > time.Minute {
			b.t.Errorf("event at %s", r.Time)
		}
		r.Time = 0
		want[i].Direction = d
		if _, verdict := want[i].Verdict(); verdict {
			want[i].Table, want[i].Epoch = b.slot.Slot.Table, b.slot.Slot.Epoch
		} else {
			r.Table, r.Epoch = 0, 0 // depend on where the packet was dropped
		}
		if r != want[i] {
			b.t.Errorf("event\n%+v, want\n%+v", r, want[i])
		}
	}
}

// of returns the expected record of a flow between pod and peer.
func of(id int, v6 bool, d way, protocol model.Protocol, src, dst uint16) events.Record {
	r := events.Record{ID: id, Src: pod4, Dst: peer4, SrcPort: src, DstPort: dst, Protocol: protocol}
	if v6 {
		r.Src, r.Dst = pod6, peer6
	}
	if d == in {
		r.Src, r.Dst = r.Dst, r.Src
	}
	return r
}

func TestEventsOfFlows(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		b := newBench(t)
		seg := func(d way, src, dst uint16, flags string) []byte {
			return frame(d, ip(v6, d, layers.IPProtocolTCP), tcp(src, dst, flags))
		}
		// Not to a pod, so the verdict comes after DNAT.
		b.emits(out, seg(out, 1000, 80, "S"), of(bpfobj.CountEgressAllow, v6, out, model.TCP, 1000, 80))
		b.emits(out, seg(out, 1000, 80, "S")) // a retransmission
		b.emits(in, seg(in, 80, 1000, "SA"))
		b.emits(out, seg(out, 1000, 80, "A"))
		b.emits(in, seg(in, 80, 1000, "FA"))
		b.emits(out, seg(out, 1001, 81, "S"), of(bpfobj.CountEgressDeny, v6, out, model.TCP, 1001, 81))
		b.emits(in, seg(in, 1002, 80, "S"), of(bpfobj.CountIngressDeny, v6, in, model.TCP, 1002, 80))

		// To a pod: the verdict comes at once, by the class of the pod.
		peer := peer4
		if v6 {
			peer = peer6
		}
		err := b.path.Execute(&policymap.Writes{Peers: []policymap.PeerWrite{{Addr: peer, Class: 7, Pod: true}},
			Verdicts: []policymap.VerdictWrite{{VerdictKey: policymap.VerdictKey{Table: tableWeb, Peer: policymap.PeerKey(7, out)}, VerdictRow: policymap.VerdictRow{Row: policymap.RowAllow}}}})
		if err != nil {
			t.Fatal(err)
		}
		udpFrame := frame(out, ip(v6, out, layers.IPProtocolUDP), udp(2000, 53), payload)
		want := of(bpfobj.CountEgressAllow, v6, out, model.UDP, 2000, 53)
		want.Class = 7
		b.emits(out, udpFrame, want)
		b.emits(out, udpFrame)

		b.under(policymap.DenyAll)
		b.emits(out, udpFrame, of(bpfobj.DropRevoked, v6, out, model.UDP, 2000, 53))
	})
}

func TestEventsOfDrops(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		b := newBench(t)
		b.under(tableOpen)
		forged4, forged6 := ip4(out, layers.IPProtocolUDP), ip6(out, layers.IPProtocolUDP)
		forged4.SrcIP, forged6.SrcIP = net.IP{10, 1, 0, 99}, net.ParseIP("fd01::99")
		f, src := frame(out, forged4, udp(1, 2), payload), netip.MustParseAddr("10.1.0.99")
		if v6 {
			f, src = frame(out, forged6, udp(1, 2), payload), netip.MustParseAddr("fd01::99")
		}
		spoofed := of(bpfobj.DropSpoofed, v6, out, model.UDP, 1, 2)
		spoofed.Src = src
		b.emits(out, f, spoofed)

		good := frame(out, ip(v6, out, layers.IPProtocolUDP), udp(1, 2), payload)
		kind := uint16(layers.EthernetTypeIPv4)
		if v6 {
			kind = uint16(layers.EthernetTypeIPv6)
		}
		foreign := append([]byte(nil), good...)
		foreign[6] ^= 4 // source MAC
		b.emits(out, foreign, events.Record{ID: bpfobj.DropSpoofed, Detail: kind})
		b.emits(in, frame(in, ip(v6, in, layers.IPProtocolTCP)), of(bpfobj.DropMalformed, v6, in, model.TCP, 0, 0))

		other := append([]byte(nil), good...)
		other[12], other[13] = 0x88, 0xcc // LLDP
		b.emits(out, other, events.Record{ID: bpfobj.DropNotIP, Detail: 0x88cc})
	})
	b := newBench(t)
	later := ip4(out, layers.IPProtocolUDP)
	later.FragOffset = 5
	b.emits(out, frame(out, later, payload), of(bpfobj.DropFragment, false, out, model.UDP, 0, 0))

	advertisement := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeRouterAdvertisement, 0)}
	router := of(bpfobj.DropNeighbour, true, out, model.ICMPv6, 0, 0)
	router.Detail = layers.ICMPv6TypeRouterAdvertisement
	toAll := ip6(out, layers.IPProtocolICMPv6)
	toAll.HopLimit, toAll.SrcIP, toAll.DstIP = 255, net.ParseIP("fe80::ff:fe00:1"), net.ParseIP("ff02::1")
	router.Src, router.Dst = netip.MustParseAddr("fe80::ff:fe00:1"), netip.MustParseAddr("ff02::1")
	b.emits(out, frame(out, toAll, advertisement, payload), router)

	echo := frame(out, ip4(out, layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: 9})
	denied := of(bpfobj.CountEgressDeny, false, out, model.ICMP, 9, 9)
	denied.Detail = layers.ICMPv4TypeEchoRequest
	b.emits(out, echo, denied)

	if err := b.path.DropEndpoint(loader.SandboxInterface); err != nil {
		t.Fatal(err)
	}
	b.emits(out, echo, events.Record{ID: bpfobj.DropNoEndpoint, Slot: bpfobj.NoSlot, Detail: uint16(layers.EthernetTypeIPv4)})
}

// benchWith returns a bench whose programs emit events as e says.
func benchWith(t *testing.T, e loader.Events) *bench {
	b := newBench(t)
	path, err := loader.OpenSandboxWith(loader.Settings{Timeouts: loader.DefaultTimeouts(), Events: e})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { path.Close() })
	b.path = path
	b.under(tableOpen)
	return b
}

// syn opens a new flow with every port.
func syn(d way, port int) []byte {
	return frame(d, ip4(d, layers.IPProtocolTCP), tcp(uint16(port), 80, "S"))
}

func (b *bench) missed() (limited, lost uint64) {
	b.t.Helper()
	limited, lost, err := b.path.LostEvents()
	if err != nil {
		b.t.Fatal(err)
	}
	return limited, lost
}

func (b *bench) flood(d way, from, n int) {
	b.t.Helper()
	for i := range n {
		if _, err := b.path.Run(b.pod, d, syn(d, from+i)); err != nil {
			b.t.Fatal(err)
		}
	}
}

func TestEventsAreLimited(t *testing.T) {
	b := benchWith(t, loader.Events{Rate: 5, Burst: 20, Allowed: true})
	began := time.Now()
	b.flood(in, 1000, 100)
	// The budget grows by 5 per second meanwhile.
	most := 20 + 5*int(time.Since(began).Seconds()+1)
	if got := len(takeEvents(t, b.path)); got < 20 || got > most {
		t.Errorf("%d events of 100 flows, want 20 to %d", got, most)
	}
	limited, lost := b.missed()
	if limited < uint64(100-most) || limited > 80 || lost != 0 {
		t.Errorf("%d events limited and %d lost of 100", limited, lost)
	}
	// Denied packets and the other direction have their own budgets.
	b.under(policymap.DenyAll)
	b.emits(in, syn(in, 3000), of(bpfobj.CountIngressDeny, false, in, model.TCP, 3000, 80))
	b.under(tableOpen)
	b.emits(out, syn(out, 3001), of(bpfobj.CountEgressAllow, false, out, model.TCP, 3001, 80))
	// A flood of denied packets is counted, part of it causes events, and the ring loses
	// nothing.
	b.under(policymap.DenyAll)
	verdicts, err := b.path.Counters()
	if err != nil {
		t.Fatal(err)
	}
	before, _ := b.missed()
	b.flood(in, 5000, 100)
	got := len(takeEvents(t, b.path))
	after, _ := b.missed()
	if counted, err := b.path.Counters(); err != nil || counted[bpfobj.CountIngressDeny]-verdicts[bpfobj.CountIngressDeny] != 100 ||
		got == 0 || got+int(after-before) != 100 {
		t.Errorf("of 100 denied flows %d caused events and %d were limited (%v)", got, after-before, err)
	}
	b.under(tableOpen)
	// The budget refills.
	time.Sleep(2100 * time.Millisecond)
	b.flood(in, 4000, 10)
	if got := len(takeEvents(t, b.path)); got < 1 {
		t.Error("no event after a while")
	}
}

// A flood of denied packets to one pod hides none of the other direction, and none of other pods. It causes events again
// after a pause.
func TestFloodHidesNoOtherEvents(t *testing.T) {
	const pods = 40                                     // so many that some packets of a flood and of others are in one jiffy
	b := benchWith(t, loader.Events{Rate: 1, Burst: 5}) // slow machines reach the limit, too
	as := func(slot uint32) {
		b.pod.Slot, b.slot.Index = slot, slot
		b.under(policymap.DenyAll)
	}
	if err := b.path.Execute(&policymap.Writes{Peers: []policymap.PeerWrite{{Addr: peer4, Class: 7, Pod: true}}}); err != nil {
		t.Fatal(err)
	}
	denied := func(d way, slot uint32, id int) {
		want := of(id, false, d, model.TCP, 2000, 80)
		want.Slot, want.Class = slot, 7
		b.emits(d, syn(d, 2000), want)
	}
	for slot := range uint32(pods) {
		as(slot)
		b.flood(in, 1000, 6)
		takeEvents(t, b.path)
		b.flood(in, 1006, 1)
		denied(out, slot, bpfobj.CountEgressDeny)
		b.flood(in, 1007, 1)
		as(slot + pods)
		denied(in, slot+pods, bpfobj.CountIngressDeny)
	}
	as(0)
	b.flood(in, 2000, 10)
	takeEvents(t, b.path)
	time.Sleep(2100 * time.Millisecond)
	b.flood(in, 3000, 2)
	if got := len(takeEvents(t, b.path)); got == 0 {
		t.Error("no event of the flood after a pause")
	}
}

func TestEventsWithoutReader(t *testing.T) {
	b := benchWith(t, loader.Events{Rate: loader.MaxEventRate, Burst: loader.MaxEventBurst, Allowed: true})
	const flows = 6000 // the ring has room for 5461
	b.flood(in, 1000, flows)
	limited, lost := b.missed()
	if lost == 0 || limited != 0 {
		t.Errorf("%d events lost and %d limited, want some lost", lost, limited)
	}
	if got := takeEvents(t, b.path); len(got)+int(lost) != flows {
		t.Errorf("%d events read and %d lost of %d", len(got), lost, flows)
	}
	// A reader that returns finds new events.
	b.emits(in, syn(in, 60000), of(bpfobj.CountIngressAllow, false, in, model.TCP, 60000, 80))
}

func TestEventsThatAreNotWanted(t *testing.T) {
	b := benchWith(t, loader.Events{Rate: 20, Burst: 100})
	b.emits(in, syn(in, 1))
	b.under(policymap.DenyAll)
	b.emits(in, syn(in, 2), of(bpfobj.CountIngressDeny, false, in, model.TCP, 2, 80))
	b = benchWith(t, loader.Events{})
	b.emits(in, syn(in, 1))
	b.under(policymap.DenyAll)
	b.emits(in, syn(in, 2))
	if limited, lost := b.missed(); limited != 0 || lost != 0 {
		t.Errorf("%d events limited and %d lost, though none are wanted", limited, lost)
	}
}
