// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// TestAudit: what others change is found within the interval, put right and
// counted; what is right is left alone.
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

// TestAuditRemovesUnknown: an attachment that appears without a record, such as
// one whose creation was given up, goes at the next audit.
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
