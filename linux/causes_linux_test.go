// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// causeLab compares what rules have counted.
type causeLab struct {
	*lab
}

func (l *causeLab) counts() (c dataplane.CauseCounts) {
	l.t.Helper()
	l.must(l.node.Do(func() (err error) {
		c, err = l.backend.CauseCounts(context.Background())
		return err
	}))
	return c
}

// rules returns the flows of the rules of a policy by index; those that no rule accepted have index -1.
func (l *causeLab) rules(policy string) map[int]uint64 {
	l.t.Helper()
	flows := make(map[int]uint64)
	for _, c := range l.counts().Causes {
		if c.Cause.Origin.Name != policy {
			continue
		}
		rule := c.Cause.Rule
		if c.Cause.Reason == model.ReasonIsolated {
			rule = -1
		}
		if _, twice := flows[rule]; twice {
			l.t.Errorf("rule %d of %s has two counters", rule, policy)
		}
		flows[rule] = c.Flows
	}
	return flows
}

// expect waits until the rules of a policy have counted these flows.
func (l *causeLab) expect(what, policy string, want map[int]uint64) {
	l.t.Helper()
	var got map[int]uint64
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		got = l.rules(policy)
		same := true
		for rule, n := range want {
			same = same && got[rule] == n
		}
		if same {
			return
		}
	}
	l.t.Errorf("%s: the rules of %s counted %v, want %v", what, policy, got, want)
}

// sums requires that the causes of a direction and verdict add up to the verdicts of the pods.
func (l *causeLab) sums() {
	l.t.Helper()
	var sum, pods [2][2]uint64
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		pods = [2][2]uint64{}
		l.must(l.node.Do(func() error {
			all, err := l.backend.Endpoints(context.Background())
			for _, e := range all {
				for d := range pods {
					for v := range pods[d] {
						pods[d][v] += e.Verdicts[d][v]
					}
				}
			}
			return err
		}))
		c := l.counts()
		sum = c.Others
		for d := range sum {
			for v := range sum[d] {
				sum[d][v] += c.Past[d][v]
			}
		}
		for _, one := range c.Causes {
			sum[one.Cause.Direction][one.Verdict] += one.Flows
		}
		if sum == pods {
			return
		}
	}
	l.t.Errorf("the causes add up to %v, the verdicts of the pods to %v", sum, pods)
}

// ofNode returns the flows that the node itself opened.
func ofNode(c dataplane.CauseCounts) (flows uint64) {
	for _, one := range c.Causes {
		if one.Cause.Reason == model.ReasonNode {
			flows += one.Flows
		}
	}
	return flows
}

// numberedRules sets the indexes of rules, as the API does.
func numberedRules(rules ...model.Rule) []model.Rule {
	for i := range rules {
		rules[i].Index = i
	}
	return rules
}

// Each rule counts the flows that it decides, exactly. Its counter follows it to another index, counts for no other
// rule, and continues when the agent restarts.
func TestFlowsOfRules(t *testing.T) {
	t.Parallel()
	l := &causeLab{lab: newServiceLab(t)}
	a := l.pods["a"]
	policy := func(rules ...model.Rule) { l.apply(isolate("b", model.Ingress, numberedRules(rules...)...)) }
	web, dns := accept(pods("a"), udp(8080)), accept(pods("a"), udp(7001))
	policy(web)
	for _, to := range []string{"10.1.0.12", "fd01::c"} {
		l.sends(a, 7, net.JoinHostPort(to, "8080"))
		l.sends(a, 5, net.JoinHostPort(to, "7001"))
	}
	l.expect("first", "b-ingress", map[int]uint64{0: 14, -1: 10})
	policy(dns, web)
	l.expect("another rule before it", "b-ingress", map[int]uint64{0: 0, 1: 14, -1: 10})
	l.sends(a, 3, "10.1.0.12:8080")
	l.sends(a, 4, "10.1.0.12:7001")
	l.expect("both rules", "b-ingress", map[int]uint64{0: 4, 1: 17, -1: 10})
	l.again()
	l.state = nil
	for name, n := range map[string]byte{"a": 11, "b": 12} {
		l.must(l.add(name, n))
	}
	policy(dns, web)
	l.expect("after a restart", "b-ingress", map[int]uint64{0: 4, 1: 17, -1: 10})
	policy(accept(pods("a"), udp(8080), udp(9)))
	l.sends(a, 2, "10.1.0.12:8080")
	l.expect("a rule that says something else", "b-ingress", map[int]uint64{0: 2, -1: 10})
	if got := l.rules("b-ingress"); len(got) != 2 {
		t.Errorf("rules that are gone still count: %v", got)
	}
	l.sends(a, 6, net.JoinHostPort(service4, "80"))
	l.expect("through a Service", "b-ingress", map[int]uint64{0: 8})
	was := l.counts()
	l.sends(l.node, 5, "10.1.0.12:9000")
	l.sums()
	is := l.counts()
	if before, after := ofNode(was), ofNode(is); after < before+5 || is.Others != was.Others {
		t.Errorf("the node has opened %d flows, %d before, want at least 5 more; others %v, before %v", after, before, is.Others, was.Others)
	}
}

// While rules change places, come and go under traffic, no counter counts a flow of another rule, and no flow is lost.
func TestFlowsOfRulesWhilePoliciesChange(t *testing.T) {
	t.Parallel()
	l := &causeLab{lab: newServiceLab(t)}
	a := l.pods["a"]
	web, dns, other := accept(pods("a"), udp(8080)), accept(pods("a"), udp(7001)), accept(pods("c"), udp(8080), udp(5))
	policy := func(rules ...model.Rule) { l.apply(isolate("b", model.Ingress, numberedRules(rules...)...)) }
	policy(web, dns)
	var sent [2]atomic.Uint64
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for n := 0; n < 50000; n++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			to := []string{"10.1.0.12:8080", "10.1.0.12:7001"}[n%2]
			if err := l.send(a, 1, to); err != nil {
				done <- err
				return
			}
			sent[n%2].Add(1)
		}
		done <- nil // ports are used up
	}()
	edits := 0
	for end := time.Now().Add(patience); edits < 60 || sent[0].Load() < 1000 && time.Now().Before(end); edits++ {
		switch edits % 4 {
		case 0:
			policy(dns, web)
		case 1:
			policy(other, dns, web)
		case 2:
			policy(web, other, dns)
		case 3:
			policy(web, dns)
		}
	}
	close(stop)
	l.must(<-done)
	policy(web, dns)
	t.Logf("edits=%d flows=%d", edits, sent[0].Load()+sent[1].Load())
	l.expect("after the edits", "b-ingress", map[int]uint64{0: sent[0].Load(), 1: sent[1].Load(), -1: 0})
	l.sums()
	if c := l.counts(); c.Others != ([2][2]uint64{}) || len(c.Shared) > 0 {
		t.Errorf("%v flows are not counted separately, for want of room for %v", c.Others, c.Shared)
	}
}
