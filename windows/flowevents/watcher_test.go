// SPDX-License-Identifier: Apache-2.0

package flowevents_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/test/hnsemu/tracing"
	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/windows/etw"
	"github.com/isthmus-net/isthmus/windows/flowevents"
	"github.com/isthmus-net/isthmus/windows/hns"
)

var (
	web, web6     = netip.MustParseAddr("10.0.1.5"), netip.MustParseAddr("fd00:1::5")
	peer, peer6   = netip.MustParseAddr("10.0.2.6"), netip.MustParseAddr("fd00:2::6")
	listed, other = netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("10.0.1.77")
)

// state isolates pod shop/web for ingress by a policy that accepts TCP 80 of the peer. A rule denies egress to the peer.
func state() *model.State {
	isolated := model.Decision{Cause: &model.Cause{Reason: model.ReasonIsolated, Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "web"}}}
	rule := model.Decision{Cause: &model.Cause{Reason: model.ReasonRule, Origin: model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"}, Tier: model.TierAdmin, Direction: model.Egress, Rule: 2}}
	allow := model.Decision{Verdict: model.Allow, Cause: &model.Cause{}}
	row := func(d ...model.Decision) *model.Row { return &model.Row{Cells: d} }
	table := &model.Table{ID: model.TableID{1}, Sides: [2]model.Side{
		model.Ingress: {Default: row(isolated), Rows: immutable.MakeMap(map[model.PeerClass]*model.Row{1: row(isolated, allow)})},
		model.Egress:  {Default: row(allow), Rows: immutable.MakeMap(map[model.PeerClass]*model.Row{1: row(rule)})},
	}}
	return &model.State{
		Deny: &model.DenySet{Prefixes: []netip.Prefix{netip.PrefixFrom(listed, 32)}},
		Policy: model.PolicyState{Tables: map[model.TableID]*model.Table{{1}: table}, Ports: []model.PortRange{{Protocol: model.TCP, First: 80, Last: 80, Class: 1}},
			Addresses: immutable.MakeMap(map[netip.Addr]model.PeerClass{peer: 1, peer6: 1}),
			Endpoints: map[model.EndpointID]model.EndpointState{"web:eth0": {Pod: model.PodID{Namespace: "shop", Name: "web"}, IPs: []netip.Addr{web, web6}, Table: model.TableID{1}}}},
	}
}

// lab is a Watcher on an emulated host.
type lab struct {
	host    *tracing.Host
	watcher *flowevents.Watcher
	events  chan model.FlowEvent
	ended   chan error
	cancel  context.CancelFunc
}

func newLab(t *testing.T, o tracing.Options, l flowevents.Limits) *lab {
	t.Helper()
	host := tracing.New(o)
	x := &lab{host: host, watcher: flowevents.New(host.Source(flowevents.Session()), l), events: make(chan model.FlowEvent, 10000), ended: make(chan error, 1)}
	var ctx context.Context
	ctx, x.cancel = context.WithCancel(context.Background())
	t.Cleanup(x.cancel)
	go func() {
		x.ended <- x.watcher.Watch(ctx, func(list []model.FlowEvent) {
			for _, e := range list {
				x.events <- e
			}
		})
	}()
	for deadline := time.Now().Add(20 * time.Second); !host.Enabled(flowevents.SessionName); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the provider is not enabled")
		}
	}
	return x
}

// next returns the next event as text.
func (x *lab) next(t *testing.T) string {
	t.Helper()
	select {
	case e := <-x.events:
		cause := "?"
		if e.Cause != nil {
			cause = e.Cause.String()
		}
		return fmt.Sprintf("%s %s %s %s:%d>%s:%d %s %d: %s", e.Verdict, e.Pod, e.Direction, e.Src, e.SrcPort, e.Dst, e.DstPort, e.Protocol, e.Detail, cause)
	case err := <-x.ended:
		t.Fatalf("the watcher has ended: %v", err)
	case <-time.After(20 * time.Second):
		t.Fatal("no event")
	}
	return ""
}

// counts returns the counters of the watcher.
func (x *lab) counts(t *testing.T) (c dataplane.Counters) {
	t.Helper()
	if err := x.watcher.Count(&c); err != nil {
		t.Fatal(err)
	}
	return c
}

// end waits for the end of the watcher, and returns its error.
func (x *lab) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-x.ended:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the watcher goes on")
	}
	return nil
}

