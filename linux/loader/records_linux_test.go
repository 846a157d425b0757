// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// A packet may wait in the host stack, as a fragment, until another CPU writes its record again for another packet of the pod. A
// packet that policy denies does not pass meanwhile, and the other packet opens no flow, by which its destination could answer.
func TestRecordIsWrittenAgain(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		datagram := func(d way, src, dst uint16) []byte {
			return frame(d, ip(v6, d, layers.IPProtocolUDP), udp(src, dst), payload)
		}
		b := newBench(t)
		b.expect(out, datagram(out, 1000, 80), true, bpfobj.CountEgressAllow)
		r := &rewriting{b: b, reader: replayer(t, b), writer: replayer(t, b)}
		defer r.begin.Store(-1)
		waits, again, answer := datagram(out, 1000, 80), datagram(out, 1000, 81), datagram(in, 81, 1000)
		denied, self := datagram(out, 1000, 81), toItself(v6)
		go r.write()
		for i := range 300 {
			r.round(waits, again, 200)
			o, err := r.reader.Run(loader.AtToPod, loader.Replayed{Ifindex: loader.SandboxInterface, Ingress: loader.SandboxUplink, Frame: answer})
			if err != nil {
				t.Fatal(err)
			}
			if o.Passed {
				t.Fatalf("round %d: the destination of a denied packet may send to the pod", i)
			}
			if r.round(denied, self, 1) > 0 {
				t.Fatalf("round %d: a denied packet passes", i)
			}
		}
	})
}

// A record belongs to the CPU that writes it, however long that takes: one that a hypervisor stops meanwhile. The packet of
// another CPU that should write it has no record.
func TestRecordOfAnotherCPU(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		const owned = 1 // RECORD_OWNED
		b := newBench(t)
		first, second := frame(out, ip(v6, out, layers.IPProtocolUDP), udp(1000, 80), payload), frame(out, ip(v6, out, layers.IPProtocolUDP), udp(1001, 80), payload)
		b.expect(out, first, true, bpfobj.CountEgressAllow)
		mark, err := b.path.MarkOf(first)
		if err := errors.Join(err, b.path.ChangeMark(mark, owned), b.path.AdvanceRecords(65535)); err != nil {
			t.Fatal(err)
		}
		b.expect(out, second, false, bpfobj.DropUnmarked)
		b.expect(out, second, true, bpfobj.CountEgressAllow) // the next record is free
	})
}

// A mark names another record only after as many rounds as its bits can count: a packet may wait in the host stack for a minute, as
// a fragment. Marks of foreign interfaces do not use the bits of other plugins.
func TestMarksOfRounds(t *testing.T) {
	const counting, others = 0x3ff, 0x2080 // MARK_ROUND, MARK_OF_OTHERS
	for foreign, rounds := range map[bool]int{false: 1 << 10, true: 1 << 9} {
		s := loader.DefaultSettings()
		s.Foreign = foreign
		b := newBenchWith(t, s)
		packet := frame(out, ip(false, out, layers.IPProtocolUDP), udp(1000, 80), payload)
		b.expect(out, packet, true, bpfobj.CountEgressAllow)
		seen := make(map[uint32]int)
		for i := range rounds {
			mark, err := b.path.MarkOf(packet)
			if err := errors.Join(err, b.path.AdvanceRecords(65536)); err != nil {
				t.Fatal(err)
			}
			if foreign && mark&others != 0 {
				t.Fatalf("round %d: mark %#x has bits of other plugins", i, mark)
			}
			if before, ok := seen[mark&counting]; ok {
				t.Fatalf("foreign %t: round %d counts as round %d: mark %#x", foreign, i, before, mark)
			}
			seen[mark&counting] = i
		}
	}
}

// rewriting sends packets of a pod from two CPUs: one waits in the host stack, while the other writes its record again.
type rewriting struct {
	b              *bench
	reader, writer *loader.Replayer
	again          []byte
	begin, end     atomic.Int64 // the rounds that the writer may begin, and has ended; -1 stops it
}

// write runs the packet of each round.
func (r *rewriting) write() {
	for n := int64(1); ; n++ {
		for r.begin.Load() < n {
			if r.begin.Load() < 0 {
				return
			}
			runtime.Gosched()
		}
		for range n % 256 { // so that the moment differs
			r.begin.Load()
		}
		if _, err := r.writer.Run(loader.AtFromPod, loader.Replayed{Ifindex: loader.SandboxInterface, Frame: r.again}); err != nil {
			r.b.t.Error(err)
		}
		r.end.Store(n)
	}
}

// round stores a record of the packet that waits, and lets it reach FORWARD until the writer has given its record to another packet,
// as many times without a pause as times says. Returns how often it passed at the last of these times.
func (r *rewriting) round(waits, again []byte, times uint32) (passed int) {
	r.b.t.Helper()
	o, err := r.reader.Run(loader.AtFromPod, loader.Replayed{Ifindex: loader.SandboxInterface, Frame: waits})
	if err == nil {
		err = r.reader.SkipRecords()
	}
	r.again = again
	n := r.begin.Add(1)
	for done := false; !done && err == nil; {
		done = r.end.Load() == n
		var at loader.Outcome
		at, err = r.reader.Run(loader.AtForward, loader.Replayed{Ifindex: loader.SandboxInterface, Ingress: loader.SandboxInterface, Mark: o.Mark, Frame: waits, Times: times})
		if at.Passed {
			passed++
		}
	}
	if err == nil {
		err = r.reader.SkipRecords() // nothing shares a record
	}
	if err != nil {
		r.b.t.Fatal(err)
	}
	return passed
}

func replayer(t *testing.T, b *bench) *loader.Replayer {
	t.Helper()
	r, err := b.path.Replay()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// toItself is a datagram of the pod to its own address.
func toItself(v6 bool) []byte {
	if v6 {
		h := ip6(out, layers.IPProtocolUDP)
		h.DstIP = h.SrcIP
		return frame(out, h, udp(2000, 80), payload)
	}
	h := ip4(out, layers.IPProtocolUDP)
	h.DstIP = h.SrcIP
	return frame(out, h, udp(2000, 80), payload)
}
