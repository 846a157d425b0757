// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/hnsemu/tracing"
	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/windows/flowevents"
	"github.com/isthmus-net/isthmus/windows/foreign"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// watched is a node whose Backend reads events of an emulated Windows.
type watched struct {
	*node
	host   *tracing.Host
	events chan model.FlowEvent
}

func watch(t *testing.T) *watched {
	t.Helper()
	w := &watched{node: newNode(t, hns.L2Bridge), host: tracing.New(tracing.English()), events: make(chan model.FlowEvent, 100)}
	c := foreign.Config{File: w.file, Events: w.host.Source(flowevents.Session()), EventLimits: flowevents.Limits{Rate: 100, Burst: 100}}
	b, err := foreign.New(ctx, c, w.fake, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w.backend = b
	watching, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- b.Watch(watching, func(list []model.FlowEvent) {
			for _, e := range list {
				w.events <- e
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(20 * time.Second); !w.host.Enabled(flowevents.SessionName); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the provider is not enabled")
		}
	}
	return w
}

// dropped drops a packet at the pod, and returns the event as text.
func (w *watched) dropped(from string, port uint16) string {
	w.t.Helper()
	w.host.Packet(vfp.Trace{Time: time.Now(), Direction: hns.In, Src: netip.MustParseAddr(from), Dst: netip.MustParseAddr("10.1.0.5"), Protocol: 6, DstPort: port,
		Verdict: vfp.Verdict{Rule: true}})
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

// TestWatch checks that drops at the endpoint of another plugin are explained by the State, those of an ACL of the other
// plugin have no cause, and both are counted.
func TestWatch(t *testing.T) {
	w := watch(t)
	if got := w.backend.Features().Flows; got != model.DeniedFlows {
		t.Errorf("features: flows %v", got)
	}
	s := w.chained("web", "10.1.0.5", theirs()...)
	if got := w.dropped(others, 80); got != "shop/web policy not known yet" {
		t.Errorf("before the first State: %s", got)
	}
	desired := state(s)
	desired.Policy.Tables[model.TableID{1}].Sides[model.Ingress].Default.Cells[1].Cause = &model.Cause{Reason: model.ReasonIsolated, Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "p"}}
	w.apply(desired)
	if got := w.dropped(others, 80); got != "shop/web isolated for ingress by NetworkPolicy shop/p, no rule accepts" {
		t.Errorf("denied by policy: %s", got)
	}
	if got := w.dropped(client, 80); got != "shop/web without a cause" {
		t.Errorf("allowed by policy, denied by another program: %s", got)
	}
	c, err := w.backend.Counters(ctx)
	if err != nil || c.Counted != model.DeniedFlows || c.Verdicts != ([2][2]uint64{model.Ingress: {model.Deny: 3}}) {
		t.Errorf("counted %v of %d, %v", c.Verdicts, c.Counted, err)
	}
	if err := w.backend.DeleteEndpoint(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
}

// TestNoEvents checks a Backend without events of Windows, and limits that are not valid.
func TestNoEvents(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	if n.backend.Features().Flows != model.NoFlows || !errors.Is(n.backend.Watch(ctx, nil), errors.ErrUnsupported) {
		t.Error("a backend without events of Windows reports flows")
	}
	if c, err := n.backend.Counters(ctx); err != nil || c.Counted != model.NoFlows {
		t.Errorf("a backend without events of Windows counts flows: %+v, %v", c, err)
	}
	if err := (foreign.Config{Events: tracing.New(tracing.English()).Source(flowevents.Session())}).Validate(); err == nil {
		t.Error("a rate of 0 is accepted")
	}
}
