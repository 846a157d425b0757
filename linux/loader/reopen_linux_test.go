// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// A flow that opens again after it has expired takes no entry of another flow, also if its index
// names that entry.
func TestWrongIndexOfExpiredFlow(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		const timeout = time.Second
		c := newCrowd(t, 8, loader.Timeouts{Opening: timeout, TCP: time.Hour, Other: time.Hour, Closing: time.Hour})
		at := c.table(v6)
		c.open(0, v6, 1000)
		expired := at.flows()
		time.Sleep(timeout + 200*time.Millisecond)
		c.open(1, v6, 2000)
		if !c.known(1, v6, 2000) { // established, so it does not expire
			t.Fatal("an answer does not pass")
		}
		other := uint32(0)
		for key, i := range at.flows() {
			if _, same := expired[key]; !same {
				other = i
			}
		}
		before := at.entry(other)
		for key, own := range expired {
			if own == other || at.version(own) != at.version(other) {
				t.Fatalf("entries %d and %d have the versions %#x and %#x", own, other, at.version(own), at.version(other))
			}
			if err := at.index.Put([]byte(key), other); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // the first removes the index, the second stores the flow
			c.open(0, v6, 1000)
		}
		if !bytes.Equal(at.entry(other), before) {
			t.Errorf("the entry of another flow became\n%x, was\n%x", at.entry(other), before)
		}
		if !c.known(0, v6, 1000) || !c.known(1, v6, 2000) {
			t.Error("a flow is unknown")
		}
	})
}

// A program that finds an entry with too many holders leaves it alone, and decides the packet as
// one of an unknown flow. Otherwise the holders would change the generation.
func TestTooManyHolders(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		c := newCrowd(t, 8, forever)
		at := c.table(v6)
		c.open(0, v6, 1000)
		var entry uint32
		for _, entry = range at.flows() {
		}
		free := at.version(entry)
		for n, held := range []uint32{0, 1, 0xef, 0xf0, 0xf1, 0xfe} {
			slot := policymap.SlotWrite{Slot: bpfobj.PodSlot{Table: tableOut, Epoch: uint32(10 + n)}} // a program must hold the flow
			if err := c.path.WriteSlot(slot); err != nil {
				t.Fatal(err)
			}
			at.setVersion(entry, free+held)
			if got, want := c.known(0, v6, 1000), held < 0xf0; got != want {
				t.Errorf("with %#x holders an answer passes: %t, want %t", held, got, want)
			}
			if now := at.version(entry); now != free+held {
				t.Errorf("with %#x holders the version became %#x, was %#x", held, now, free+held)
			}
		}
	})
}

// A flow inherits nothing from the one that it evicts: here the state of a closed connection,
// after which it would expire soon.
func TestEvictedFlowLeavesNothing(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		const short = 100 * time.Millisecond
		b := newBench(t)
		path, err := loader.OpenSandboxWith(loader.Settings{Flows: 1, Timeouts: loader.Timeouts{Opening: time.Hour, TCP: time.Hour, Closing: short, Other: time.Hour}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { path.Close() })
		b.path = path
		b.under(tableOut)
		for _, s := range []struct {
			d     way
			flags string
		}{{out, "S"}, {in, "SA"}, {out, "A"}, {out, "RA"}} {
			src, dst := uint16(1000), uint16(80)
			if s.d == in {
				src, dst = dst, src
			}
			if pass, err := path.Run(b.pod, s.d, frame(s.d, ip(v6, s.d, layers.IPProtocolTCP), tcp(src, dst, s.flags))); err != nil || !pass {
				t.Fatalf("segment %s passes: %t, %v", s.flags, pass, err)
			}
		}
		b.expect(out, frame(out, ip(v6, out, layers.IPProtocolUDP), udp(2000, 53), payload), true, bpfobj.CountEgressAllow)
		for range 2 {
			b.expect(in, frame(in, ip(v6, in, layers.IPProtocolUDP), udp(53, 2000), payload), true, nothing)
			time.Sleep(3 * short)
		}
	})
}
