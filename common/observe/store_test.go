// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/model"
)

// flowTo is an event of pod shop/web, which opens a flow to a port.
func flowTo(port uint16, verdict model.Verdict) model.FlowEvent {
	return model.FlowEvent{Time: time.Unix(1, 0), Pod: model.PodID{Namespace: "shop", Name: "web"}, Direction: model.Egress, Verdict: verdict,
		Src: netip.MustParseAddr("10.0.1.1"), Dst: netip.MustParseAddr("10.0.1.2"), SrcPort: 1000, DstPort: port, Protocol: model.TCP}
}

func testFlows(keep int, log io.Writer) *flows {
	s := model.MakeSnapshot(nil, []*model.Node{{Name: "node2", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}},
		[]*model.Pod{{PodID: model.PodID{Namespace: "data", Name: "db"}, IPs: []netip.Addr{netip.MustParseAddr("10.0.1.2")}}}, nil)
	return newFlows(FlowsConfig{Keep: keep, LogDenied: true}, slog.New(slog.NewTextHandler(log, nil)), func() *model.Snapshot { return s })
}

func all(*isthmusv1.FlowEvent) bool { return true }

func TestFlowsAreRemembered(t *testing.T) {
	f := testFlows(10, io.Discard)
	for n := range 25 {
		f.take([]model.FlowEvent{flowTo(uint16(n), model.Verdict(n%2))})
	}
	ports := func(last int, wants func(*isthmusv1.FlowEvent) bool) (list []uint32) {
		past, _, err := f.follow(last, wants, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range past {
			list = append(list, e.DstPort)
		}
		return list
	}
	denied, err := wantedFlows(&isthmusv1.WatchFlowsRequest{Verdicts: []string{"deny"}, PodNamespace: "data", PodName: "db"})
	if err != nil {
		t.Fatal(err)
	}
	for got, want := range map[string]string{
		fmt.Sprint(ports(100, all)):    "[15 16 17 18 19 20 21 22 23 24]",
		fmt.Sprint(ports(3, all)):      "[22 23 24]",
		fmt.Sprint(ports(0, all)):      "[]",
		fmt.Sprint(ports(100, denied)): "[16 18 20 22 24]", // the peer is db
	} {
		if got != want {
			t.Errorf("remembered %s, want %s", got, want)
		}
	}
	for _, r := range []*isthmusv1.WatchFlowsRequest{{PodName: "web"}, {Verdicts: []string{"maybe"}}} {
		if _, err := wantedFlows(r); err == nil {
			t.Errorf("request %v is taken", r)
		}
	}
	if seen, missed := f.totals(); seen["deny"] != 13 || seen["allow"] != 12 || missed != 0 {
		t.Errorf("counted %v, missed %d", seen, missed)
	}
}

// A follower that does not read misses events and gets the number with the next event. It delays no other
// follower.
func TestSlowReader(t *testing.T) {
	f := testFlows(0, io.Discard)
	_, slow, err := f.follow(0, all, true)
	if err != nil {
		t.Fatal(err)
	}
	for n := range flowQueue + 7 {
		f.take([]model.FlowEvent{flowTo(uint16(n), model.Allow)})
	}
	for range flowQueue {
		if m := <-slow.events; m.Missed != 0 {
			t.Fatalf("%d events missed before the queue was full", m.Missed)
		}
	}
	f.take([]model.FlowEvent{flowTo(1, model.Allow)})
	if m := <-slow.events; m.Missed != 7 || m.Event.DstPort != 1 {
		t.Errorf("%d missed events reported before port %d, want 7 before 1", m.Missed, m.Event.DstPort)
	}
	if _, missed := f.totals(); missed != 7 {
		t.Errorf("counted %d missed events, want 7", missed)
	}
	for range flowReaders - 1 {
		if _, _, err := f.follow(0, all, true); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := f.follow(0, all, true); err == nil {
		t.Error("the number of followers is unlimited")
	}
	f.end(slow)
	if _, _, err := f.follow(0, all, true); err != nil {
		t.Errorf("a place that became free is not given away: %v", err)
	}
	f.stop()
	f.take([]model.FlowEvent{flowTo(1, model.Allow)}) // no follower is left
	if _, _, err := f.follow(0, all, true); err == nil {
		t.Error("a stopping agent accepts a follower")
	}
}

func TestFlowTexts(t *testing.T) {
	var log strings.Builder
	f := testFlows(10, &log)
	rule := flowTo(80, model.Deny)
	rule.Cause = &model.Cause{Reason: model.ReasonRule, Origin: model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"}, Rule: 2, RuleName: "no-db", Direction: model.Egress}
	rule.Service = netip.MustParseAddrPort("10.96.0.1:443")
	frame := model.FlowEvent{Time: time.Unix(2, 0), Drop: "not_ip", Detail: 0x88cc}
	echo := flowTo(7, model.Allow)
	echo.Protocol, echo.Detail, echo.Direction, echo.Src = model.ICMP, 8, model.Ingress, netip.MustParseAddr("192.0.2.2")
	echo.Masquerade = netip.MustParseAddrPort("192.0.2.9:7")
	f.take([]model.FlowEvent{rule, frame, echo})
	past, _, err := f.follow(10, all, false)
	if err != nil {
		t.Fatal(err)
	}
	if e := past[0]; e.Verdict != "deny" || e.Policy != "ClusterNetworkPolicy guard" || e.Rule != "no-db" || e.Service != "10.96.0.1:443" || e.PeerName != "db" || e.PodName != "web" {
		t.Errorf("denied by a rule: %v", e)
	}
	if e := past[1]; e.Verdict != "drop" || e.Reason != "not_ip" || e.EtherType != 0x88cc || e.Src != "" || e.PeerName != "" {
		t.Errorf("frame without addresses: %v", e)
	}
	if e := past[2]; e.Verdict != "allow" || e.IcmpType != 8 || e.PeerNode != "node2" || e.Masquerade != "192.0.2.9:7" {
		t.Errorf("echo request of a node: %v", e)
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `msg="flow denied" pod=shop/web`) || !strings.Contains(lines[0], "guard") || !strings.Contains(lines[1], `msg="flow dropped"`) {
		t.Errorf("logged %q", lines)
	}
}