func packet(d hns.Direction, src, dst netip.Addr, protocol uint8, port uint16, rule, pass bool) vfp.Trace {
	return vfp.Trace{Time: time.Now(), Port: "web", Direction: d, Src: src, Dst: dst, Protocol: protocol, SrcPort: 40000, DstPort: port, Verdict: vfp.Verdict{Pass: pass, Rule: rule, By: "a rule"}}
}

// TestExplains: each denied packet has one event with policy, tier and rule, whatever texts the manifest has. Other
// packets have none.
func TestExplains(t *testing.T) {
	for name, o := range map[string]tracing.Options{"English": tracing.English(), "German": {Block: "Sperren ", Allow: "Zulassen "}, "no texts": {NoTypes: true}, "no filter": {Block: "Block ", NoFilter: true}} {
		t.Run(name, func(t *testing.T) {
			x := newLab(t, o, flowevents.Limits{Rate: 1, Burst: 100})
			s := state()
			x.watcher.Begin(s)
			x.watcher.Applied(s)
			const isolated = "isolated for ingress by NetworkPolicy shop/web, no rule accepts"
			for _, c := range []struct {
				trace vfp.Trace
				want  string // empty for none
			}{
				{packet(hns.In, peer, web, 6, 443, true, false), "deny shop/web ingress 10.0.2.6:40000>10.0.1.5:443 TCP 0: " + isolated},
				{packet(hns.In, peer, web, 6, 80, true, true), ""},
				{packet(hns.In, peer, web, 6, 443, false, false), ""}, // dropped, but not by a rule
				{packet(hns.Out, web, other, 6, 80, true, true), ""},
				{packet(hns.In, web, other, 6, 80, true, false), ""}, // the pod at the port is not ours
				{packet(hns.In, listed, web, 6, 80, true, false), ""},
				{packet(hns.Out, web, peer, 17, 53, true, false), "deny shop/web egress 10.0.1.5:40000>10.0.2.6:53 UDP 0: egress rule 2 of ClusterNetworkPolicy guard, tier Admin"},
				{packet(hns.In, peer6, web6, 6, 22, true, false), "deny shop/web ingress [fd00:2::6]:40000>[fd00:1::5]:22 TCP 0: " + isolated},
				{packet(hns.In, peer, web, 1, 7, true, false), "deny shop/web ingress 10.0.2.6:0>10.0.1.5:0 ICMP 256: " + isolated},
			} {
				x.host.Packet(c.trace)
				if c.want == "" {
					continue
				}
				c.want = strings.NewReplacer("[", "", "]", "").Replace(c.want)
				if got := x.next(t); got != c.want {
					t.Errorf("got  %s\nwant %s", got, c.want)
				}
			}
			n := x.counts(t)
			if n.Events != (dataplane.EventCounts{}) {
				t.Errorf("missed %+v", n.Events)
			}
			if want := [2][2]uint64{model.Ingress: {model.Deny: 3}, model.Egress: {model.Deny: 1}}; n.Verdicts != want || n.Counted != model.DeniedFlows {
				t.Errorf("counted %v of %d, want %v", n.Verdicts, n.Counted, want)
			}
			if n.Drops["deny_list_ipv4"] != 1 || n.Drops["deny_list_ipv6"] != 0 {
				t.Errorf("deny lists dropped %v", n.Drops)
			}
			x.cancel()
			if err := x.end(t); err != nil || len(x.events) > 0 {
				t.Errorf("at the end: %v, %d events are left", err, len(x.events))
			}
		})
	}
}

