// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
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
	w := n.watch(host)
	spec := n.spec("web", "10.0.1.5")
	denied := func() string { return w.denied(spec) }
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
	w.end()
	n.config.Events = nil
	n.start()
	if n.backend.Features().Flows != model.NoFlows || !errors.Is(n.backend.Watch(ctx, nil), errors.ErrUnsupported) {
		t.Error("a backend without events of Windows reports flows")
	}
	if c, err := n.backend.Counters(ctx); err != nil || c.Counted != model.NoFlows {
		t.Errorf("a backend without events of Windows counts flows: %+v, %v", c, err)
	}
}

// watching is a Watch of a backend.
type watching struct {
	t      *testing.T
	host   *tracing.Host
	cancel func()
	events chan model.FlowEvent
	ended  chan error
}

// watch begins to watch, and waits until Windows writes events.
func (n *node) watch(host *tracing.Host) *watching {
	n.t.Helper()
	w := &watching{t: n.t, host: host, events: make(chan model.FlowEvent, 100), ended: make(chan error, 1)}
	var watching context.Context
	watching, w.cancel = context.WithCancel(ctx)
	n.t.Cleanup(w.cancel)
	go func() {
		w.ended <- n.backend.Watch(watching, func(list []model.FlowEvent) {
			for _, e := range list {
				w.events <- e
			}
		})
	}()
	for deadline := time.Now().Add(20 * time.Second); !host.Enabled(flowevents.SessionName); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatal("the provider is not enabled")
		}
	}
	return w
}

func (w *watching) end() {
	w.t.Helper()
	w.cancel()
	if err := <-w.ended; err != nil {
		w.t.Error(err)
	}
}

// denied drops a packet to a pod, and returns the pod and the cause of its event.
func (w *watching) denied(spec dataplane.EndpointSpec) string {
	w.t.Helper()
	w.host.Packet(vfp.Trace{Time: time.Now(), Direction: hns.In, Src: netip.MustParseAddr("10.0.2.99"), Dst: spec.IPs[0], Protocol: 6, DstPort: 443, Verdict: vfp.Verdict{Rule: true}})
	select {
	case e := <-w.events:
		if e.Cause == nil {
			return e.Pod.String() + " without a cause"
		}
		return e.Pod.String() + " " + e.Cause.String()
	case <-time.After(20 * time.Second):
		w.t.Fatal("no event")
	}
	return ""
}

// TestWatchAfterRestart: until its first State, a new agent names no cause of drops by the ACLs of the earlier one. A pod
// that it attaches itself has none yet.
func TestWatchAfterRestart(t *testing.T) {
	host := tracing.New(tracing.English())
	c := bridgeConfig()
	c.Events, c.EventLimits = host.Source(flowevents.Session()), flowevents.Limits{Rate: 100, Burst: 100}
	n := newNode(t, hns.Server2022, c)
	spec := n.spec("web", "10.0.1.5")
	n.add(spec)
	s := peerState(spec, "10.0.2.1")
	n.apply(s)
	n.config.Events = host.Source(flowevents.Session())
	n.start()
	w := n.watch(host)
	n.add(spec) // the agent adopts it
	fresh := n.spec("db", "10.0.1.6")
	n.add(fresh)
	for _, of := range []struct {
		spec dataplane.EndpointSpec
		want string
	}{{spec, "x/web without a cause"}, {fresh, "x/db policy not known yet"}} {
		if got := w.denied(of.spec); got != of.want {
			t.Errorf("got %q, want %q", got, of.want)
		}
	}
	s.Policy.Tables[model.TableID{1}].Sides[model.Ingress].Default.Cells[0].Cause = &model.Cause{Reason: model.ReasonIsolated, Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: "p"}}
	n.apply(s)
	if got := w.denied(spec); got != "x/web isolated for ingress by NetworkPolicy x/p, no rule accepts" {
		t.Errorf("under a State: %s", got)
	}
	w.end()
}
