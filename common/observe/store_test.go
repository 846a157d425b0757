// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
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
		for _, d := range s.Last(last, filter) {
			list = append(list, d.Flow.DstPort)
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

// next returns what waits for a follower: something must.
func next(t *testing.T, r *Reader) []Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	list, err := r.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// full checks that a list has the flows of a full queue and then these numbers.
func full(t *testing.T, list []Delivery, last Delivery) {
	t.Helper()
	if len(list) != queue+1 || list[queue] != last {
		t.Fatalf("%d deliveries, the last is %+v, want %d flows and %+v", len(list), list[len(list)-1], queue, last)
	}
	for i, d := range list[:queue] {
		if d.Missed != 0 || d.Undelivered != 0 || int(d.Flow.DstPort) != i {
			t.Fatalf("delivery %d is %+v", i, d)
		}
	}
}

// A follower that does not read misses flows. It gets the number after the last flow that it got, also if no flow
// follows. It delays no other follower.
func TestSlowReader(t *testing.T) {
	s := testStore(0, io.Discard)
	_, slow, err := s.Follow(0, Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, more := range []int{7, 5} {
		for n := range queue + more {
			s.Add([]model.FlowEvent{flowTo(uint16(n), model.Allow)})
		}
		full(t, next(t, slow), Delivery{Missed: uint64(more)})
	}
	s.Add([]model.FlowEvent{flowTo(1, model.Allow), flowTo(2, model.Allow)})
	if list := next(t, slow); len(list) != 2 || list[0].Missed != 0 || list[1].Flow.DstPort != 2 {
		t.Errorf("a reader that is in time gets %+v", list)
	}
	if _, missed := s.Totals(); missed != 12 {
		t.Errorf("counted %d missed flows, want 12", missed)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if list, err := slow.Next(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("nothing is left, but %+v, %v comes", list, err)
	}
}

// Every follower learns how many flows the data path did not deliver, whatever its filter. None is reported twice, and none
// is lost when the Store stops.
func TestUndelivered(t *testing.T) {
	s := testStore(0, io.Discard)
	_, all, err := s.Follow(0, Filter{})
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := s.Follow(0, Filter{Namespace: "elsewhere"})
	if err != nil {
		t.Fatal(err)
	}
	s.Undelivered(3)
	s.Undelivered(0)
	for name, r := range map[string]*Reader{"all": all, "other": other} {
		if list := next(t, r); len(list) != 1 || list[0] != (Delivery{Undelivered: 3}) {
			t.Errorf("%s gets %+v, want 3 undelivered flows", name, list)
		}
	}
	s.Undelivered(1)
	s.Add([]model.FlowEvent{flowTo(80, model.Allow)})
	if list := next(t, all); len(list) != 2 || list[0] != (Delivery{Undelivered: 1}) || list[1].Flow == nil {
		t.Errorf("got %+v, want an undelivered flow before the other", list)
	}
	for n := range queue + 2 {
		s.Add([]model.FlowEvent{flowTo(uint16(n), model.Allow)})
	}
	s.Undelivered(4)
	s.Stop()
	full(t, next(t, all), Delivery{Missed: 2, Undelivered: 4})
	if list := next(t, other); len(list) != 1 || list[0] != (Delivery{Undelivered: 5}) {
		t.Errorf("the other follower gets %+v, want 5 undelivered flows", list)
	}
	for _, r := range []*Reader{all, other} {
		if list, err := r.Next(t.Context()); !errors.Is(err, ErrStopped) {
			t.Errorf("after the stop a follower gets %+v, %v", list, err)
		}
	}
}

func TestReadersAreBounded(t *testing.T) {
	s := testStore(0, io.Discard)
	var first *Reader
	for range maxReaders {
		_, r, err := s.Follow(0, Filter{})
		if err != nil {
			t.Fatal(err)
		}
		first = r
	}
	if _, _, err := s.Follow(0, Filter{}); !errors.Is(err, ErrReaders) {
		t.Errorf("one follower too many: %v", err)
	}
	first.Close()
	_, last, err := s.Follow(0, Filter{})
	if err != nil {
		t.Fatalf("a place that became free is not given away: %v", err)
	}
	s.Stop()
	if d, err := last.Next(t.Context()); !errors.Is(err, ErrStopped) {
		t.Errorf("a follower got %+v, %v after the stop", d, err)
	}
	s.Add([]model.FlowEvent{flowTo(1, model.Allow)}) // no follower is left
	if _, _, err := s.Follow(0, Filter{}); !errors.Is(err, ErrReaders) {
		t.Errorf("a follower after the stop: %v", err)
	}
}

// Kept flows come with the numbers of those that were not delivered between and after them.
func TestLastUndelivered(t *testing.T) {
	s := testStore(4, io.Discard)
	last := func(n int, pods ...string) (text string) {
		filter := Filter{}
		if len(pods) > 0 {
			filter.Namespace = pods[0]
		}
		for _, d := range s.Last(n, filter) {
			if d.Undelivered > 0 {
				text += fmt.Sprintf("-%d ", d.Undelivered)
			}
			if d.Flow != nil {
				text += fmt.Sprintf("%d ", d.Flow.DstPort)
			}
		}
		return strings.TrimSpace(text)
	}
	s.Undelivered(9)
	if got := last(10); got != "-9" {
		t.Errorf("no flow, and 9 not delivered: %q", got)
	}
	for n := range 6 {
		s.Undelivered(uint64(n))
		s.Add([]model.FlowEvent{flowTo(uint16(n), model.Deny)})
	}
	s.Undelivered(7)
	for got, want := range map[string]string{
		last(10):              "2 -3 3 -4 4 -5 5 -7", // those before the oldest kept flow are forgotten like the flows
		last(2):               "4 -5 5 -7",
		last(0):               "",
		last(10, "elsewhere"): "-19",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
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
		if got := fmt.Sprintf("%s %s/%s %s", past[i].Flow.Outcome(), past[i].Flow.Peer.Namespace, past[i].Flow.Peer.Name, past[i].Flow.PeerNode); got != want {
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
		if found := s.Last(8, Filter{Outcomes: []Outcome{o}}); len(found) != 1 || found[0].Flow.Outcome() != o {
			t.Errorf("outcome %s: found %v", o, found)
		}
	}
	for _, message := range []string{"flow denied", "flow dropped", "flow observed"} {
		if strings.Count(log.String(), message) != 1 {
			t.Errorf("no line %q in the log", message)
		}
	}
}
