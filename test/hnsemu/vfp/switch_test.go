// SPDX-License-Identifier: Apache-2.0

package vfp_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// collector is a device that records frames.
type collector struct{ frames [][]byte }

func (c *collector) Write(frame []byte) (int, error) {
	c.frames = append(c.frames, slices.Clone(frame))
	return len(frame), nil
}

func (*collector) Close() error { return nil }

// bench is a switch with the host's port and those of two pods, a and b; b has
// rules, a has none.
type bench struct {
	t       *testing.T
	sw      *vfp.Switch
	devices map[string]*collector
	specs   []vfp.Spec
	now     time.Time
	traces  []vfp.Trace
}

var (
	hostAddr = netip.MustParseAddr("10.0.0.2")
	aAddr    = netip.MustParseAddr("10.0.0.3")
	bAddr    = netip.MustParseAddr("10.0.0.4")
	far      = netip.MustParseAddr("203.0.113.9")
)

func newBench(t *testing.T, o vfp.Options, acls ...hns.ACL) *bench {
	t.Helper()
	b := &bench{t: t, devices: make(map[string]*collector), now: time.Unix(1e9, 0)}
	o.Now = func() time.Time { return b.now }
	b.sw = vfp.New(vfp.Config{Options: o, Node: []netip.Addr{nodeAddr, nodeAddr6}, Trace: func(t vfp.Trace) { b.traces = append(b.traces, t) },
		Open: func(s vfp.Spec) (vfp.Device, error) {
			b.devices[s.ID] = &collector{}
			return b.devices[s.ID], nil
		}})
	for i, a := range []netip.Addr{hostAddr, aAddr, bAddr} {
		b.specs = append(b.specs, vfp.Spec{ID: []string{"host", "a", "b"}[i], Name: []string{"host", "a", "b"}[i], Host: i == 0,
			MAC: net.HardwareAddr{2, 0, 0, 0, 0, byte(i)}, Addresses: []netip.Prefix{netip.PrefixFrom(a, 24)}, Rules: rules(t)})
	}
	b.program(acls...)
	return b
}

