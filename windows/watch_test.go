// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/hnsemu/tracing"
	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/windows/flowevents"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestWatch: the backend explains a denied packet by the State that it has applied, a packet of a pod without one as
// not decided yet, and forgets removed pods.
func TestWatch(t *testing.T) {
	host := tracing.New(tracing.English())
	c := bridgeConfig()
	c.Events, c.EventLimits = host.Source(flowevents.Session()), flowevents.Limits{Rate: 100, Burst: 100}
	n := newNode(t, hns.Server2022, c)
	if n.backend.Features().Flows != model.DeniedFlows {
		t.Error("the backend does not say that it reports denied flows")
	}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	events, ended := make(chan model.FlowEvent, 100), make(chan error, 1)
	go func() {
		ended <- n.backend.Watch(watching, func(list []model.FlowEvent) {
			for _, e := range list {
				events <- e
			}
		})
	}()
	for deadline := time.Now().Add(20 * time.Second); !host.Enabled(flowevents.SessionName); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the provider is not enabled")
		}
	}
	spec := n.spec("web", "10.0.1.5")
	denied := func() string {
		t.Helper()
		host.Packet(vfp.Trace{Time: time.Now(), Direction: hns.In, Src: netip.MustParseAddr("10.0.2.99"), Dst: spec.IPs[0], Protocol: 6, DstPort: 443, Verdict: vfp.Verdict{Rule: true}})
		select {
		case e := <-events:
			if e.Cause == nil {
				t.Fatal("the event names no policy")
			}
			return e.Pod.String() + " " + e.Cause.String()
		case <-time.After(20 * time.Second):
			t.Fatal("no event")
		}
		return ""
	}
	n.add(spec)
	if got := denied(); got != "x/web policy not known yet" {
		t.Errorf("before the first State: %s", got)
	}
	s := peerState(spec, "10.0.2.1")
	s.Policy.Tables[model.TableID{1}].Sides[model.Ingress].Default.Cells[0].Cause = &model.Cause{Reason: model.ReasonIsolated, Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: "p"}}
	n.apply(s)
	if got := denied(); got != "x/web isolated for ingress by NetworkPolicy x/p, no rule accepts" {
		t.Errorf("under a State: %s", got)
	}
	counters, err := n.backend.Counters(ctx)
	if err != nil || counters.Events.Limited+counters.Events.Lost != 0 || !strings.Contains(strings.Join(counters.Facts, "\n"), "flow events: denied flows only") {
		t.Errorf("counters %+v, %v", counters, err)
	}
	if counters.Counted != model.DeniedFlows || counters.Verdicts != ([2][2]uint64{model.Ingress: {model.Deny: 2}}) {
		t.Errorf("counted %v of %d", counters.Verdicts, counters.Counted)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	n.config.Events = nil
	n.start()
	if n.backend.Features().Flows != model.NoFlows || !errors.Is(n.backend.Watch(ctx, nil), errors.ErrUnsupported) {
		t.Error("a backend without events of Windows reports flows")
	}
	if c, err := n.backend.Counters(ctx); err != nil || c.Counted != model.NoFlows {
		t.Errorf("a backend without events of Windows counts flows: %+v, %v", c, err)
	}
}
