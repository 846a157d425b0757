// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

// Random frames, most of them corrupted variants of valid ones, meet a table that denies
// everything. Only ARP, neighbour discovery and packets from a pod to itself pass, and each
// dropped frame is counted once. FRAMES=n runs more than 200,000.
func TestRandomFramesUnderDeny(t *testing.T) {
	b := newBench(t)
	b.under(0)
	count := 200_000
	if text := os.Getenv("FRAMES"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatalf("FRAMES=%s: %v", text, err)
		}
	}
	before, err := b.path.Counters()
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	seeds := seedFrames()
	passed, refused, dropped := 0, 0, uint64(0)
	for n := range count {
		d := []way{out, in}[n%2]
		f := corrupt(r, seeds[d][r.IntN(len(seeds[d]))])
		pass, err := b.path.Run(b.pod, d, f)
		if errors.Is(err, unix.EINVAL) {
			refused++ // by the kernel: test runs need complete IP headers
			continue
		}
		if err != nil {
			t.Fatalf("frame %x: %v", f, err)
		}
		if !pass {
			dropped++
			continue
		}
		passed++
		if !mayPass(f) {
			t.Fatalf("%s: this frame passes under a table that denies everything: %x", d, f)
		}
	}
	after, err := b.path.Counters()
	if err != nil {
		t.Fatal(err)
	}
	counted := uint64(0)
	for id := range after {
		counted += after[id] - before[id]
	}
	verdicts := [2][2]uint64{{after[0] - before[0], after[1] - before[1]}, {after[2] - before[2], after[3] - before[3]}}
	if of := b.counted(b.slot.Index); of != verdicts {
		t.Errorf("%v verdicts were counted for the pod, %v in all", of, verdicts)
	}
	t.Logf("frames=%d refused=%d passed=%d dropped=%d", count, refused, passed, dropped)
	if counted != dropped {
		t.Errorf("%d frames were dropped, %d were counted", dropped, counted)
	}
	if passed == 0 || dropped < uint64(count)/2 {
		t.Errorf("%d of %d frames passed: the frames are not what they should be", passed, count)
	}
}

// mayPass parses a frame to decide whether it may pass without a verdict of policy.
func mayPass(f []byte) bool {
	const arp, v4, v6 = 0x0806, 0x0800, 0x86dd
	switch binary.BigEndian.Uint16(f[12:]) {
	case arp:
		return true
	case v4:
		return bytes.Equal(f[26:30], f[30:34])
	case v6:
		return bytes.Equal(f[22:38], f[38:54]) || discovers(f)
	}
	return false
}

// discovers reports whether an IPv6 packet is neighbour discovery or multicast listener
// discovery.
func discovers(f []byte) bool {
	next, at := f[20], 54
	for next == 0 || next == 43 || next == 60 || next == 44 {
		length := 8
		if next != 44 {
			length += int(f[at+1]) * 8
		}
		next, at = f[at], at+length
	}
	return next == 58 && (f[at] >= 130 && f[at] <= 137 || f[at] == 143)
}

// seedFrames returns valid frames of every parsed kind, by direction.
func seedFrames() map[way][][]byte {
	all := make(map[way][][]byte)
	payload := gopacket.Payload(bytes.Repeat([]byte{1}, 40))
	for _, d := range []way{out, in} {
		add := func(ls ...gopacket.SerializableLayer) { all[d] = append(all[d], frame(d, ls...)) }
		add(ip4(d, layers.IPProtocolTCP), &layers.TCP{SrcPort: 1024, DstPort: 80, SYN: true})
		add(ip4(d, layers.IPProtocolUDP), &layers.UDP{SrcPort: 1024, DstPort: 53}, payload)
		add(ip4(d, layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 3})
		add(ip4(d, layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 1)},
			gopacket.Payload(frame(d, ip4(d, layers.IPProtocolTCP), &layers.TCP{SrcPort: 1024, DstPort: 80})[14:]))
		add(ip4(d, layers.IPProtocolSCTP), payload)
		fragment := ip4(d, layers.IPProtocolUDP)
		fragment.Flags, fragment.FragOffset = layers.IPv4MoreFragments, uint16(len(all[d])%2)
		add(fragment, payload)
		add(ip6(d, layers.IPProtocolTCP), &layers.TCP{SrcPort: 1024, DstPort: 80, ACK: true})
		add(ip6(d, layers.IPProtocolICMPv6), gopacket.Payload([]byte{135, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}))
		add(ip6(d, layers.IPProtocolIPv6HopByHop), gopacket.Payload([]byte{17, 0, 1, 4, 0, 0, 0, 0, 4, 0, 0, 53, 0, 16, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}))
		add(ip6(d, layers.IPProtocolIPv6Fragment), gopacket.Payload([]byte{17, 0, 0, 1, 0, 0, 0, 9, 4, 0, 0, 53, 0, 16, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}))
		arp := slices.Clone(all[d][0])
		arp[12], arp[13] = 8, 6
		all[d] = append(all[d], arp)
	}
	return all
}

// corrupt changes a few bytes, the length, or nothing.
func corrupt(r *rand.Rand, good []byte) []byte {
	f := slices.Clone(good)
	for range r.IntN(4) {
		switch r.IntN(8) {
		case 0: // truncate; the kernel rejects frames without an Ethernet header
			f = f[:14+r.IntN(len(f)-13)]
		case 1:
			f = append(f, make([]byte, r.IntN(300))...)
		case 2:
			for i := range f[14:] {
				f[14+i] = byte(r.Uint32())
			}
		default: // most parsed fields are in the first headers
			f[12+r.IntN(min(len(f)-12, 60))] = byte(r.Uint32())
		}
	}
	return f
}
