// SPDX-License-Identifier: Apache-2.0

package corpus_test

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/linux/probe"
)

// counting is an engine.Node: the real programs, whose counters must follow the reference.
type counting struct {
	*probe.Programs
	state   *model.State
	cluster **engine.Cluster
	flows   *int
}

func (c *counting) Apply(s *model.State) error {
	c.state = s
	return c.Programs.Apply(s)
}

// Decide returns an error unless one counter counts the flow: that of the rule or the default by which the Evaluator
// decides it.
func (c *counting) Decide(id model.EndpointID, d model.Direction, remote netip.Addr, p model.Protocol, port uint16) (model.Verdict, error) {
	before, err := c.Counts()
	if err != nil {
		return model.Deny, err
	}
	verdict, err := c.Programs.Decide(id, d, remote, p, port)
	if err != nil {
		return verdict, err
	}
	after, err := c.Counts()
	if err != nil {
		return verdict, err
	}
	s := (*c.cluster).Snapshot
	pod, ok := s.Pods.Get(c.state.Policy.Endpoints[id].Pod)
	if !ok {
		return verdict, fmt.Errorf("pod %s is not in the snapshot", c.state.Policy.Endpoints[id].Pod)
	}
	want := policy.NewEvaluator(s).Endpoint(pod, d, remote, p, port)
	counted := 0
	for n, flows := range after {
		is := c.Cause(n)
		if flows == before[n] {
			continue
		}
		counted++
		if flows != before[n]+1 || is.Cause == nil || is.Verdict != want.Verdict || is.String() != want.String() {
			return verdict, fmt.Errorf("%s %s of %s: counter %d, of %s, counted %d flows, want 1 of %s", d, remote, id, n, is, flows-before[n], want)
		}
	}
	ports := p.HasPorts() || p == model.ICMP || p == model.ICMPv6
	if counted != 1 && ports { // without ports, two questions are one flow
		return verdict, fmt.Errorf("%s %s of %s, %s: %d counters counted", d, remote, id, want, counted)
	}
	*c.flows++
	return verdict, nil
}

// Each flow of the corpus is counted once, for the rule that decides it according to the Evaluator, also while the
// policies of a case change.
func TestCorpusCountsCauses(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	var cluster *engine.Cluster
	flows := 0
	programs := &engine.PerNode{Title: "counters", Packets: true, Reuse: true, Open: func() (engine.Node, error) {
		p, err := probe.Load()
		return &counting{Programs: p, cluster: &cluster, flows: &flows}, err
	}}
	defer func() {
		if err := programs.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range load(t) {
		t.Run(c.Name, func(t *testing.T) {
			cluster = nil
			for _, step := range c.Steps {
				cluster = engine.Compile(step.Snapshot, cluster)
				judge(t, []engine.Engine{programs}, cluster, step.Flows)
			}
		})
	}
	t.Logf("flows=%d", flows)
	if flows < 2000 {
		t.Errorf("%d flows were counted, want at least 2000", flows)
	}
}
