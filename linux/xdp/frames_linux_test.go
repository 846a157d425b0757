// SPDX-License-Identifier: Apache-2.0

package xdp_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/linux/denymap"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/xdp"
)

var (
	here4  = netip.MustParseAddr("203.0.113.1")
	here6  = netip.MustParseAddr("2001:db8:1::1")
	denied = []string{"192.0.2.7", "198.51.100.0/24", "100.64.0.0/10", "2001:db8:2::7", "2001:db8:bad::/48", "2400::/12"}
	// exempt is an exempt address inside one of them.
	exempt = netip.MustParseAddr("198.51.100.9")
)

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
}

func sandbox(t *testing.T) *xdp.Filter {
	t.Helper()
	f, _ := sandboxWithPods(t)
	return f
}

func sandboxWithPods(t *testing.T) (*xdp.Filter, *loader.DataPath) {
	t.Helper()
	needsRoot(t)
	pods, err := loader.OpenSandbox()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pods.Close() })
	f, err := xdp.OpenSandbox(pods.Shared(), pods.Constants())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, pods
}

func denySet(t *testing.T, entries ...string) *model.DenySet {
	t.Helper()
	l := &model.DenyList{Name: "a"}
	for _, text := range entries {
		if a, err := netip.ParseAddr(text); err == nil {
			l.Entries = append(l.Entries, netip.PrefixFrom(a, a.BitLen()))
			continue
		}
		l.Entries = append(l.Entries, netip.MustParsePrefix(text))
	}
	return model.MakeDenySet(immutable.MakeMap(map[string]*model.DenyList{"a": l}))
}

func apply(t *testing.T, f *xdp.Filter, entries ...string) {
	t.Helper()
	if err := f.Apply(denymap.Layout(denySet(t, entries...), []netip.Addr{exempt})); err != nil {
		t.Fatal(err)
	}
}

// from builds a UDP frame from an address, with VLAN tags.
func from(src netip.Addr, tags ...uint16) []byte {
	eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}}
	ls := []gopacket.SerializableLayer{eth}
	next := &eth.EthernetType
	for i, id := range tags {
		*next = layers.EthernetTypeDot1Q
		if i == 0 && len(tags) > 1 {
			*next = layers.EthernetTypeQinQ
		}
		tag := &layers.Dot1Q{VLANIdentifier: id}
		ls, next = append(ls, tag), &tag.Type
	}
	if src.Is4() {
		*next = layers.EthernetTypeIPv4
		ls = append(ls, &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: src.AsSlice(), DstIP: here4.AsSlice()})
	} else {
		*next = layers.EthernetTypeIPv6
		ls = append(ls, &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: src.AsSlice(), DstIP: here6.AsSlice()})
	}
	ls = append(ls, &layers.UDP{SrcPort: 5000, DstPort: 53}, gopacket.Payload(bytes.Repeat([]byte{1}, 40)))
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, ls...); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

// expect runs a frame. A dropped frame must be counted once, for the right reason.
func expect(t *testing.T, f *xdp.Filter, what string, frame []byte, pass bool, counted xdp.Drops) {
	t.Helper()
	before, err := f.Drops()
	if err != nil {
		t.Fatal(err)
	}
	got, err := f.Run(frame)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	after, err := f.Drops()
	if err != nil {
		t.Fatal(err)
	}
	diff := xdp.Drops{Denied: [2]uint64{after.Denied[0] - before.Denied[0], after.Denied[1] - before.Denied[1]}, Malformed: after.Malformed - before.Malformed}
	if got != pass || diff != counted {
		t.Errorf("%s: passes %t and counts %+v, want %t %+v", what, got, diff, pass, counted)
	}
}

var (
	nothing   = xdp.Drops{}
	drop4     = xdp.Drops{Denied: [2]uint64{1, 0}}
	drop6     = xdp.Drops{Denied: [2]uint64{0, 1}}
	malformed = xdp.Drops{Malformed: 1}
)

