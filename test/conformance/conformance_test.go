// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/hnsemu/tracing"
	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/windows/etw"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// simulated is a network of an in-memory HNS under one reading, with two pods.
type simulated struct {
	fake    *hnstest.Fake
	reading hns.Reading
	pods    []string // namespaces
	events  *tracing.Host
	silent  bool // VFP writes no events
	// open6 lets every IPv6 packet pass; deaf decides neighbour discovery by ACLs; only4 leaves pods without IPv6.
	open6, deaf, only4 bool
	mtu                int // of pods; 1500 if it is 0
	// qos are the directions that QOS limits: what an endpoint sends, and what it receives.
	qos [2]bool
}

// Stream returns a gigabyte a second, or less if QOS limits one end.
func (s simulated) Stream(ctx context.Context, from, to pod, _ uint16, _ time.Duration) (float64, error) {
	rate := 1e9
	for i, end := range []pod{from, to} {
		list, err := s.fake.Endpoints(ctx, end.HostComputeNetwork)
		if err != nil {
			return 0, err
		}
		for _, e := range list {
			limited := slices.ContainsFunc(e.Policies, func(p hns.Policy) bool { return p.Is(hns.TypeQOS) })
			if e.Name == end.Name && limited && s.qos[i] {
				rate = 1.04 * qosLimit
			}
		}
	}
	return rate, nil
}

// Events implements wire.
func (s simulated) Events() (etw.Source, error) { return s.events.Source(eventSession()), nil }

// Adapter implements wire.
func (s simulated) Adapter(of pod) (adapter, error) {
	a := adapter{mtu: cmp.Or(s.mtu, 1500)}
	if !s.only4 {
		address := netip.MustParseAddr("fe80::1").As16()
		address[15] = of.ip.As4()[3]
		a.linkLocal = netip.AddrFrom16(address).WithZone("7")
	}
	return a, nil
}

// blind reports whether neighbour discovery between two pods fails.
func (s simulated) blind(from, to pod) (bool, error) {
	if !s.deaf {
		return false, nil
	}
	for _, way := range [][2]pod{{from, to}, {to, from}} {
		for d, ends := range map[hns.Direction][2]pod{hns.Out: way, hns.In: {way[1], way[0]}} {
			out, err := s.fake.Send(ends[0].Name, hns.Packet{Direction: d, Local: ends[0].ip, Remote: ends[1].ip, Protocol: 58}, s.reading)
			if err != nil || !out.Allow {
				return true, err
			}
		}
	}
	return false, nil
}

// decided writes the events of a packet at one port.
func (s simulated) decided(d hns.Direction, from, to pod, p packet, out hns.Outcome) {
	if !s.silent {
		s.events.Packet(vfp.Trace{Time: time.Now(), Port: to.Name, Direction: d, Src: from.ip, Dst: to.ip, Protocol: uint8(p.protocol), SrcPort: 40000, DstPort: p.port,
			Verdict: vfp.Verdict{Pass: out.Allow, Rule: out.Index >= 0, By: out.ID}})
	}
}

// Send sends the first packet of a flow through both ports.
func (s simulated) Send(_ context.Context, from, to pod, p packet, _ time.Duration) (bool, error) {
	if to.ip.Is6() {
		from.ip, to.ip = from.ip.WithZone(""), to.ip.WithZone("")
		if s.open6 {
			return true, nil
		}
		if blind, err := s.blind(from, to); blind || err != nil {
			return false, err
		}
	}
	out, err := s.fake.Send(from.Name, hns.Packet{Direction: hns.Out, Local: from.ip, Remote: to.ip, Protocol: uint8(p.protocol), Port: p.port, SourcePort: 40000}, s.reading)
	if err != nil {
		return false, err
	}
	if s.decided(hns.Out, from, to, p, out); !out.Allow {
		return false, nil
	}
	in, err := s.fake.Send(to.Name, hns.Packet{Direction: hns.In, Local: to.ip, Remote: from.ip, Protocol: uint8(p.protocol), Port: p.port, SourcePort: 40000}, s.reading)
	if err == nil {
		s.decided(hns.In, from, to, p, in)
	}
	return in.Allow, err
}