func rules(t *testing.T, acls ...hns.ACL) *hns.Rules {
	t.Helper()
	r, err := hns.ParseRules(acls, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// program replaces the rules of b.
func (b *bench) program(acls ...hns.ACL) {
	b.t.Helper()
	b.specs[2].Rules, b.specs[2].Revision, b.specs[2].ACLs = rules(b.t, acls...), hns.FormatACLs("", acls), acls
	if err := b.sw.Set(b.specs); err != nil {
		b.t.Fatal(err)
	}
}

// send passes a frame from a port to the switch. It returns the port that receives it, empty if it is dropped.
func (b *bench) send(from string, frame []byte) string {
	for _, d := range b.devices {
		d.frames = nil
	}
	b.sw.Frame(from, frame)
	for id, d := range b.devices {
		if len(d.frames) > 0 {
			return id
		}
	}
	return ""
}

func (b *bench) want(what, got, want string) {
	b.t.Helper()
	if got != want {
		b.t.Errorf("%s: came out at %q, want %q; %v", what, got, want, b.traces[max(0, len(b.traces)-2):])
	}
}

var (
	allowIn80 = hns.ACL{ID: "web", Protocols: "6", Action: hns.Allow, Direction: hns.In, RemoteAddresses: "10.0.0.3", LocalPorts: "80", RuleType: hns.Switch, Priority: 1000}
	blockIn   = hns.ACL{ID: "in", Protocols: "256", Action: hns.Block, Direction: hns.In, RuleType: hns.Switch, Priority: 2000}
	blockOut  = hns.ACL{ID: "out", Protocols: "256", Action: hns.Block, Direction: hns.Out, RuleType: hns.Switch, Priority: 2000}
)

func tcpFlow(port, source uint16) wire {
	return wire{src: aAddr, dst: bAddr, protocol: 6, srcPort: source, dstPort: port}
}

func TestState(t *testing.T) {
	b := newBench(t, vfp.Options{}, allowIn80, blockIn, blockOut)
	w := tcpFlow(80, 1000)
	b.want("an answer before its question", b.send("b", w.back().frame()), "")
	b.want("a question", b.send("a", w.frame()), "b")
	b.want("its answer", b.send("b", w.back().frame()), "a")
	b.want("another port", b.send("a", tcpFlow(81, 1000).frame()), "")
	b.want("another sender", b.send("host", wire{src: far, dst: bAddr, protocol: 6, srcPort: 1, dstPort: 80}.frame()), "")
	b.now = b.now.Add(239 * time.Second)
	b.want("an answer after 239 s", b.send("b", w.back().frame()), "a")
	b.now = b.now.Add(241 * time.Second)
	b.want("an answer after 241 s more", b.send("b", w.back().frame()), "")
	if got := strings.Join(b.sw.Counters("b"), "\n"); !strings.Contains(got, "1 In Allow: web") || !strings.Contains(got, "2 In Block: in") || !strings.Contains(got, "2 Out Allow: flow") {
		t.Errorf("counters:\n%s", got)
	}
	if last := b.traces[len(b.traces)-1]; last.By != "out" || last.Pass || last.Port != "b" {
		t.Errorf("the last trace is %s", last)
	}
}

// TestMatchedPackets: a rule matches the packets of its direction of the flows that it allows, or only the first of
// each. A write begins again.
func TestMatchedPackets(t *testing.T) {
	for countFlows, want := range map[bool]string{false: "web=4 in=2 out=0", true: "web=2 in=2 out=0"} {
		b := newBench(t, vfp.Options{CountFlows: countFlows, Change: vfp.FlowsDecidedAgain}, allowIn80, blockIn, blockOut)
		check := func(what, want string) {
			t.Helper()
			if got := b.matched(); got != want {
				t.Errorf("flows %t, %s: %s, want %s", countFlows, what, got, want)
			}
		}
		check("at first", "web=0 in=0 out=0")
		for _, source := range []uint16{1000, 1000, 1000, 1001} {
			b.want("a question", b.send("a", tcpFlow(80, source).frame()), "b")
			b.want("an answer", b.send("b", tcpFlow(80, source).back().frame()), "a")
		}
		b.want("another port", b.send("a", tcpFlow(81, 1000).frame()), "")
		b.want("another port again", b.send("a", tcpFlow(81, 1000).frame()), "")
		check("six packets in", want)
		b.program(blockIn, allowIn80)
		check("after a write", "in=0 web=0")
		b.want("a known flow", b.send("a", tcpFlow(80, 1000).frame()), "b")
		check("a flow of the earlier list", map[bool]string{false: "in=0 web=1", true: "in=0 web=0"}[countFlows])
	}
}

// matched returns what VFP shows for the IPv4 rules of b.
func (b *bench) matched() string {
	b.t.Helper()
	var texts []string
	for _, p := range b.sw.VFPPorts() {
		if p.Friendly != "B" {
			continue
		}
		groups, ok := b.sw.VFPRules(strings.ToLower(p.GUID))
		if !ok || len(groups) != 4 || len(groups[2].Rules) != 1 && groups[2].Rules[0].ACL.ID != "in" {
			b.t.Fatalf("groups of port %s: %v", p.GUID, groups)
		}
		for _, g := range groups[:2] {
			for _, r := range g.Rules {
				texts = append(texts, fmt.Sprintf("%s=%d", r.ACL.ID, r.Matched))
			}
		}
	}
	return strings.Join(texts, " ")
}

func TestForwarding(t *testing.T) {
	b := newBench(t, vfp.Options{})
	b.want("to an unknown address", b.send("a", wire{src: aAddr, dst: far, protocol: 17, srcPort: 1, dstPort: 2}.frame()), "host")
	b.want("from the host to an unknown address", b.send("host", wire{src: hostAddr, dst: far, protocol: 17, srcPort: 1, dstPort: 2}.frame()), "")
	b.want("to the host", b.send("a", wire{src: aAddr, dst: hostAddr, protocol: 17, srcPort: 1, dstPort: 2}.frame()), "host")
	w := tcpFlow(80, 1)
	b.want("to a pod", b.send("a", w.frame()), "b")
	if got := b.devices["b"].frames[0][:6]; got[5] != 2 {
		t.Errorf("arrived at the hardware address %x", got)
	}
	b.want("no packet", b.send("a", make([]byte, 40)), "")
	b.want("a header that is cut", b.send("a", w.frame()[:30]), "")
}

// TestChanges checks every ChangeReading.
func TestChanges(t *testing.T) {
	for _, c := range []struct {
		change              vfp.ChangeReading
		kept, keptReply     string // after a change that still allows the flow
		denied, deniedReply string // after one that does not
	}{
		{vfp.FlowsStay, "b", "a", "b", "a"},
		{vfp.FlowsDecidedAgain, "b", "a", "", ""},
		{vfp.FlowsForgotten, "b", "", "", ""},
	} {
		b := newBench(t, vfp.Options{Change: c.change}, allowIn80, blockIn, blockOut)
		w := tcpFlow(80, 1000)
		b.want("before", b.send("a", w.frame()), "b")
		other := allowIn80
		other.ID, other.Priority = "other", 900
		b.program(other, allowIn80, blockIn, blockOut)
		// The answer is the first packet: with state it passes, without state it needs a rule.
		b.want("answer after a change", b.send("b", w.back().frame()), c.keptReply)
		b.want("flow after a change", b.send("a", w.frame()), c.kept)
		b.program(blockIn, blockOut)
		b.want("answer after denial", b.send("b", w.back().frame()), c.deniedReply)
		b.want("flow after denial", b.send("a", w.frame()), c.denied)
	}
}

// icmpError returns the ICMP error of a router about a packet.
func icmpError(from netip.Addr, about wire) []byte {
	quoted := about.frame()[14:]
	w := wire{src: from, dst: about.src, protocol: 1}
	frame := w.frame()[:14+20]
	return append(append(frame, 3, 4, 0, 0, 0, 0, 0, 0), quoted...)
}

func TestICMPErrors(t *testing.T) {
	for _, drop := range []bool{false, true} {
		b := newBench(t, vfp.Options{DropICMPErrors: drop}, allowIn80, blockIn, blockOut)
		w := tcpFlow(80, 1000)
		b.want("a question", b.send("a", w.frame()), "b")
		want := "b"
		if drop {
			want = ""
		}
		b.want("an error about the answer", b.send("host", icmpError(far, w.back())), want)
		b.want("an error about nothing", b.send("host", icmpError(far, tcpFlow(80, 7).back())), "")
	}
}

// fragment makes the part of a packet that starts at an offset, in units of 8
// bytes.
func fragment(w wire, id, offset uint16, more bool) []byte {
	frame := w.frame()
	field := offset
	if more {
		field |= 0x2000
	}
	binary.BigEndian.PutUint16(frame[14+4:], id)
	binary.BigEndian.PutUint16(frame[14+6:], field)
	return frame
}

func TestFragments(t *testing.T) {
	b := newBench(t, vfp.Options{}, allowIn80, blockIn)
	w := tcpFlow(80, 1000)
	b.want("a later fragment of nothing", b.send("a", fragment(w, 1, 5, false)), "")
	b.want("a first fragment", b.send("a", fragment(w, 2, 0, true)), "b")
	b.want("its later fragment", b.send("a", fragment(w, 2, 5, false)), "b")
	b.want("a denied first fragment", b.send("a", fragment(tcpFlow(81, 1), 3, 0, true)), "")
	b.want("its later fragment", b.send("a", fragment(tcpFlow(81, 1), 3, 5, false)), "")
}

func TestNeighbours(t *testing.T) {
	b := newBench(t, vfp.Options{})
	ask := func(a netip.Addr) []byte {
		frame := make([]byte, 42)
		copy(frame[6:], []byte{2, 0, 0, 0, 0, 1})
		binary.BigEndian.PutUint16(frame[12:], 0x0806)
		copy(frame[14:], []byte{0, 1, 8, 0, 6, 4, 0, 1})
		copy(frame[22:], []byte{2, 0, 0, 0, 0, 1})
		copy(frame[28:], aAddr.AsSlice())
		copy(frame[38:], a.AsSlice())
		return frame
	}
	for address, mac := range map[netip.Addr]byte{bAddr: 2, hostAddr: 0, far: 0} {
		b.want("a question for "+address.String(), b.send("a", ask(address)), "a")
		if answer := b.devices["a"].frames; len(answer) != 1 || answer[0][27] != mac || netip.AddrFrom4([4]byte(answer[0][28:32])) != address {
			t.Errorf("%s: answered %x", address, answer)
		}
	}
	b.want("a question for itself", b.send("a", ask(aAddr)), "")
}

func TestBrokenRulesLetNothingPass(t *testing.T) {
	b := newBench(t, vfp.Options{})
	b.specs[2].Broken, b.specs[2].Revision = errors.New("tiers"), "x"
	if err := b.sw.Set(b.specs); err != nil {
		t.Fatal(err)
	}
	b.want("to a port with a rule of an unknown type", b.send("a", tcpFlow(80, 1).frame()), "")
	b.want("from it", b.send("b", tcpFlow(80, 1).back().frame()), "")
}

// FuzzFrame looks for frames that break the switch.
func FuzzFrame(f *testing.F) {
	w := tcpFlow(80, 1000)
	f.Add(w.frame())
	f.Add(icmpError(far, w.back()))
	f.Add(wire{src: netip.MustParseAddr("fd00::1"), dst: netip.MustParseAddr("fd00::2"), protocol: 44}.frame())
	f.Add(sealed(wire{src: netip.MustParseAddr("fd00::1"), dst: netip.MustParseAddr("2001:db8:1::1"), protocol: 17}))
	f.Fuzz(func(t *testing.T, frame []byte) {
		b := newBench(t, vfp.Options{}, allowIn80, blockIn)
		b.change(1, func(s *vfp.Spec) { s.NAT = []vfp.NAT{{}, {V6: true}} })
		b.sw.Frame("a", slices.Clone(frame))
		b.sw.Frame("host", frame)
	})
}

// BenchmarkSwitch is a packet of a known flow through two ports.
func BenchmarkSwitch(b *testing.B) {
	sw := vfp.New(vfp.Config{Open: func(vfp.Spec) (vfp.Device, error) { return discard{}, nil }})
	acls, _ := hns.ParseRules([]hns.ACL{allowIn80, blockIn}, nil)
	var specs []vfp.Spec
	for i, a := range []netip.Addr{aAddr, bAddr} {
		specs = append(specs, vfp.Spec{ID: []string{"a", "b"}[i], MAC: net.HardwareAddr{2, 0, 0, 0, 0, byte(i)},
			Addresses: []netip.Prefix{netip.PrefixFrom(a, 24)}, Rules: acls})
	}
	specs[0].Rules, _ = hns.ParseRules(nil, nil)
	if err := sw.Set(specs); err != nil {
		b.Fatal(err)
	}
	frame := tcpFlow(80, 1000).frame()
	b.ReportAllocs()
	for b.Loop() {
		sw.Frame("a", frame)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "packets/s")
}

type discard struct{}

func (discard) Write(frame []byte) (int, error) { return len(frame), nil }
func (discard) Close() error                    { return nil }
