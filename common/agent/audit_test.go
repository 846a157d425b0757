// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/report"
)

// TestAudit checks that an audit finds changes by other processes within the interval, repairs and
// counts them, and changes nothing else.
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
		if clean, drift := r.metric(`isthmus_audit_runs_total{result="clean"}`), r.metric(`isthmus_audit_runs_total{result="drift"}`); clean == "" || drift != "0" {
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

// TestAuditFails checks that an audit that cannot compare is a problem with the error, until one can.
func TestAuditFails(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.change = func(c *agent.Config) { c.AuditEvery = 10 * time.Second }
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.mustAdd(0)
		const problem = "audit: installed state cannot be compared with intended state, so changes by other processes stay: list attachments: endpoints: no answer; next attempt within 10s"
		for _, fails := range []bool{true, false} {
			r.fake.SetFault(func(_ context.Context, step string) error {
				if fails && step == "endpoints" {
					return errors.New("no answer")
				}
				return nil
			})
			time.Sleep(15 * time.Second)
			if all := r.agent.Node(context.Background()).Problems; slices.Contains(all, problem) != fails {
				t.Errorf("audits fail: %t, problems %q", fails, all)
			}
			want := "0"
			if fails {
				want = "1"
			}
			if got := r.metric(`isthmus_problems{kind="audit"}`); got != want {
				t.Errorf("audits fail: %t, isthmus_problems %q", fails, got)
			}
		}
		r.end()
	})
}

// TestAuditRemovesUnknown checks that the next audit removes an attachment without a record, such
// as one whose creation was abandoned.
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

// TestAuditContested checks an object that another process keeps changing back. It becomes a
// problem that names it, and repairs have growing pauses. The problem ends when that process stops.
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

// TestAuditClosesEachTime checks an endpoint that another process opens again and again. Each audit closes it, without
// the pauses of a contested object, and the process is a problem.
func TestAuditClosesEachTime(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.change = func(c *agent.Config) { c.AuditEvery = 10 * time.Second }
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.mustAdd(0)
		r.mustAdd(1)
		for i := range 20 {
			r.fake.Tamper(id(0)) // over-blocks, and is contested too
			r.fake.Open(id(1))
			if !r.reachable(1) {
				t.Fatal("nothing was opened")
			}
			time.Sleep(12 * time.Second)
			if r.reachable(1) {
				t.Fatalf("open after audit %d", i)
			}
		}
		if p := strings.Join(r.agent.Node(context.Background()).Problems, "; "); !strings.Contains(p, "another process keeps changing table of endpoint c1:eth0") {
			t.Errorf("problems %s", p)
		}
		r.end()
	})
}

// TestAuditInPod checks a pod that changes its own network. Audits report it as long as it lasts, and do not repair it. It
// is no drift, is not contested, and is not part of the Node's condition.
func TestAuditInPod(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		var facts atomic.Pointer[report.Facts]
		r.change = func(c *agent.Config) {
			c.AuditEvery, c.Report = 10*time.Second, func(f report.Facts) { facts.Store(&f) }
		}
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.mustAdd(0)
		r.mustAdd(1)
		r.fake.ChangeInPod(id(0), "default route is missing")
		time.Sleep(100 * time.Second)
		want := "warning: endpoint c0:eth0 of pod shop/web-0: default route is missing"
		if n := r.agent.Node(context.Background()); strings.Join(n.Problems, "; ") != want || len(n.Repairs) > 0 {
			t.Errorf("problems %v, repairs %v, want the problem %s", n.Problems, n.Repairs, want)
		}
		if got := r.metric(`isthmus_problems{kind="endpoint"}`); got != "1" {
			t.Errorf("isthmus_problems %s", got)
		}
		if got := r.metric(`isthmus_audit_runs_total{result="drift"}`); got != "0" {
			t.Errorf("%s audits with drift", got)
		}
		if p := facts.Load().Problems; len(p) > 0 {
			t.Errorf("the node reports %v", p)
		}
		if err := r.check(0); err == nil || !strings.Contains(err.Error(), "default route is missing") {
			t.Errorf("CHECK: %v", err)
		}
		r.fake.ChangeInPod(id(0))
		time.Sleep(15 * time.Second)
		if n := r.agent.Node(context.Background()); len(n.Problems) > 0 {
			t.Errorf("problems of a pod that is right again: %v", n.Problems)
		}
		r.fake.ChangeInPod(id(0), "default route is missing")
		time.Sleep(15 * time.Second)
		r.mustDel(0)
		r.settle()
		if p := r.agent.Node(context.Background()).Problems; len(p) > 0 {
			t.Errorf("problems of a pod that is gone: %v", p)
		}
		r.end()
	})
}