// TestBudgets: a flood exhausts the budget of its pod and direction, and no other. What is over the limit is counted.
func TestBudgets(t *testing.T) {
	x := newLab(t, tracing.English(), flowevents.Limits{Rate: 5, Burst: 10})
	s := state()
	x.watcher.Begin(s)
	x.watcher.Applied(s)
	began := time.Now()
	flood := func(when time.Time, n int) {
		for range n {
			p := packet(hns.In, peer, web, 6, 443, true, false)
			p.Time = when
			x.host.Packet(p)
		}
	}
	flood(began, 200)
	out := packet(hns.Out, web, peer, 6, 443, true, false)
	out.Time = began
	x.host.Packet(out)
	for i := range 11 {
		if got, want := strings.Fields(x.next(t))[2], []string{"ingress", "egress"}[i/10]; got != want {
			t.Fatalf("event %d is %s, want %s", i, got, want)
		}
	}
	flood(began.Add(time.Second), 200) // 5 more are paid for
	out.Time = began.Add(time.Second)
	x.host.Packet(out)
	for i := range 6 {
		if got, want := strings.Fields(x.next(t))[2], []string{"ingress", "egress"}[i/5]; got != want {
			t.Fatalf("event %d is %s, want %s", i, got, want)
		}
	}
	if n := x.counts(t); n.Events.Limited != 385 || n.Verdicts != ([2][2]uint64{model.Ingress: {model.Deny: 400}, model.Egress: {model.Deny: 2}}) {
		t.Errorf("%d events over the limit, want 385; counted %v", n.Events.Limited, n.Verdicts)
	}
	x.watcher.RemoveEndpoint("web:eth0") // the next pod of this name has a full budget
	flood(began.Add(time.Second), 10)
	for range 10 {
		x.next(t)
	}
}

// TestTakenOver: a session that a process left is replaced, and one that another process stops is an error.
func TestTakenOver(t *testing.T) {
	x := newLab(t, tracing.English(), flowevents.Limits{Rate: 1, Burst: 10})
	if got := x.watcher.Fact(); got != "flow events: denied flows only; Windows does not show allowed ones" {
		t.Error(got)
	}
	if err := x.host.Stop(flowevents.SessionName); err != nil {
		t.Fatal(err)
	}
	err := x.end(t)
	if err == nil || !strings.Contains(err.Error(), "the session has ended") || x.watcher.Fact() != "flow events: none: "+err.Error() {
		t.Errorf("ended with %v, fact %q", err, x.watcher.Fact())
	}
	if err := x.host.Start(flowevents.SessionName); err != nil { // as a crashed agent leaves it
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := x.watcher.Watch(ctx, func([]model.FlowEvent) {}); err != nil {
		t.Errorf("with a session of a crashed agent: %v", err)
	}
	if err := x.host.Stop(flowevents.SessionName); err == nil {
		t.Error("the watcher has left its session")
	}
}

// TestFlood: a host that ignores the filter of event ids is given up before its events cost more than they tell.
func TestFlood(t *testing.T) {
	x := newLab(t, tracing.Options{NoFilter: true}, flowevents.Limits{Rate: 1, Burst: 10})
	now := time.Now()
	for range 6000 {
		p := packet(hns.Out, other, peer, 6, 443, false, false)
		p.Time = now
		x.host.Packet(p)
	}
	if err := x.end(t); !errors.Is(err, etw.ErrFlood) {
		t.Errorf("ended with %v", err)
	}
}

func TestLimits(t *testing.T) {
	if err := (flowevents.Limits{Rate: 20, Burst: 100}).Validate(); err != nil {
		t.Error(err)
	}
	err := flowevents.Limits{Rate: 10001}.Validate()
	if err == nil || err.Error() != "rate of flow events 10001: give a number from 1 to 10000 a second\nburst of flow events 0: give a number from 1 to 100000" {
		t.Error(err)
	}
}

// TestWanted: the rule events of the recordings are wanted. Those of every packet are not.
func TestWanted(t *testing.T) {
	rule := []string{"PortId", "Direction", "LayerId", "GroupId", "RuleId", "RuleType", "SrcIpv4Addr", "DstIpv4Addr", "SrcPort", "DstPort", "IpProtocol", "IsTcpSyn", "Status", "PortName", "PortFriendlyName", "GftFlags", "StatusLocation"}
	if !flowevents.Wanted(rule) {
		t.Error("event 101 is not wanted")
	}
	for _, name := range []string{"Direction", "LayerId", "RuleId", "RuleType", "SrcIpv4Addr", "DstIpv4Addr", "SrcPort", "DstPort", "IpProtocol"} {
		if flowevents.Wanted(slices.DeleteFunc(slices.Clone(rule), func(s string) bool { return s == name })) {
			t.Errorf("wanted without %s", name)
		}
	}
	if flowevents.Wanted([]string{"PortId", "Direction", "LayerId", "SrcIpv4Addr", "DstIpv4Addr", "SrcPort", "DstPort", "IpProtocol", "IsTcpSyn", "PortName", "PortFriendlyName", "GftFlags"}) {
		t.Error("event 115 is wanted")
	}
}
