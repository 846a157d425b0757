// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/report"
)

// TestAudit: an audit finds changes by other processes within the interval, repairs and counts them, and
// changes nothing else.
func TestAudit(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.change = func(c *agent.Config) { c.AuditEvery = 10 * time.Second }
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.mustAdd(0)
		r.mustAdd(1)
		time.Sleep(15 * time.Second)
		applied := r.fake.Applied()
		time.Sleep(time.Minute)
		if n := r.fake.Applied(); n != applied {
			t.Errorf("%d Applies without a reason", n-applied)
		}
		if clean, drift := r.metric(`isthmus_audit_runs_total{result="clean"}`), r.metric(`isthmus_audit_runs_total{result="drift"}`); clean == "" || drift != "" {
			t.Errorf("%q clean audits, %q with drift", clean, drift)
		}
		r.fake.Tamper(id(0))
		r.fake.Break(id(1), "routes")
		if r.reachable(0) {
			t.Fatal("nothing was broken")
		}
		time.Sleep(15 * time.Second)
		if !r.reachable(0) {
			t.Error("decisions were not put right")
		}
		if err := r.check(1); err != nil {
			t.Errorf("the attachment was not put right: %v", err)
		}
		for series, want := range map[string]string{
			`isthmus_audit_runs_total{result="drift"}`:      "1",
			`isthmus_audit_drifts_total{object="table"}`:    "1",
			`isthmus_audit_drifts_total{object="endpoint"}`: "1",
			`isthmus_audit_repaired_total`:                  "2",
		} {
			if got := r.metric(series); got != want {
				t.Errorf("%s %s, want %s", series, got, want)
			}
		}
		r.end()
	})
}

// TestAuditRemovesUnknown: the next audit removes an attachment without a record, such as one whose
// creation was abandoned.
func TestAuditRemovesUnknown(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.change = func(c *agent.Config) { c.AuditEvery = 10 * time.Second }
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		ips := r.mustAdd(0)
		stranger := dataplane.EndpointSpec{ID: id(9), ContainerID: "c9", IfName: "eth0", NetNS: "/run/netns/c9", Pod: model.PodID{Namespace: "x", Name: "stranger"},
			IPs: []netip.Addr{ips[0].Next()}}
		if _, err := r.fake.AddEndpoint(context.Background(), stranger); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		r.wantOnly(0)
		r.end()
	})
}

// TestAuditContested: an object that another process changes back each time becomes a problem that names
// it. Repairs then have longer and longer pauses. When that process has stopped, the problem goes.
func TestAuditContested(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		var facts atomic.Pointer[report.Facts]
		r.change = func(c *agent.Config) {
			c.AuditEvery, c.Report = 10*time.Second, func(f report.Facts) { facts.Store(&f) }
		}
		problems := func() string { return strings.Join(facts.Load().Problems, "; ") }
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.mustAdd(0)
		r.mustAdd(1)
		r.fake.Tamper(id(0))
		time.Sleep(15 * time.Second)
		if strings.Contains(problems(), "another process") || !r.reachable(0) {
			t.Fatalf("after one change: %s", problems())
		}
		began := r.fake.Applied()
		for range 300 { // it is changed back within a second
			if r.reachable(0) {
				r.fake.Tamper(id(0))
			}
			time.Sleep(time.Second)
		}
		repairs := r.fake.Applied() - began
		if repairs < 4 || repairs > 9 {
			t.Errorf("%d repairs in 300 s, want the pauses to grow from 10 s to 80 s", repairs)
		}
		want := "another process keeps changing table of endpoint " + string(id(0))
		if !strings.Contains(problems(), want) {
			t.Errorf("problems %s, want one that says %q", problems(), want)
		}
		time.Sleep(300 * time.Second)
		if !r.reachable(0) || strings.Contains(problems(), "another process") {
			t.Errorf("after the other process has stopped: reachable %t, problems %s", r.reachable(0), problems())
		}
		r.end()
	})
}
