// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// Tables that allow one direction for all addresses.
const (
	tableOut = 2<<2 | 0b10
	tableIn  = 2<<2 | 0b01
)

// segment is a TCP segment between a port of the pod and port 80 of its peer.
type segment struct {
	d       way
	flags   string
	pass    bool
	counter int
}

// TCP connections under policies for one direction.
func TestTCPSequences(t *testing.T) {
	const deniedIn, deniedOut, allowedIn, allowedOut = bpfobj.CountIngressDeny, bpfobj.CountEgressDeny, bpfobj.CountIngressAllow, bpfobj.CountEgressAllow
	opened := []segment{{out, "S", true, allowedOut}, {in, "SA", true, nothing}, {out, "A", true, nothing}}
	reached := []segment{{in, "S", true, allowedIn}, {out, "SA", true, nothing}, {in, "A", true, nothing}}
	cases := []struct {
		name  string
		table uint32
		begin []segment
		then  []segment
	}{
		{"answer to nothing", tableOut, nil, []segment{{in, "SA", false, deniedIn}, {in, "A", false, deniedIn}, {in, "R", false, deniedIn}}},
		{"found in the middle", tableOut, nil, []segment{{out, "A", true, allowedOut}, {in, "A", true, nothing}}},
		{"found in the middle by the peer", tableOut, nil, []segment{{in, "A", false, deniedIn}, {out, "A", true, allowedOut}, {in, "A", true, nothing}}},
		{"opened from both sides", tableOpen, nil, []segment{{out, "S", true, allowedOut}, {in, "S", true, allowedIn}, {out, "SA", true, nothing}, {in, "SA", true, nothing}}},
		{"opened from both sides, one denied", tableOut, nil, []segment{{out, "S", true, allowedOut}, {in, "S", false, deniedIn}, {in, "SA", true, nothing}}},
		{"half closed", tableOut, opened, []segment{{out, "FA", true, nothing}, {in, "A", true, nothing}, {in, "A", true, nothing}, {in, "FA", true, nothing}, {out, "A", true, nothing}}},
		{"half closed by the peer", tableOut, opened, []segment{{in, "FA", true, nothing}, {out, "A", true, nothing}, {out, "A", true, nothing}, {out, "FA", true, nothing}}},
		{"reset", tableOut, opened, []segment{{in, "RA", true, nothing}, {out, "A", true, nothing}, {out, "S", true, nothing}, {in, "SA", true, nothing}}},
		{"refused", tableOut, nil, []segment{{out, "S", true, allowedOut}, {in, "RA", true, nothing}, {out, "S", true, nothing}, {in, "RA", true, nothing}}},
		{"opened by the peer after its end", tableOut, opened, []segment{{out, "FA", true, nothing}, {in, "FA", true, nothing}, {in, "S", false, deniedIn}}},
		{"SYN with FIN", tableIn, nil, []segment{{out, "SF", false, deniedOut}, {in, "SF", true, allowedIn}}},
		{"SYN with RST", tableIn, nil, []segment{{out, "SR", false, deniedOut}}},
		{"SYN again with data", tableOut, opened, []segment{{out, "S", true, nothing}, {in, "SA", true, nothing}}},
		{"server", tableIn, reached, []segment{{in, "S", true, nothing}, {out, "SA", true, nothing}, {out, "FA", true, nothing}, {in, "RA", true, nothing}}},
		{"server that calls back", tableIn, reached, []segment{{out, "S", false, deniedOut}, {out, "A", true, nothing}}},
		{"without any flag", tableIn, nil, []segment{{out, "", false, deniedOut}, {in, "", true, allowedIn}}},
	}
	bothFamilies(t, func(t *testing.T, v6 bool) {
		b := newBench(t)
		for n, c := range cases {
			b.under(c.table)
			for i, s := range append(slices.Clone(c.begin), c.then...) {
				src, dst := uint16(1000+n), uint16(80)
				if s.d == in {
					src, dst = dst, src
				}
				b.expect(s.d, frame(s.d, ip(v6, s.d, layers.IPProtocolTCP), tcp(src, dst, s.flags)), s.pass, s.counter)
				if t.Failed() {
					t.Fatalf("%s: at segment %d, %s %q", c.name, i, s.d, s.flags)
				}
			}
		}
	})
}

// Each state of a flow has its own timeout. If one of them is short, only the flows in that
// state expire.
func TestTimeoutsByState(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	const short = 100 * time.Millisecond
	states := []string{"opening", "established TCP", "closing", "answered UDP"}
	for i, state := range states {
		t.Run(state, func(t *testing.T) {
			limits := [4]time.Duration{time.Hour, time.Hour, time.Hour, time.Hour}
			limits[i] = short
			b := newBench(t)
			b.path.Close()
			path, err := loader.OpenSandboxWith(loader.Settings{Timeouts: loader.Timeouts{Opening: limits[0], TCP: limits[1], Closing: limits[2], Other: limits[3]}})
			if err != nil {
				t.Fatal(err)
			}
			b.path = path
			t.Cleanup(func() { path.Close() })
			b.under(tableOut)
			bring := bringer{b}
			for k := range states {
				bring.to(k, uint16(1000+k))
			}
			time.Sleep(3 * short)
			for k, other := range states {
				if other != state {
					bring.answer(k, uint16(1000+k), true)
				}
			}
			bring.answer(i, uint16(1000+i), false)
		})
	}
}