func TestDeniedSources(t *testing.T) {
	f := sandbox(t)
	for _, src := range []string{"192.0.2.7", "2001:db8:bad::1"} {
		expect(t, f, "no list, "+src, from(netip.MustParseAddr(src)), true, nothing)
	}
	apply(t, f, denied...)
	for _, c := range []struct {
		src  string
		pass bool
	}{
		{"192.0.2.7", false}, {"192.0.2.6", true}, {"192.0.2.8", true},
		{"198.51.100.0", false}, {"198.51.100.255", false}, {"198.51.101.0", true}, {"198.51.99.255", true},
		{"198.51.100.9", true}, // exempt
		{"100.64.0.0", false}, {"100.127.255.255", false}, {"100.128.0.0", true}, {"100.63.255.255", true},
		{"2001:db8:2::7", false}, {"2001:db8:2::8", true},
		{"2001:db8:bad::", false}, {"2001:db8:bad:ffff:ffff:ffff:ffff:ffff", false}, {"2001:db8:bae::", true},
		{"2400::1", false}, {"240f:ffff::1", false}, {"2410::1", true}, {"23ff::1", true},
	} {
		src := netip.MustParseAddr(c.src)
		want := nothing
		if !c.pass {
			want = map[bool]xdp.Drops{false: drop4, true: drop6}[src.Is6()]
		}
		for _, tags := range [][]uint16{nil, {7}, {7, 8}} {
			expect(t, f, c.src, from(src, tags...), c.pass, want)
		}
	}
	// Fragments with any offset, IP options and broken headers cannot bypass the list.
	bad := from(netip.MustParseAddr("192.0.2.7"))
	for name, change := range map[string]func(f []byte){
		"later fragment": func(f []byte) { f[14+6], f[14+7] = 0, 9 }, "first fragment": func(f []byte) { f[14+6] = 0x20 },
		"length of header": func(f []byte) { f[14] = 0x4f }, "version": func(f []byte) { f[14] = 0x55 }, "length": func(f []byte) { f[14+2], f[14+3] = 0, 0 },
	} {
		frame := slices.Clone(bad)
		change(frame)
		expect(t, f, name, frame, false, drop4)
	}
	apply(t, f)
	expect(t, f, "emptied list", from(netip.MustParseAddr("192.0.2.7")), true, nothing)
}

func TestMalformed(t *testing.T) {
	f := sandbox(t)
	good4, good6 := from(netip.MustParseAddr("192.0.2.1")), from(netip.MustParseAddr("2001:db8::1"))
	for _, c := range []struct {
		name  string
		frame []byte
		at    int
		value []byte
		pass  bool
	}{
		{"good", good4, 14, []byte{0x45}, true},
		{"version 5", good4, 14, []byte{0x55}, false},
		{"header of 16 bytes", good4, 14, []byte{0x44}, false},
		{"packet shorter than its header", good4, 16, []byte{0, 19}, false},
		{"good with IPv6", good6, 14, []byte{0x60}, true},
		{"version 4 in IPv6", good6, 14, []byte{0x40}, false},
		{"another protocol", good4, 12, []byte{0x88, 0xcc, 0}, true},
		{"ARP", good4, 12, []byte{8, 6, 0xff}, true},
	} {
		frame := slices.Clone(c.frame)
		copy(frame[c.at:], c.value)
		want := nothing
		if !c.pass {
			want = malformed
		}
		expect(t, f, c.name, frame, c.pass, want)
	}
	expect(t, f, "IPv4 cut off", good4[:14+19], false, malformed)
	expect(t, f, "IPv6 cut off", good6[:14+39], false, malformed)
	expect(t, f, "tag cut off", append(slices.Clone(good4[:12]), 0x81, 0, 0), true, nothing)
	expect(t, f, "three tags", from(netip.MustParseAddr("192.0.2.1"), 7, 8, 9), false, malformed)
	expect(t, f, "three tags and another protocol", append(slices.Clone(good4[:12]), 0x81, 0, 0, 0, 0x81, 0, 0, 0, 0x81, 0, 0, 0, 0x88, 0xcc), false, malformed)
	expect(t, f, "tag alone", append(slices.Clone(good4[:12]), 0x81, 0, 0, 7, 8, 0), false, malformed)
}

