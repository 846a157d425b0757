// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
)

// TestResolvers follows the resolvers of pods from ADD through a restart to DEL.
func TestResolvers(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		able := linux
		able.DNS = true
		r.fake = dataplanetest.NewFake(able)
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		for n, d := range []*cniframe.DNS{
			{Servers: []string{"10.96.0.10"}, Searches: []string{"shop.svc.cluster.local", "svc.cluster.local"}, Options: []string{"ndots:5"}},
			{Servers: []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"}, Searches: slices.Repeat([]string{"a"}, 33)},
			nil,
		} {
			req := addRequest(n)
			req.DNS = d
			if _, err := r.addContext(context.Background(), req); err != nil {
				t.Fatal(err)
			}
		}
		right := func(when string) {
			t.Helper()
			dump := r.fake.Dump()
			if strings.Count(dump, "  dns: ") != 2 || !strings.Contains(dump, "  dns: servers 10.96.0.10, search shop.svc.cluster.local svc.cluster.local, options ndots:5\n") ||
				!strings.Contains(dump, "  dns: servers 10.0.0.1 10.0.0.2 10.0.0.3, search "+strings.Join(slices.Repeat([]string{"a"}, 32), " ")+"\n") {
				t.Errorf("%s:\n%s", when, dump)
			}
			problems := strings.Join(r.agent.Node(context.Background()).Problems, "\n")
			for _, want := range []string{
				"warning: pod shop/web-1: 4 DNS servers requested, the first 3 are used; 33 search domains requested, the first 32 are used",
				"warning: 1 of 3 pods get the host's resolver, such as shop/web-2: the runtime passed no DNS servers",
			} {
				if !strings.Contains(problems, want) {
					t.Errorf("%s: no problem %q in\n%s", when, want, problems)
				}
			}
		}
		r.settle()
		right("after ADD")
		r.end()
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.settle()
		right("after a restart")
		for n := range 3 {
			r.mustDel(n)
		}
		r.settle()
		if problems := r.agent.Node(context.Background()).Problems; len(problems) > 0 || strings.Contains(r.fake.Dump(), "dns") {
			t.Errorf("after DEL: %q\n%s", problems, r.fake.Dump())
		}
		r.end()
	})
}

// TestResolverIsRefused checks that invalid values never reach the data path. Where the runtime
// writes resolv.conf, the request has no effect.
func TestResolverIsRefused(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 1}.snapshot())
		req := addRequest(0)
		req.DNS = &cniframe.DNS{Servers: []string{"x"}}
		_, err := r.addContext(context.Background(), req)
		wantCode(t, err, 101, `dns: ["x"] is not valid`)
		req.DNS.Servers = []string{"10.96.0.10"}
		if _, err := r.addContext(context.Background(), req); err != nil {
			t.Fatal(err)
		}
		r.settle()
		if problems := r.agent.Node(context.Background()).Problems; len(problems) > 0 || strings.Contains(r.fake.Dump(), "dns") {
			t.Errorf("on Linux: %q\n%s", problems, r.fake.Dump())
		}
		r.end()
	})
}
