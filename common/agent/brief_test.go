// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
)

// counting is a data path that counts by cause, and whose decisions must not be read back.
type counting struct {
	*dataplanetest.Fake
	t   *testing.T
	err error
}

func (c *counting) CauseCounts(context.Context) (dataplane.CauseCounts, error) {
	cause := model.Cause{Reason: model.ReasonIsolated, Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "shut"}}
	return dataplane.CauseCounts{Causes: []dataplane.CauseCount{{Decision: model.Decision{Cause: &cause}, Flows: 7}}}, c.err
}

func (c *counting) ReadDecisions(context.Context) (dataplane.Decisions, error) {
	c.t.Error("decisions are read back")
	return dataplane.Decisions{}, nil
}

// Brief has the numbers of rules with the policies that select attached pods, and reads no decisions back. A loop that hangs
// does not keep it from describing the node.
func TestBrief(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		backend := &counting{Fake: r.fake, t: t}
		r.change = func(c *agentConfig) {
			c.AuditEvery = 0
			c.Open = func(context.Context, model.Node) (dataplane.Backend, error) { return backend, nil }
		}
		r.start()
		if b := r.agent.Brief(t.Context()); !strings.Contains(fmt.Sprint(b.About.Notes), "the state of the cluster is not known yet") || b.Counts != nil {
			t.Errorf("before the first objects: %+v", b)
		}
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.settle()
		for n := range 3 {
			r.mustAdd(n)
		}
		brief := func() (selected string) {
			b := r.agent.Brief(t.Context())
			for _, e := range b.Endpoints {
				selected += fmt.Sprintf("%s %v; ", e.Pod, e.Policies)
			}
			if b.About.Node != "node1" || b.Installed != nil || len(b.Cluster.Pods) != 0 || len(b.Cluster.Policies) == 0 {
				t.Errorf("%+v", b)
			}
			if backend.err == nil && (b.Counts == nil || b.Counts.Causes[0].Flows != 7) || backend.err != nil && (b.Counts != nil || !strings.Contains(fmt.Sprint(b.About.Notes), "no numbers of rules: switched off")) {
				t.Errorf("counts %+v, notes %q", b.Counts, b.About.Notes)
			}
			return selected
		}
		const want = "shop/web-0 []; shop/web-1 [NetworkPolicy shop/shut]; shop/web-2 []; "
		if got := brief(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		backend.err = fmt.Errorf("%w: switched off", fmt.Errorf("switched off"))
		brief()
		r.agent.Publish(cluster{pods: 3, edit: func(n int, p *model.Pod) { p.UID += "-other" }}.snapshot())
		r.settle()
		if got := brief(); strings.Contains(got, "shut") {
			t.Errorf("pods of the same names, but not those that are attached: %s", got)
		}
		testBriefHangs(t, r)
		r.end()
	})
}

// testBriefHangs asks while the loop hangs.
func testBriefHangs(t *testing.T, r *rig) {
	t.Helper()
	release := make(chan struct{})
	r.fake.SetFault(func(context.Context, string) error { <-release; return nil })
	r.agent.Publish(cluster{pods: 3}.snapshot())
	r.settle()
	began := time.Now()
	b := r.agent.Brief(t.Context())
	if took := time.Since(began); took > 10*time.Second || b.About.Node != "node1" || !strings.Contains(fmt.Sprint(b.About.Notes), "no numbers of rules") {
		t.Errorf("after %s: %+v", took, b)
	}
	r.fake.SetFault(nil)
	close(release)
	r.settle()
	if b := r.agent.Brief(t.Context()); len(b.Endpoints) != 3 {
		t.Errorf("after that: %+v", b)
	}
}