// Random variants of valid frames: the program drops exactly those whose source is listed, and
// those without a complete header.
func TestRandomFrames(t *testing.T) {
	f := sandbox(t)
	apply(t, f, denied...)
	set := denySet(t, denied...).WithExempt([]netip.Addr{exempt})
	r := rand.New(rand.NewPCG(1, 2))
	var seeds [][]byte
	for _, src := range []string{"192.0.2.7", "192.0.2.8", "198.51.100.9", "100.64.0.1", "2001:db8:2::7", "2001:db8:bad::1", "2001:db8::1", "2410::"} {
		seeds = append(seeds, from(netip.MustParseAddr(src)), from(netip.MustParseAddr(src), 7))
	}
	dropped, refused := 0, 0
	const count = 100_000
	for range count {
		frame := slices.Clone(seeds[r.IntN(len(seeds))])
		for range r.IntN(3) {
			if r.IntN(4) == 0 {
				frame = frame[:14+r.IntN(len(frame)-13)]
			} else {
				frame[12+r.IntN(min(len(frame)-12, 44))] = byte(r.Uint32())
			}
		}
		pass, err := f.Run(frame)
		if errors.Is(err, unix.EINVAL) {
			refused++ // by the kernel: too short for a test run
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if want := mayPass(frame, set); pass != want {
			t.Fatalf("%x: passes %t, want %t", frame, pass, want)
		}
		if !pass {
			dropped++
		}
	}
	t.Logf("frames=%d dropped=%d refused=%d", count, dropped, refused)
	if dropped < count/10 || dropped > count*9/10 {
		t.Errorf("%d of %d frames dropped: they are not what they should be", dropped, count)
	}
}

// mayPass parses a frame as the program should.
func mayPass(f []byte, set *model.DenySet) bool {
	at := 12
	for tags := 0; ; tags++ {
		kind := uint16(f[at])<<8 | uint16(f[at+1])
		rest := f[at+2:]
		switch {
		case kind == 0x0800 && len(rest) < 20, kind == 0x86dd && len(rest) < 40:
			return false
		case kind == 0x0800:
			header := int(rest[0]&15) * 4
			return !set.Denies(netip.AddrFrom4([4]byte(rest[12:16]))) && rest[0]>>4 == 4 && header >= 20 && int(rest[2])<<8|int(rest[3]) >= header
		case kind == 0x86dd:
			return !set.Denies(netip.AddrFrom16([16]byte(rest[8:24]))) && rest[0]>>4 == 6
		case kind != 0x8100 && kind != 0x88a8:
			return true
		case tags == 2:
			return false
		case len(rest) < 4:
			return true
		}
		at += 4
	}
}

// 100,000 entries are in force within seconds. A change of one entry costs little. Too many
// entries are rejected as a whole.
func TestManyEntries(t *testing.T) {
	f := sandbox(t)
	list := func(n int) *model.DenySet {
		l := &model.DenyList{Name: "a"}
		for i := range n {
			a := netip.AddrFrom4([4]byte{11, byte(i >> 13), byte(i >> 5), byte(i << 3)})
			if i%4 == 0 {
				a = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, byte(i >> 16), byte(i >> 8), byte(i), 15: 1})
			}
			bits := a.BitLen()
			if i%10 == 0 {
				bits -= 1 + i%3
			}
			l.Entries = append(l.Entries, netip.PrefixFrom(a, bits).Masked())
		}
		slices.SortFunc(l.Entries, model.ComparePrefixes)
		return model.MakeDenySet(immutable.MakeMap(map[string]*model.DenyList{"a": l}))
	}
	set := list(100_000)
	began := time.Now()
	if err := f.Apply(denymap.Layout(set, nil)); err != nil {
		t.Fatal(err)
	}
	n := f.Entries().Count()
	t.Logf("entries=%d seconds=%.2f", n[0]+n[1], time.Since(began).Seconds())
	if n[0]+n[1] != 100_000 {
		t.Errorf("%v entries in force", n)
	}
	for _, p := range []int{0, 1, 2, 50_001, 99_999} {
		a := set.Prefixes[p].Addr()
		expect(t, f, a.String(), from(a), false, map[bool]xdp.Drops{false: drop4, true: drop6}[a.Is6()])
	}
	more := list(100_001)
	began = time.Now()
	if err := f.Apply(denymap.Layout(more, nil)); err != nil {
		t.Fatal(err)
	}
	t.Logf("one more: %.3f s", time.Since(began).Seconds())
	if err := f.Apply(denymap.Layout(list(200_000), nil)); err == nil {
		t.Error("200,000 entries were taken")
	}
	expect(t, f, "after a refusal", from(set.Prefixes[1].Addr()), false, drop4)
	if err := f.Apply(denymap.NewEntries()); err != nil {
		t.Fatal(err)
	}
	expect(t, f, "after all were removed", from(set.Prefixes[1].Addr()), true, nothing)
}
