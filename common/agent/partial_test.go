// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
)

// refusing is a data path that refuses the decisions of one endpoint, as HNS refuses a list, while refuses is set.
type refusing struct {
	*dataplanetest.Fake
	id      model.EndpointID
	refuses atomic.Bool
}

func (r *refusing) Apply(ctx context.Context, s *model.State) ([]model.Unsupported, error) {
	unsupported, err := r.Fake.Apply(ctx, s)
	if r.refuses.Load() {
		err = errors.Join(err, &dataplane.EndpointError{ID: r.id, Err: errors.New("refused")})
	}
	return unsupported, err
}

// TestAuditBesideRefusedEndpoint: an endpoint whose decisions the data path refuses must not end the audits of all others. Attachments
// are compared meanwhile. Decisions are not, so the audit does not count as one that could compare everything.
func TestAuditBesideRefusedEndpoint(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		path := &refusing{Fake: r.fake, id: id(1)}
		r.noPool, r.change = true, func(c *agent.Config) {
			c.AuditEvery = 10 * time.Second
			c.Open = func(context.Context, model.Node) (dataplane.Backend, error) { return path, nil }
		}
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		ips := r.mustAdd(0)
		r.mustAdd(1)
		time.Sleep(time.Minute)
		path.refuses.Store(true)
		r.agent.Publish(cluster{pods: 4}.snapshot())
		time.Sleep(time.Minute)
		const success = "isthmus_audit_last_success_timestamp_seconds"
		compared, runs := r.metric(success), r.metric(`isthmus_audit_runs_total{result="clean"}`)

		r.fake.Break(id(0), "routes")
		stranger := dataplane.EndpointSpec{ID: id(9), ContainerID: "c9", IfName: "eth0", NetNS: "/run/netns/c9", Pod: model.PodID{Namespace: "x", Name: "stranger"},
			IPs: []netip.Addr{ips[0].Prev()}}
		if _, err := r.fake.AddEndpoint(context.Background(), stranger); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		if err := r.check(0); err != nil {
			t.Errorf("the attachment of a pod was not repaired: %v", err)
		}
		r.wantOnly(0, 1)
		if got := r.metric(`isthmus_audit_drifts_total{object="endpoint"}`); got != "2" {
			t.Errorf("%s differences, want 2", got)
		}
		if got := r.metric("isthmus_audit_repaired_total"); got != "2" {
			t.Errorf("%s differences are repaired, want 2", got)
		}
		if now := r.metric(`isthmus_audit_runs_total{result="clean"}`); now != runs || r.metric(success) != compared {
			t.Errorf("%s audits are clean, want %s: decisions were not compared", now, runs)
		}
		path.refuses.Store(false)
		time.Sleep(time.Minute)
		if now := r.metric(`isthmus_audit_runs_total{result="clean"}`); now == runs {
			t.Error("no audit compares everything again")
		}
		r.end()
	})
}