// bringer brings IPv4 flows into states, by their index in TestTimeoutsByState.
type bringer struct{ b *bench }

func (f bringer) segment(d way, port uint16, flags string, pass bool, counter int) {
	f.b.t.Helper()
	src, dst := port, uint16(80)
	if d == in {
		src, dst = dst, src
	}
	f.b.expect(d, frame(d, ip4(d, layers.IPProtocolTCP), tcp(src, dst, flags)), pass, counter)
}

func (f bringer) to(state int, port uint16) {
	f.b.t.Helper()
	const opening, established, closing, answered = 0, 1, 2, 3
	if state == answered {
		f.b.expect(out, frame(out, ip4(out, layers.IPProtocolUDP), udp(port, 80), payload), true, bpfobj.CountEgressAllow)
		f.b.expect(in, frame(in, ip4(in, layers.IPProtocolUDP), udp(80, port), payload), true, nothing)
		return
	}
	f.segment(out, port, "S", true, bpfobj.CountEgressAllow)
	if state == opening {
		return
	}
	f.segment(in, port, "SA", true, nothing)
	f.segment(out, port, "A", true, nothing)
	if state == closing {
		f.at(out, port, "FA", 101, 201)
		f.at(in, port, "FA", 201, 102)
		f.at(out, port, "A", 102, 202)
	}
}

// at sends a segment with sequence numbers, which must pass.
func (f bringer) at(d way, port uint16, flags string, seq, ack uint32) {
	f.b.t.Helper()
	src, dst := port, uint16(80)
	if d == in {
		src, dst = dst, src
	}
	f.b.expect(d, frame(d, ip4(d, layers.IPProtocolTCP), tcpAt(src, dst, flags, seq, ack)), true, nothing)
}

// A connection that one end has closed continues, and neither a forged reset nor a forged FIN
// ends it. A closed connection expires soon.
func TestClosing(t *testing.T) {
	const short = 100 * time.Millisecond
	// Sequence numbers: the pod has sent up to 101 and acknowledged up to 201.
	cases := []struct {
		name  string
		known bool
		end   func(f bringer, port uint16)
	}{
		{"half closed by the pod", true, func(f bringer, port uint16) {
			f.at(out, port, "FA", 101, 201)
			f.at(in, port, "A", 201, 102)
		}},
		{"half closed by the peer", true, func(f bringer, port uint16) {
			f.at(in, port, "FA", 201, 101)
			f.at(out, port, "A", 101, 202)
		}},
		{"FIN of the pod, forged FIN of the peer", true, func(f bringer, port uint16) {
			f.at(out, port, "FA", 101, 201)
			f.at(in, port, "FA", 99201, 102)
			f.at(out, port, "A", 102, 201)
		}},
		{"forged reset", true, func(f bringer, port uint16) { f.at(in, port, "R", 99201, 0) }},
		{"reset behind the window", true, func(f bringer, port uint16) { f.at(in, port, "RA", 200, 101) }},
		{"reset by the peer", false, func(f bringer, port uint16) { f.at(in, port, "R", 201, 0) }},
		{"reset by the pod", false, func(f bringer, port uint16) { f.at(out, port, "RA", 101, 201) }},
		{"closed by both", false, func(f bringer, port uint16) {
			f.at(in, port, "FA", 201, 101)
			f.at(out, port, "FA", 101, 202)
			f.at(in, port, "A", 202, 102)
		}},
	}
	b := newBench(t)
	b.path.Close()
	path, err := loader.OpenSandboxWith(loader.Settings{Timeouts: loader.Timeouts{Opening: time.Hour, TCP: time.Hour, Closing: short, Other: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	b.path = path
	t.Cleanup(func() { path.Close() })
	b.under(tableOut)
	f := bringer{b}
	for i, c := range cases {
		port := uint16(2000 + i)
		f.segment(out, port, "S", true, bpfobj.CountEgressAllow)
		f.at(in, port, "SA", 200, 101)
		f.at(out, port, "A", 101, 201)
		c.end(f, port)
	}
	time.Sleep(3 * short)
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f.b.t = t
			counter := bpfobj.CountIngressDeny
			if c.known {
				counter = nothing
			}
			f.segment(in, uint16(2000+i), "A", c.known, counter)
		})
	}
}

// answer sends one more packet from the peer, which passes if the flow is known.
func (f bringer) answer(state int, port uint16, known bool) {
	f.b.t.Helper()
	counter := bpfobj.CountIngressDeny
	if known {
		counter = nothing
	}
	if state == 3 {
		f.b.expect(in, frame(in, ip4(in, layers.IPProtocolUDP), udp(80, port), payload), known, counter)
		return
	}
	f.segment(in, port, []string{"SA", "A", "A"}[state], known, counter)
	if f.b.t.Failed() {
		f.b.t.Fatalf("flow %d is known: want %t", state, known)
	}
}
