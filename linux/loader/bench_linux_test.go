// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

var (
	podMAC  = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	hostMAC = net.HardwareAddr{2, 0, 0, 0, 0, 2}
	pod4    = netip.MustParseAddr("10.1.0.11")
	peer4   = netip.MustParseAddr("10.1.0.12")
	pod6    = netip.MustParseAddr("fd01::b")
	peer6   = netip.MustParseAddr("fd01::c")
)

// bench is a pod with one table: ingress denies everything; egress allows TCP and UDP port 80
// to all addresses, and ICMP to none.
type bench struct {
	t    *testing.T
	path *loader.DataPath
	pod  bpfobj.PodEndpoint
	slot policymap.SlotWrite
}

// Table numbers: the lowest two bits are the verdicts of classes without a row.
const (
	tableWeb  = 1 << 2      // egress by row 2, ingress denied
	tableOpen = 2<<2 | 0b11 // both directions allowed
)

func newBench(t *testing.T) *bench {
	t.Helper()
	return newBenchWith(t, loader.DefaultSettings())
}

func newBenchWith(t *testing.T, s loader.Settings) *bench {
	t.Helper()
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	path, err := loader.OpenSandboxWith(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { path.Close() })
	b := &bench{t: t, path: path, pod: bpfobj.PodEndpoint{Ip4: pod4.As4(), Ip6: pod6.As16()}}
	copy(b.pod.Mac[:], podMAC)
	copy(b.pod.HostMac[:], hostMAC)
	index80tcp, _ := policymap.PortIndex(model.TCP, 80)
	index80udp, _ := policymap.PortIndex(model.UDP, 80)
	err = path.Execute(&policymap.Writes{
		Rows:     []policymap.RowWrite{{Index: 2, Row: policymap.Row{Allow: [16]uint64{1 << 1}}}},
		Tables:   []policymap.TableWrite{{Number: tableWeb}, {Number: tableOpen}},
		Verdicts: []policymap.VerdictWrite{{VerdictKey: policymap.VerdictKey{Table: tableWeb, Peer: policymap.PeerKey(model.World, model.Egress)}, VerdictRow: policymap.VerdictRow{Row: 2}}},
		Ports:    []policymap.PortWrite{{Index: index80tcp, Count: 1, Class: 1}, {Index: index80udp, Count: 1, Class: 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.under(tableWeb)
	return b
}

// under gives the pod a table and a new epoch.
func (b *bench) under(table uint32) {
	b.t.Helper()
	b.slot.Slot.Table = table
	b.slot.Slot.Epoch++
	if err := b.path.WriteSlot(b.slot); err != nil {
		b.t.Fatal(err)
	}
}

type way = model.Direction

const (
	out = model.Egress
	in  = model.Ingress
)

// expect runs a frame and checks its verdict and counter; -1 means that nothing is counted.
func (b *bench) expect(d way, frame []byte, pass bool, counter int) {
	b.t.Helper()
	b.expectFrom(d, loader.SandboxUplink, frame, pass, counter)
}

// expectFrom is expect; a frame to the pod arrives by the given device.
func (b *bench) expectFrom(d way, device int, frame []byte, pass bool, counter int) {
	b.t.Helper()
	before, err := b.path.Counters()
	if err != nil {
		b.t.Fatal(err)
	}
	got, err := b.path.RunFrom(b.pod, d, device, frame)
	if err != nil {
		b.t.Fatal(err)
	}
	if got != pass {
		b.t.Errorf("frame passes: %t, want %t", got, pass)
	}
	after, _ := b.path.Counters()
	for id := range after {
		want := before[id]
		if id == counter {
			want++
		}
		if after[id] != want {
			b.t.Errorf("counter %d went from %d to %d, want %d", id, before[id], after[id], want)
		}
	}
}

const nothing = -1

// frame builds a frame from the pod to its peer, or the reverse.
func frame(d way, ls ...gopacket.SerializableLayer) []byte {
	eth := &layers.Ethernet{SrcMAC: podMAC, DstMAC: hostMAC, EthernetType: layers.EthernetTypeIPv4}
	if d == in {
		eth.SrcMAC, eth.DstMAC = hostMAC, podMAC
	}
	if _, ok := ls[0].(*layers.IPv6); ok {
		eth.EthernetType = layers.EthernetTypeIPv6
	}
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true}
	if err := gopacket.SerializeLayers(buf, opts, append([]gopacket.SerializableLayer{eth}, ls...)...); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

func ip4(d way, proto layers.IPProtocol) *layers.IPv4 {
	ip := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: proto, SrcIP: pod4.AsSlice(), DstIP: peer4.AsSlice(), Id: 7}
	if d == in {
		ip.SrcIP, ip.DstIP = ip.DstIP, ip.SrcIP
	}
	return ip
}

func ip6(d way, proto layers.IPProtocol) *layers.IPv6 {
	ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: pod6.AsSlice(), DstIP: peer6.AsSlice()}
	if d == in {
		ip.SrcIP, ip.DstIP = ip.DstIP, ip.SrcIP
	}
	return ip
}

func ip(v6 bool, d way, proto layers.IPProtocol) gopacket.SerializableLayer {
	if v6 {
		return ip6(d, proto)
	}
	return ip4(d, proto)
}

func tcp(src, dst uint16, flags string) *layers.TCP {
	t := &layers.TCP{SrcPort: layers.TCPPort(src), DstPort: layers.TCPPort(dst), Window: 1000}
	for _, f := range flags {
		switch f {
		case 'S':
			t.SYN = true
		case 'A':
			t.ACK = true
		case 'F':
			t.FIN = true
		case 'R':
			t.RST = true
		}
	}
	return t
}

// tcpAt returns a segment with sequence numbers.
func tcpAt(src, dst uint16, flags string, seq, ack uint32) *layers.TCP {
	t := tcp(src, dst, flags)
	t.Seq, t.Ack = seq, ack
	return t
}

func udp(src, dst uint16) *layers.UDP {
	return &layers.UDP{SrcPort: layers.UDPPort(src), DstPort: layers.UDPPort(dst)}
}

var payload = gopacket.Payload("0123456789abcdef0123456789abcdef")

func bothFamilies(t *testing.T, f func(t *testing.T, v6 bool)) {
	t.Run("IPv4", func(t *testing.T) { f(t, false) })
	t.Run("IPv6", func(t *testing.T) { f(t, true) })
}
