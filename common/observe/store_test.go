// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
)

// flowTo is an event of pod shop/web, which opens a flow to a port.
func flowTo(port uint16, verdict model.Verdict) model.FlowEvent {
	return model.FlowEvent{Time: time.Unix(1, 0), Pod: model.PodID{Namespace: "shop", Name: "web"}, Direction: model.Egress, Verdict: verdict,
		Src: netip.MustParseAddr("10.0.1.1"), Dst: netip.MustParseAddr("10.0.1.2"), SrcPort: 1000, DstPort: port, Protocol: model.TCP}
}

func testStore(keep int, log io.Writer) *Store {
	s := model.MakeSnapshot(nil, []*model.Node{{Name: "node2", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}},
		[]*model.Pod{{PodID: model.PodID{Namespace: "data", Name: "db"}, IPs: []netip.Addr{netip.MustParseAddr("10.0.1.2")}}}, nil)
	return NewStore(Config{Keep: keep, LogDenied: true}, slog.New(slog.NewTextHandler(log, nil)), func() *model.Snapshot { return s })
}

func TestLast(t *testing.T) {
	s := testStore(10, io.Discard)
	for n := range 25 {
		s.Add([]model.FlowEvent{flowTo(uint16(n), model.Verdict(n%2))})
	}
	ports := func(last int, namespace, pod string, outcomes ...string) string {
		filter, err := ParseFilter(namespace, pod, outcomes)
		if err != nil {
			t.Fatal(err)
		}
		list := []uint16{}
		for _, f := range s.Last(last, filter) {
			list = append(list, f.DstPort)
		}
		return fmt.Sprint(list)
	}
	for got, want := range map[string]string{
		ports(100, "", ""):               "[15 16 17 18 19 20 21 22 23 24]",
		ports(3, "", ""):                 "[22 23 24]",
		ports(0, "", ""):                 "[]",
		ports(3, "data", ""):             "[22 23 24]", // the peer is db
		ports(3, "shop", "db"):           "[]",
		ports(100, "data", "db", "deny"): "[16 18 20 22 24]",
	} {
		if got != want {
			t.Errorf("remembered %s, want %s", got, want)
		}
	}
	if seen, missed := s.Totals(); seen != [Observed + 1]uint64{Denied: 13, Allowed: 12} || missed != 0 {
		t.Errorf("counted %v, missed %d", seen, missed)
	}
}

func TestParseFilter(t *testing.T) {
	for want, c := range map[string]struct {
		pod      string
		outcomes []string
	}{
		`pod "web": give its namespace too`:                {pod: "web"},
		`verdict "maybe": give allow, deny, drop, observe`: {outcomes: []string{"drop", "maybe"}},
		`verdict "` + strings.Repeat("x", 61) + `..."`:     {outcomes: []string{strings.Repeat("x", 65)}},
	} {
		if _, err := ParseFilter("", c.pod, c.outcomes); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: got %v, want %s", c, err, want)
		}
	}
	for _, o := range Outcomes() {
		if got, err := ParseOutcome(o.String()); err != nil || got != o {
			t.Errorf("%s is parsed as %s, %v", o, got, err)
		}
	}
}

// A follower that does not read misses flows and gets the number with the next flow. It delays no other
// follower.
func TestSlowReader(t *testing.T) {
	s := testStore(0, io.Discard)
	_, slow, err := s.Follow(0, Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for n := range queue + 7 {
		s.Add([]model.FlowEvent{flowTo(uint16(n), model.Allow)})
	}
	for range queue {
		if d := <-slow.Flows; d.Missed != 0 {
			t.Fatalf("%d flows missed before the queue was full", d.Missed)
		}
	}
	s.Add([]model.FlowEvent{flowTo(1, model.Allow)})
	if d := <-slow.Flows; d.Missed != 7 || d.Flow.DstPort != 1 {
		t.Errorf("%d missed flows reported before port %d, want 7 before 1", d.Missed, d.Flow.DstPort)
	}
	if _, missed := s.Totals(); missed != 7 {
		t.Errorf("counted %d missed flows, want 7", missed)
	}
	for range maxReaders - 1 {
		if _, _, err := s.Follow(0, Filter{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.Follow(0, Filter{}); !errors.Is(err, ErrReaders) {
		t.Errorf("one follower too many: %v", err)
	}
	slow.Close()
	_, last, err := s.Follow(0, Filter{})
	if err != nil {
		t.Fatalf("a place that became free is not given away: %v", err)
	}
	s.Stop()
	if d, ok := <-last.Flows; ok {
		t.Errorf("a follower got %+v after the stop", d)
	}
	s.Add([]model.FlowEvent{flowTo(1, model.Allow)}) // no follower is left
	if _, _, err := s.Follow(0, Filter{}); !errors.Is(err, ErrReaders) {
		t.Errorf("a follower after the stop: %v", err)
	}
}

func TestNamesAndLog(t *testing.T) {
	var log strings.Builder
	s := testStore(10, &log)
	rule := flowTo(80, model.Deny)
	rule.Cause = &model.Cause{Reason: model.ReasonRule, Origin: model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"}, Rule: 2, RuleName: "no-db", Direction: model.Egress}
	rule.Service = netip.MustParseAddrPort("10.96.0.1:443")
	frame := model.FlowEvent{Time: time.Unix(2, 0), Drop: model.DropNotIP, Detail: 0x88cc}
	echo := flowTo(7, model.Allow)
	echo.Protocol, echo.Detail, echo.Direction, echo.Src = model.ICMP, 8, model.Ingress, netip.MustParseAddr("192.0.2.2")
	s.Add([]model.FlowEvent{rule, frame, echo})
	past := s.Last(10, Filter{})
	for i, want := range []string{"deny data/db ", "drop / ", "allow / node2"} {
		if got := fmt.Sprintf("%s %s/%s %s", past[i].Outcome(), past[i].Peer.Namespace, past[i].Peer.Name, past[i].PeerNode); got != want {
			t.Errorf("flow %d is %q, want %q", i, got, want)
		}
	}
	const want = `level=INFO msg="flow denied" pod=shop/web direction=egress because="CAUSE" src=10.0.1.1 dst=10.0.1.2 protocol=TCP "src port"=1000 "dst port"=80 service=10.96.0.1:443 peer=data/db
level=INFO msg="flow dropped" direction=ingress reason=not_ip
`
	got := regexp.MustCompile(`time=\S+ `).ReplaceAllString(log.String(), "")
	if want := strings.Replace(want, "CAUSE", rule.Cause.String(), 1); got != want {
		t.Errorf("logged\n%s\nwant\n%s", got, want)
	}
}

// Every outcome is counted, found by a filter, and logged unless it is Allowed.
func TestEveryOutcome(t *testing.T) {
	var log strings.Builder
	s := testStore(8, &log)
	for _, o := range Outcomes() {
		e := flowTo(80, model.Deny)
		switch o {
		case Allowed:
			e.Verdict = model.Allow
		case Dropped:
			e.Drop = model.DropSpoofed
		case Observed:
			e.Observed = true
		}
		s.Add([]model.FlowEvent{e})
		if seen, _ := s.Totals(); seen[o] != 1 {
			t.Errorf("outcome %s is counted as %v", o, seen)
		}
		if found := s.Last(8, Filter{Outcomes: []Outcome{o}}); len(found) != 1 || found[0].Outcome() != o {
			t.Errorf("outcome %s: found %v", o, found)
		}
	}
	for _, message := range []string{"flow denied", "flow dropped", "flow observed"} {
		if strings.Count(log.String(), message) != 1 {
			t.Errorf("no line %q in the log", message)
		}
	}
}
