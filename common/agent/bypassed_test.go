// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/report"
)

// bypassed is a data path without checks of its own, as that of Windows. While a flag is set one pod has a way around its policy,
// which no repair removes unless another flag is set.
type bypassed struct {
	dataplane.Backend
	id          model.EndpointID
	open, heals atomic.Bool
}

func (b *bypassed) AddEndpoint(ctx context.Context, spec dataplane.EndpointSpec) (dataplane.Attachment, error) {
	if spec.ID == b.id && b.heals.Load() {
		b.open.Store(false)
	}
	return b.Backend.AddEndpoint(ctx, spec)
}

func (b *bypassed) Endpoints(ctx context.Context) ([]dataplane.Installed, error) {
	all, err := b.Backend.Endpoints(ctx)
	for i := range all {
		if all[i].ID == b.id && b.open.Load() {
			all[i].Problems, all[i].Unenforced = append(all[i].Problems, "a second interface"), true
		}
	}
	return all, err
}

// TestAuditCannotRepair: a pod that an audit finds without policy, and that stays so, is reported as not enforced and not as repaired.
// The report ends when it is under policy again, or gone.
func TestAuditCannotRepair(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		run(t, func(t *testing.T, r *rig) {
			path := &bypassed{Backend: r.fake, id: id(0)}
			var facts atomic.Pointer[report.Facts]
			r.noPool, r.change = true, func(c *agent.Config) {
				c.Open = func(context.Context, model.Node) (dataplane.Backend, error) { return path, nil }
				c.Report = func(f report.Facts) { facts.Store(&f) }
			}
			r.start()
			r.agent.Publish(cluster{pods: 3}.snapshot())
			r.mustAdd(0)
			r.mustAdd(1)
			want := func(when string, open bool) {
				t.Helper()
				const problem = "endpoint c0:eth0 of pod shop/web-0: policy is NOT enforced: a second interface"
				all := strings.Join(r.agent.Node(context.Background()).Problems, "\n")
				if (all == problem) != open || !open && all != "" {
					t.Errorf("%s: problems %q", when, all)
				}
				n, unenforced := "0", len(facts.Load().Unenforced)
				if open {
					n = "1"
				}
				if got := r.metric("isthmus_endpoints_unenforced"); got != n || (unenforced == 1) != open {
					t.Errorf("%s: isthmus_endpoints_unenforced %s, %d reported", when, got, unenforced)
				}
				if got := r.metric("isthmus_audit_repaired_total"); got != "0" {
					t.Errorf("%s: %s repairs, but nothing was repaired", when, got)
				}
			}
			time.Sleep(90 * time.Second)
			want("before", false)
			path.open.Store(true)
			for range 6 {
				time.Sleep(time.Minute)
				want("open", true)
			}
			if deleted {
				r.mustDel(0)
				r.settle()
				want("deleted", false)
			} else {
				path.open.Store(false)
				time.Sleep(time.Minute)
				want("closed", false)
			}
			r.end()
		})
	}
}

// TestAuditRepairsOpenPod: a pod that an audit finds without policy, and repairs, is one that was repaired, and no problem.
func TestAuditRepairsOpenPod(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		path := &bypassed{Backend: r.fake, id: id(0)}
		r.noPool, r.change = true, func(c *agent.Config) {
			c.Open = func(context.Context, model.Node) (dataplane.Backend, error) { return path, nil }
		}
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.mustAdd(0)
		time.Sleep(90 * time.Second)
		path.heals.Store(true)
		path.open.Store(true)
		time.Sleep(time.Minute)
		if p := r.agent.Node(context.Background()).Problems; len(p) > 0 {
			t.Errorf("problems %q", p)
		}
		if got := r.metric("isthmus_audit_repaired_total"); got != "1" || path.open.Load() {
			t.Errorf("%s repairs, open %t", got, path.open.Load())
		}
		r.end()
	})
}

// checking is bypassed with checks, which see nothing.
type checking struct {
	*bypassed
	dataplane.Checker
}

// TestCheckEndsFinding: a check is later than the last audit, so it ends what that has found.
func TestCheckEndsFinding(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		path := checking{&bypassed{Backend: r.fake, id: id(0)}, r.fake}
		r.noPool, r.change = true, func(c *agent.Config) {
			c.AuditEvery = time.Hour
			c.Open = func(context.Context, model.Node) (dataplane.Backend, error) { return path, nil }
		}
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.mustAdd(0)
		path.open.Store(true)
		time.Sleep(time.Hour + 10*time.Second)
		if r.metric(`isthmus_audit_drifts_total{object="endpoint"}`) != "1" {
			t.Error("the audit has not found it")
		}
		if p := r.agent.Node(context.Background()).Problems; len(p) > 0 {
			t.Errorf("problems %q", p)
		}
		r.end()
	})
}