func simulate(t *testing.T, v hns.Version, reading hns.Reading) simulated {
	t.Helper()
	ctx, s := t.Context(), simulated{fake: hnstest.NewFake(v), reading: reading, events: tracing.New(tracing.English()), qos: [2]bool{true, false}}
	n, err := s.fake.CreateNetwork(ctx, hns.Network{Name: "isthmus", Type: hns.L2Bridge, Ipams: []hns.Ipam{{Subnets: []hns.Subnet{
		{IPAddressPrefix: "10.1.0.0/24", Routes: []hns.Route{{NextHop: "10.1.0.1", DestinationPrefix: "0.0.0.0/0"}}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, ip := range []string{"10.1.0.10", "10.1.0.11"} {
		nat := hns.MakePolicy(hns.TypeOutBoundNAT, hns.OutBoundNAT{Exceptions: []string{"10.0.0.0/8"}})
		e, err := s.fake.CreateEndpoint(ctx, hns.Endpoint{Name: "pod-" + ip, HostComputeNetwork: n.ID, Policies: []hns.Policy{nat, rule(hns.In, hns.Block, 1000).Policy()},
			IPConfigurations: []hns.IPConfig{{IPAddress: ip}}})
		if err != nil {
			t.Fatal(err)
		}
		id := s.fake.AddNamespace()
		if err := s.fake.AttachEndpoint(ctx, id, e.ID); err != nil {
			t.Fatal(err)
		}
		s.pods = append(s.pods, id)
	}
	return s
}

// TestQuestionsFindTheReading runs the questions against an HNS under each reading: the answers must identify it.
func TestQuestionsFindTheReading(t *testing.T) {
	for _, reading := range hns.Readings() {
		s := simulate(t, hns.Server2022, reading)
		before := s.fake.Dump()
		o, err := parse([]string{"--address", "10.1.0.20"}, os.Stderr)
		if err != nil {
			t.Fatal(err)
		}
		b, err := newBench(t.Context(), s.fake, o)
		if err != nil {
			t.Fatal(err)
		}
		answers, err := b.probePackets(t.Context(), s.pods, s, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.close(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{
			"a": []string{"yes", "no"}[reading.Default], "b": []string{"the first", "the last", "Block", "Allow"}[reading.Tie],
			"f": "yes", "l": "yes", "n": []string{"nothing", "everything"}[reading.Set], "o": "yes", "p": []string{"yes", "no"}[reading.Host], "aa": "yes",
			"ab": "what it sends", "s": "yes", "x": "yes", "ac": "1500",
		}
		for _, a := range answers {
			if a.Answer != want[a.ID] || a.Wrong {
				t.Errorf("%s: %s %s: %q, want %q (%s)", reading, a.ID, a.Question, a.Answer, want[a.ID], a.Detail)
			}
		}
		if len(answers) != len(want) {
			t.Errorf("%d answers, want %d", len(answers), len(want))
		}
		if after := s.fake.Dump(); after != before {
			t.Errorf("%s: left behind:\n%s\nwas\n%s", reading, after, before)
		}
	}
}

// TestIPv6 asks the questions about IPv6 of networks that answer otherwise, or not at all.
func TestIPv6(t *testing.T) {
	for _, c := range []struct {
		change func(*simulated)
		s, x   string // answers
	}{
		{func(*simulated) {}, "yes", "yes"},
		{func(s *simulated) { s.open6 = true }, "no", "yes"},
		{func(s *simulated) { s.deaf = true }, "yes", "no"},
		{func(s *simulated) { s.only4 = true }, "", ""},
	} {
		s := simulate(t, hns.Server2022, hns.Reading{})
		c.change(&s)
		_, out, r := runProgram(t, s, "--pods", strings.Join(s.pods, ","))
		for id, want := range map[string]string{"s": c.s, "x": c.x} {
			i := slices.IndexFunc(r.Answers, func(a Answer) bool { return a.ID == id })
			if i < 0 || r.Answers[i].Answer != want || r.Answers[i].Wrong != (want == "no") || r.Answers[i].Detail == "" {
				t.Errorf("%s: want %q\n%s", id, want, out)
			}
		}
	}
}

// report runs the program and reads what it has written.
func runProgram(t *testing.T, s simulated, args ...string) (int, string, Report) {
	t.Helper()
	var out bytes.Buffer
	dir := t.TempDir()
	code := run(t.Context(), append([]string{"--address", "10.1.0.20", "--out", dir}, args...), &out,
		func() (hns.Client, wire, error) { return s.fake, s, nil })
	var r Report
	if text, err := os.ReadFile(filepath.Join(dir, "report.json")); err == nil {
		if err := json.Unmarshal(text, &r); err != nil {
			t.Error(err)
		}
	}
	return code, out.String(), r
}

func TestEverythingAsAssumed(t *testing.T) {
	for _, v := range hns.Profiles() {
		s := simulate(t, v, hns.Reading{})
		before := s.fake.Dump()
		code, out, r := runProgram(t, s, "--pods", strings.Join(s.pods, ","))
		if code != exitAsAssumed || r.Corpus.Verdicts == 0 || r.HNS != v.String() || !strings.Contains(out, " differ=0 refused=0 ") {
			t.Errorf("hns %s: exit %d\n%s", v, code, out)
		}
		if after := s.fake.Dump(); after != before {
			t.Errorf("hns %s: left behind:\n%s", v, after)
		}
	}
}

// TestQuestionsOnly: without the corpus the program is done sooner, and its result is that of the questions.
func TestQuestionsOnly(t *testing.T) {
	s := simulate(t, hns.Server2022, hns.Reading{})
	code, out, r := runProgram(t, s, "--corpus=false", "--pods", strings.Join(s.pods, ","))
	if code != exitAsAssumed || !r.QuestionsOnly || r.Corpus.Cases != 0 || r.Sent.Flows != 0 || len(r.Answers) < 20 || !strings.Contains(out, "(no packets were sent: --corpus=false)") {
		t.Errorf("exit %d, %d answers\n%s", code, len(r.Answers), out)
	}
	s.fake.Before(func(op, _ string) error {
		if op == "CreateEndpoint" {
			return hns.NewError(op, hns.CodeInvalidPolicy, "planted")
		}
		return nil
	})
	if code, out, _ := runProgram(t, s, "--corpus=false"); code == exitAsAssumed {
		t.Errorf("exit %d without an endpoint\n%s", code, out)
	}
}

// TestOtherwise breaks HNS; the report must show that.
func TestOtherwise(t *testing.T) {
	s := simulate(t, hns.Server2022, hns.Reading{})
	n := 0
	s.fake.Before(func(op, _ string) error {
		if n++; op == "ModifyEndpoint" && n%7 == 0 {
			return hns.NewError(op, hns.CodeInvalidPolicy, "planted")
		}
		return nil
	})
	if code, out, _ := runProgram(t, s); code == exitAsAssumed || code == exitUsage || !strings.Contains(out, "planted") {
		t.Errorf("writes are refused: exit %d\n%s", code, out)
	}
	s = simulate(t, hns.Server2022, hns.Reading{})
	code, out, _ := func() (int, string, Report) {
		var w bytes.Buffer
		code := run(t.Context(), []string{"--address", "10.1.0.20", "--out", t.TempDir()}, &w, func() (hns.Client, wire, error) { return forgetful{s.fake}, nil, nil })
		return code, w.String(), Report{}
	}()
	if code != exitOtherwise || !strings.Contains(out, "hns holds other ACLs") {
		t.Errorf("an HNS that forgets rules: exit %d\n%s", code, out)
	}
}

// TestResolverIsLost checks that the report shows when HNS does not store a resolver, or refuses it.
func TestResolverIsLost(t *testing.T) {
	lost := simulate(t, hns.Server2022, hns.Reading{})
	lost.fake.Plant(hnstest.BugDNSLost)
	refused := simulate(t, hns.Server2022, hns.Reading{})
	first := true
	refused.fake.Before(func(op, _ string) error {
		if op == "CreateEndpoint" && first {
			first = false
			return hns.NewError(op, hns.CodeInvalidPolicy, "no resolver")
		}
		return nil
	})
	for want, s := range map[string]simulated{"changed": lost, "refused": refused} {
		code, out, r := runProgram(t, s)
		i := slices.IndexFunc(r.Answers, func(a Answer) bool { return a.ID == "z" })
		if code != exitOtherwise || i < 0 || r.Answers[i].Answer != want || !r.Answers[i].Wrong {
			t.Errorf("exit %d, want the answer %q\n%s", code, want, out)
		}
	}
}

// TestSCTP asks an HNS that takes ACLs for SCTP, and one that refuses them.
func TestSCTP(t *testing.T) {
	for code, want := range map[uint32]string{0: "132 taken; 6,17,132 taken", hns.CodeInvalidPolicy: "132 refused (0x803B000D); 6,17,132 refused (0x803B000D)"} {
		s := simulate(t, hns.Server2022, hns.Reading{})
		s.fake.SetQuirks(hnstest.Quirks{NoSCTP: code})
		exit, out, r := runProgram(t, s, "--corpus=false")
		i := slices.IndexFunc(r.Answers, func(a Answer) bool { return a.ID == "w" })
		if i < 0 || r.Answers[i].Answer != want || r.Answers[i].Wrong != (code != 0) || (exit == exitAsAssumed) != (code == 0) {
			t.Errorf("want %q; exit %d\n%s", want, exit, out)
		}
	}
}

// TestEveryAssumption checks that each row of the table of windows.md has an answer, or says what the program lacks for one.
func TestEveryAssumption(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "windows.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| ([a-z]{1,2}) \|`).FindAllSubmatch(text, -1)
	if len(rows) < 26 {
		t.Fatalf("%d rows: has the table another form now?", len(rows))
	}
	s := simulate(t, hns.Server2022, hns.Reading{})
	_, out, r := runProgram(t, s, "--corpus=false", "--pods", strings.Join(s.pods, ","))
	for _, row := range rows {
		id := string(row[1])
		if id == "t" || id == "v" {
			continue // question o on an overlay network; the corpus
		}
		if i := slices.IndexFunc(r.Answers, func(a Answer) bool { return a.ID == id }); i < 0 || r.Answers[i].Answer+r.Answers[i].Detail == "" {
			t.Errorf("row %s: the report says nothing\n%s", id, out)
		}
	}
}

// TestEvents: the answer holds the fields of the event. A session that ends without one is not as assumed.
func TestEvents(t *testing.T) {
	event := func(s simulated) Answer {
		t.Helper()
		o, err := parse([]string{"--address", "10.1.0.20"}, os.Stderr)
		if err != nil {
			t.Fatal(err)
		}
		b, err := newBench(t.Context(), s.fake, o)
		if err != nil {
			t.Fatal(err)
		}
		answers, err := b.probePackets(t.Context(), s.pods, s, nil)
		i := slices.IndexFunc(answers, func(a Answer) bool { return a.ID == "aa" })
		if err != nil || i < 0 {
			t.Fatalf("%+v, %v", answers, err)
		}
		return answers[i]
	}
	s := simulate(t, hns.Server2022, hns.Reading{})
	if a := event(s); a.Answer != "yes" || a.Wrong || !strings.Contains(a.Detail, `LayerId="ACL_ENDPOINT_LAYER"`) || !strings.Contains(a.Detail, "RuleType=2(Block) SrcIpv4Addr=0a01000a DstIpv4Addr=0a01000b") {
		t.Errorf("%+v", a)
	}
	s = simulate(t, hns.Server2022, hns.Reading{})
	s.silent = true
	stopped := make(chan bool)
	go func() { // another process ends the session
		deadline := time.Now().Add(20 * time.Second)
		for s.events.Stop("isthmus-conformance") != nil && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		close(stopped)
	}()
	if a := event(s); a.Answer != "no" || !a.Wrong || !strings.Contains(a.Detail, "the session has ended") {
		t.Errorf("%+v", a)
	}
	<-stopped
}

// forgetful drops the first ACL of every list that is written.
type forgetful struct{ *hnstest.Fake }

func (f forgetful) ModifyEndpoint(ctx context.Context, id string, r hns.RequestType, policies ...hns.Policy) (hns.Endpoint, error) {
	if len(policies) > 4 {
		policies = policies[1:]
	}
	return f.Fake.ModifyEndpoint(ctx, id, r, policies...)
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"--help"}, 0, "sent back"},
		{nil, exitUsage, "--address"},
		{[]string{"--address", "::1"}, exitUsage, "free IPv4"},
		{[]string{"--address", "10.1.0.20", "--pods", "x"}, exitUsage, "two namespaces"},
		{[]string{"--address", "10.1.0.20", "more"}, exitUsage, "no arguments"},
		{[]string{"--address", "10.1.0.20", "--timeout", "0s"}, exitUsage, "above 0"},
		{[]string{"--address", "10.1.0.20"}, exitFailed, "planted"},
	} {
		var out bytes.Buffer
		code := run(t.Context(), c.args, &out, func() (hns.Client, wire, error) { return nil, nil, errors.New("planted") })
		if code != c.code || !strings.Contains(out.String(), c.text) {
			t.Errorf("%q: exit %d, want %d with %q\n%s", c.args, code, c.code, c.text, out.String())
		}
	}
	s := simulate(t, hns.Server2022, hns.Reading{})
	if code, out, _ := runProgram(t, s, "--network", "none"); code != exitFailed || !strings.Contains(out, `"isthmus"`) {
		t.Errorf("exit %d\n%s", code, out)
	}
}