// TestCheckPolicy checks that a pod that is not under policy causes a problem and an event within
// seconds, and is repaired long before the next audit. The problem ends with the damage.
func TestCheckPolicy(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		var facts atomic.Pointer[report.Facts]
		r.change = func(c *agent.Config) {
			c.AuditEvery, c.Report = time.Hour, func(f report.Facts) { facts.Store(&f) }
		}
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.mustAdd(0)
		r.mustAdd(1)
		time.Sleep(20*time.Second + 500*time.Millisecond) // between two checks
		if n := r.agent.Node(context.Background()); len(n.Problems) > 0 {
			t.Fatalf("problems before: %v", n.Problems)
		}
		applied := r.fake.Applied()
		r.fake.Break(id(1), "deny")
		r.fake.Break(id(1), "routes")
		list, err := r.agent.Endpoints(context.Background())
		if err != nil || list[0].Unenforced || !list[1].Unenforced {
			t.Errorf("endpoints %+v, %v: want the second one not enforced", list, err)
		}
		time.Sleep(6 * time.Second)
		if err := r.check(1); err != nil {
			t.Errorf("not repaired: %v", err)
		}
		if n := r.fake.Applied(); n != applied+1 {
			t.Errorf("%d Applies, want 1", n-applied)
		}
		want := "endpoint c1:eth0 of pod shop/web-1: policy is NOT enforced: deny is missing; routes is missing"
		if n := r.agent.Node(context.Background()); strings.Join(n.Problems, "; ") != want {
			t.Errorf("problems %v, want %s", n.Problems, want)
		}
		if got := r.problems(); got != "1" {
			t.Errorf("isthmus_problems %s", got)
		}
		made := report.Make(*facts.Load(), nil)
		if len(made.Events) != 2 || made.Events[1].Object.Name != "web-1" || made.Events[1].Reason != "NotEnforced" || !strings.Contains(made.Events[1].Note, "deny is missing") || made.Node.Enforced {
			t.Errorf("report %+v", made)
		}
		time.Sleep(6 * time.Second)
		if n := r.agent.Node(context.Background()); len(n.Problems) > 0 {
			t.Errorf("problems after the repair: %v", n.Problems)
		}
		if got := r.metric("isthmus_audit_repaired_total"); got != "1" {
			t.Errorf("%s repaired", got)
		}
		r.end()
	})
}

// TestCheckContested checks that damage that another process repeats is repaired each time, and is
// a problem.
func TestCheckContested(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.change = func(c *agent.Config) { c.AuditEvery = time.Hour }
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.mustAdd(0)
		for range 20 {
			r.fake.Break(id(0), "interface")
			time.Sleep(6 * time.Second)
			if err := r.check(0); err != nil {
				t.Fatalf("not repaired: %v", err)
			}
		}
		if p := strings.Join(r.agent.Node(context.Background()).Problems, "; "); !strings.Contains(p, "another process keeps changing endpoint of endpoint c0:eth0") {
			t.Errorf("problems %s", p)
		}
		r.end()
	})
}

// TestCheckWithoutAudit checks that an agent that may not repair still reports.
func TestCheckWithoutAudit(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.change = func(c *agent.Config) { c.AuditEvery = 0 }
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.mustAdd(0)
		r.fake.Break(id(0), "slot")
		time.Sleep(time.Minute)
		if p := strings.Join(r.agent.Node(context.Background()).Problems, "; "); !strings.Contains(p, "policy is NOT enforced: slot is missing") {
			t.Errorf("problems %s", p)
		}
		if r.check(0) == nil {
			t.Error("repaired, although the administrator has turned that off")
		}
		r.mustDel(0)
		r.settle()
		if p := r.agent.Node(context.Background()).Problems; len(p) > 0 {
			t.Errorf("problems of a pod that is gone: %v", p)
		}
		r.end()
	})
}

// TestCheckUnrepaired checks that a pod whose repair fails stays one that is not under policy, and is repaired once that works.
func TestCheckUnrepaired(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.mustAdd(0)
		r.mustAdd(1)
		r.fake.SetFault(func(_ context.Context, step string) error {
			if strings.HasPrefix(step, "add.") {
				return errors.New("no memory")
			}
			return nil
		})
		r.fake.Break(id(1), "deny")
		time.Sleep(5 * time.Second)
		for range 10 {
			time.Sleep(20 * time.Second)
			problems := strings.Join(r.agent.Node(context.Background()).Problems, "\n")
			if got := r.metric("isthmus_endpoints_unenforced"); got != "1" || !strings.Contains(problems, "endpoint c1:eth0 of pod shop/web-1: policy is NOT enforced: deny is missing") {
				t.Fatalf("%s endpoints are unenforced, problems %s", got, problems)
			}
		}
		r.calm()
		time.Sleep(time.Minute)
		if got := r.metric("isthmus_endpoints_unenforced"); got != "0" || r.check(1) != nil || r.problems() != "0" {
			t.Errorf("%s endpoints are unenforced, CHECK %v, %s problems", got, r.check(1), r.problems())
		}
		r.end()
	})
}
