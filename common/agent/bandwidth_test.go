// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
)

// TestBandwidth follows limits from ADD through a restart to DEL.
func TestBandwidth(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		able := linux
		able.Bandwidth = true
		r.fake = dataplanetest.NewFake(able)
		r.start()
		r.agent.Publish(cluster{pods: 2}.snapshot())
		req := addRequest(0)
		req.Bandwidth = &cniframe.Bandwidth{IngressRate: 10e6, IngressBurst: 1<<32 - 1}
		if _, err := r.addContext(context.Background(), req); err != nil {
			t.Fatal(err)
		}
		r.mustAdd(1)
		limited := func(when string) {
			t.Helper()
			if dump := r.fake.Dump(); strings.Count(dump, "  limited: ") != 1 || !strings.Contains(dump, "  limited: ingress 10000000 bit/s\n") {
				t.Errorf("%s:\n%s", when, dump)
			}
		}
		check := func(b *cniframe.Bandwidth) error {
			err := r.agent.Check(context.Background(), &cniframe.CheckRequest{Attachment: req.Attachment, Bandwidth: b})
			return err
		}
		limited("after ADD")
		r.end()
		r.start()
		r.agent.Publish(cluster{pods: 2}.snapshot())
		r.settle()
		limited("after a restart")
		wantCode(t, check(req.Bandwidth), 0, "")
		wantCode(t, check(nil), 0, "")
		wantCode(t, check(&cniframe.Bandwidth{IngressRate: 20e6}), 104, "restart the pod")
		wantCode(t, check(&cniframe.Bandwidth{EgressBurst: 1}), 101, "egressBurst is 1 bits without a rate")
		r.mustDel(0)
		if strings.Contains(r.fake.Dump(), "limited") {
			t.Errorf("after DEL:\n%s", r.fake.Dump())
		}
		r.end()
	})
}

func TestBandwidthIsRefused(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 1}.snapshot())
		for _, c := range []struct {
			b    *cniframe.Bandwidth
			text string
		}{
			{&cniframe.Bandwidth{EgressRate: 1e6}, "cannot be limited on linux (test)"},
			{&cniframe.Bandwidth{EgressRate: 7}, "egressRate is 7"},
		} {
			req := addRequest(0)
			req.Bandwidth = c.b
			_, err := r.addContext(context.Background(), req)
			wantCode(t, err, 101, c.text)
		}
		if strings.Contains(r.fake.Dump(), "endpoint") {
			t.Errorf("something is attached:\n%s", r.fake.Dump())
		}
		r.end()
	})
}

// TestOnlyEgressIsLimited checks a data path that limits egress only, from a lowest rate on: a pod with an ingress
// limit or a lower rate does not start, and the error gives the reason.
func TestOnlyEgressIsLimited(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		able := linux
		able.EgressBandwidth, able.MinEgressRate = true, 80e3
		r.fake = dataplanetest.NewFake(able)
		r.start()
		r.agent.Publish(cluster{pods: 2}.snapshot())
		req := addRequest(0)
		req.Bandwidth = &cniframe.Bandwidth{EgressRate: 5e6, IngressRate: 1e6}
		_, err := r.addContext(context.Background(), req)
		wantCode(t, err, 101, "only egress bandwidth")
		req.Bandwidth = &cniframe.Bandwidth{EgressRate: 80e3 - 8}
		_, err = r.addContext(context.Background(), req)
		wantCode(t, err, 101, "egress-bandwidth of the pod to 80k or more")
		if dump := r.fake.Dump(); strings.Contains(dump, "limited") {
			t.Errorf("a pod that was refused is attached:\n%s", dump)
		}
		other := addRequest(1)
		other.Bandwidth = &cniframe.Bandwidth{EgressRate: 80e3}
		if _, err := r.addContext(context.Background(), other); err != nil {
			t.Errorf("the lowest rate: %v", err)
		}
		req.Bandwidth = &cniframe.Bandwidth{EgressRate: 5e6}
		if _, err := r.addContext(context.Background(), req); err != nil {
			t.Fatal(err)
		}
		if dump := r.fake.Dump(); !strings.Contains(dump, "  limited: egress 5000000 bit/s\n") {
			t.Errorf("limits:\n%s", dump)
		}
		r.end()
	})
}
