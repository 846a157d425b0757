// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/corpus"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// embedded returns all cases of the corpus.
func embedded(t *testing.T) []corpus.Case {
	t.Helper()
	cases, err := corpus.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	return cases
}

// send sends cases of the corpus between the pods of an HNS in memory.
func send(t *testing.T, s simulated, w wire, cases []corpus.Case, budget time.Duration) Sent {
	t.Helper()
	p := newPair(t, s, w)
	c, err := p.sendCorpus(t.Context(), cases, budget)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// newPair returns the two pods of an HNS in memory, which send at once a second time.
func newPair(t *testing.T, s simulated, w wire) *pair {
	t.Helper()
	o, err := parse([]string{"--address", "10.1.0.20"}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	b, err := newBench(t.Context(), s.fake, o)
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{bench: b, wire: w}
	for i, end := range []*pod{&p.a, &p.b} {
		if *end, err = b.findPod(t.Context(), s.pods[i]); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// TestCorpusByPackets checks that the exchanged lists give every verdict of the corpus, on each HNS and under readings
// that differ in all points, and that nothing is left.
func TestCorpusByPackets(t *testing.T) {
	for _, v := range hns.Profiles() {
		for _, reading := range []hns.Reading{{}, {Default: hns.PerDirection, Tie: hns.BlockFirst, Host: hns.HostClosed, Set: hns.EmptyMatchesAll}} {
			s := simulate(t, v, reading)
			before := s.fake.Dump()
			cases, flows := embedded(t), 1000
			if testing.Short() {
				cases, flows = cases[:60], 100
			}
			c := send(t, s, s, cases, time.Hour)
			if c.Flows < flows || c.Lists < flows/10 || c.Differ+c.Late > 0 {
				t.Errorf("HNS %s read as %s: %+v", v, reading, c)
			}
			if after := s.fake.Dump(); after != before {
				t.Errorf("HNS %s: left behind:\n%s\nwas\n%s", v, after, before)
			}
		}
	}
}

// TestCorpusFindsBugs plants mistakes in HNS that only packets show.
func TestCorpusFindsBugs(t *testing.T) {
	for _, bug := range []hnstest.Bug{hnstest.BugLastWins, hnstest.BugDirections, hnstest.BugPortsIgnored} {
		s := simulate(t, hns.Server2022, hns.Reading{})
		s.fake.Plant(bug)
		if c := send(t, s, s, embedded(t)[:40], time.Hour); c.Differ == 0 || len(c.First) == 0 || !strings.Contains(c.First[0], "the packets say") {
			t.Errorf("%s: %d of %d flows differ: %.1q", bug, c.Differ, c.Flows, c.First)
		}
	}
}

// hesitant denies the first of two packets, as an HNS that applies lists late.
type hesitant struct {
	simulated
	asked *int
}

func (h hesitant) Send(ctx context.Context, from, to pod, p packet, wait time.Duration) (bool, error) {
	if *h.asked++; *h.asked < 20 && *h.asked%2 == 1 {
		return false, nil
	}
	return h.simulated.Send(ctx, from, to, p, wait)
}

// TestLateAndRefused checks flows that are right at the second packet, lists that HNS refuses, and a time that is up.
func TestLateAndRefused(t *testing.T) {
	cases := embedded(t)[:40]
	s := simulate(t, hns.Server2019, hns.Reading{})
	if c := send(t, s, hesitant{s, new(int)}, cases, time.Hour); c.Late == 0 || c.Differ > 0 || !strings.Contains(c.First[0], "right only after a second") {
		t.Errorf("%+v", c)
	}
	all := send(t, s, s, cases, time.Hour)
	writes := 0
	s.fake.Before(func(op, _ string) error {
		if op != "ModifyEndpoint" {
			return nil
		}
		if writes++; writes == 2 { // the first list of B
			return hns.NewError(op, hns.CodeInvalidPolicy, "planted")
		}
		return nil
	})
	if c := send(t, s, s, cases, time.Hour); c.Flows >= all.Flows || c.Flows+c.Left != all.Flows+all.Left || c.Differ > 0 || len(c.First) != 1 || !strings.Contains(c.First[0], "the list was refused (0x803B000D)") {
		t.Errorf("%+v, want %+v but for one list", c, all)
	}
	s.fake.Before(nil)
	if c := send(t, s, s, cases, 0); c.Flows != 0 || c.Left != all.Flows+all.Left || !strings.Contains(c.First[0], "was up after 0 of") {
		t.Errorf("%+v", c)
	}
}

// occupied cannot listen on one port.
type occupied struct{ simulated }

func (o occupied) Send(ctx context.Context, from, to pod, p packet, wait time.Duration) (bool, error) {
	if p.port == 80 {
		return false, errors.New("listen: in use")
	}
	return o.simulated.Send(ctx, from, to, p, wait)
}

// TestPortInUse checks that a port of another program leaves out its flows only.
func TestPortInUse(t *testing.T) {
	s, cases := simulate(t, hns.Server2022, hns.Reading{}), embedded(t)[:40]
	all := send(t, s, s, cases, time.Hour)
	c := send(t, s, occupied{s}, cases, time.Hour)
	if c.Flows == 0 || c.Flows >= all.Flows || c.Flows+c.Left != all.Flows+all.Left || c.Differ > 0 || !strings.Contains(c.First[0], "not sent: listen: in use") {
		t.Errorf("%+v, want %+v but for port 80", c, all)
	}
}

// TestExchange checks an exchanged list: prefixes keep their length and what they contain, sets get new names.
func TestExchange(t *testing.T) {
	m := exchange(netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("192.168.7.9"))
	list := []hns.ACL{{RemoteAddresses: "10.244.0.0/16,10.244.1.2,0.0.0.0/0,fd00::/64"}, {LocalAddresses: "isthmus-00-v4"}, {RemoteAddresses: "isthmus-01-v6"}}
	sets := map[string][]netip.Addr{"isthmus-00-v4": {netip.MustParseAddr("10.244.1.3")}, "isthmus-01-v6": {netip.MustParseAddr("fd00::1")}, "isthmus-02-v4": nil}
	got, err := translate(list, sets, m, 1)
	if err != nil {
		t.Fatal(err)
	}
	want := []hns.ACL{{RemoteAddresses: "192.168.0.0/16,192.168.7.9,0.0.0.0/0,fd00::/64"}, {LocalAddresses: "isthmus-conformance10-v4"}, {RemoteAddresses: "isthmus-conformance11-v6"}}
	if !acl.Equal(got.list, want) || len(got.sets) != 2 || got.sets[0].Values != "192.168.7.8" || got.sets[1].Values != "fd00::1" {
		t.Errorf("%+v", got)
	}
	if list[0].RemoteAddresses != "10.244.0.0/16,10.244.1.2,0.0.0.0/0,fd00::/64" {
		t.Error("the list itself was changed")
	}
	for _, bad := range [][]hns.ACL{{{LocalAddresses: "10.0.0.1"}}, {{RemoteAddresses: "10.0.0.1-10.0.0.9"}}, {{RemoteAddresses: "isthmus-02-v4"}}} {
		if got, err := translate(bad, sets, m, 0); err == nil {
			t.Errorf("%+v became %+v", bad, got)
		}
	}
}

// FuzzExchange checks that an exchange keeps which prefixes contain which addresses, and is its own inverse.
func FuzzExchange(f *testing.F) {
	f.Add([]byte{10, 244, 1, 2}, []byte{192, 168, 7, 9}, []byte{10, 244, 9, 9}, uint8(16))
	f.Fuzz(func(t *testing.T, from, to, other []byte, bits uint8) {
		a, ok1 := netip.AddrFromSlice(from)
		b, ok2 := netip.AddrFromSlice(to)
		c, ok3 := netip.AddrFromSlice(other)
		if !ok1 || !ok2 || !ok3 || !a.Is4() || !b.Is4() || !c.Is4() {
			return
		}
		m, p := exchange(a, b), netip.PrefixFrom(c, int(bits%33)).Masked()
		if m.address(a) != b || m.address(m.address(c)) != c {
			t.Errorf("%s for %s: %s becomes %s", a, b, c, m.address(c))
		}
		if q := m.prefix(p); q.Bits() != p.Bits() || q.Contains(b) != p.Contains(a) || q != q.Masked() {
			t.Errorf("%s for %s: %s becomes %s", a, b, p, q)
		}
	})
}

// TestSendings checks that the flows are such as two pods can send, with both verdicts and protocols.
func TestSendings(t *testing.T) {
	all, left := sendings(embedded(t), netip.MustParseAddr("10.1.0.10"), netip.MustParseAddr("10.1.0.11"), hns.Server2022)
	kinds := make(map[string]int)
	for _, s := range all {
		kinds[s.protocol.String()+" "+s.want.String()]++
	}
	if len(kinds) != 4 || left == 0 || slices.ContainsFunc(all, func(s sending) bool { return s.port == 0 || s.protocol != model.TCP && s.protocol != model.UDP }) {
		t.Errorf("%v, %d left", kinds, left)
	}
	t.Logf("%v, %d left", kinds, left)
}
