// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/cluster"
)

// rulePods are the pods of TestRulesAgree. Their policies follow.
const rulePods = `
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: test, labels: {app: client}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: test, labels: {app: server}}
spec: {containers: [{name: main, ports: [{containerPort: 7000, protocol: UDP}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: other, namespace: test, labels: {app: other}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: last, namespace: test, labels: {app: last}}
spec: {containers: [{name: main}]}
`

// The rules of the policy of the server.
const (
	ruleA = "  - {from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 7000, protocol: UDP}]}\n"
	ruleB = "  - {from: [{podSelector: {}}], ports: [{port: 7001, protocol: UDP}]}\n"
	ruleC = "  - {from: [{podSelector: {matchLabels: {app: other}}}], ports: [{port: 7002, protocol: UDP}]}\n"
)

// rulePolicies are the policies: of the server with these rules, for egress, and of an administrator.
func rulePolicies(rules ...string) string {
	return `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: test}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
` + strings.Join(rules, "") + `---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: out, namespace: test}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - {to: [{podSelector: {matchLabels: {app: server}}}]}
  - {to: [{podSelector: {}}], ports: [{port: 7001, protocol: UDP}]}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: guard}
spec:
  priority: 1
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: other}}}}
  ingress: [{name: no-client, action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: last}}}}]}]
`
}

// hits are numbers of flows by node, policy, direction, rule and verdict.
type hits map[string]uint64

// rulesLab sends flows and reads what counts them.
type rulesLab struct {
	*testing.T
	cluster *cluster.Cluster
	pods    map[string]*cluster.Pod
	port    int
	// want are the decisions of the reference evaluator on what was sent.
	want hits
}

// count adds a decision.
func (h hits) count(node string, d model.Decision) {
	c := d.Cause
	switch c.Reason {
	case model.ReasonRule:
		h[fmt.Sprint(node, " ", c.Origin, " ", c.Direction, " ", c.Rule, " ", d.Verdict)]++
	case model.ReasonIsolated:
		h[fmt.Sprint(node, " ", c.Origin, " ", c.Direction, " isolation ", d.Verdict)]++
	}
}

// set puts a number that is not 0.
func (h hits) set(n uint64, parts ...any) {
	if n > 0 {
		h[strings.TrimSpace(fmt.Sprintln(parts...))] += n
	}
}

// send sends datagrams between all pods, each from a new port, and counts what the evaluator decides. It returns
// these decisions.
func (l *rulesLab) send(each int) hits {
	l.Helper()
	objects, err := l.cluster.Manifests.Objects(l.Context())
	if err != nil {
		l.Fatal(err)
	}
	evaluator, now := policy.NewEvaluator(objects.Snapshot()), hits{}
	for _, from := range l.pods {
		for _, to := range l.pods {
			if from == to {
				continue
			}
			for _, v6 := range []bool{false, true} {
				for port := uint16(7000); port < 7003; port++ {
					f := model.Flow{Src: address(from, v6), Dst: address(to, v6), Protocol: model.UDP, Port: port}
					for range each {
						l.datagram(from, netip.AddrPortFrom(f.Dst, port))
						egress, ingress := evaluator.Flow(f)
						now.count(from.Node.Name, egress)
						if egress.Verdict == model.Allow {
							now.count(to.Node.Name, ingress)
						}
					}
				}
			}
		}
	}
	for key, n := range now {
		l.want[key] += n
	}
	return now
}

func (l *rulesLab) datagram(from *cluster.Pod, to netip.AddrPort) {
	l.Helper()
	l.port++
	err := from.NS.Do(func() error {
		d := net.Dialer{LocalAddr: &net.UDPAddr{Port: 10000 + l.port}}
		c, err := d.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("hello"))
		return err
	})
	if err != nil {
		l.Fatal(err)
	}
}

var (
	hitsLine  = regexp.MustCompile(`^isthmus_rule_hits_total\{direction="(\w+)",id="(\w*)",kind="(\w+)",namespace="([\w-]*)",policy="([\w-]+)",rule="(\w+)",verdict="(\w+)"\} (\d+)$`)
	causeRule = regexp.MustCompile(`rule (\d+)`)
)

// metrics reads isthmus_rule_hits_total of all nodes.
func (l *rulesLab) metrics() hits {
	l.Helper()
	all := hits{}
	for _, n := range l.cluster.Nodes {
		body, status, err := n.Get("/metrics")
		if err != nil || status != 200 {
			l.Fatalf("metrics of %s: %d, %v", n.Name, status, err)
		}
		for line := range strings.Lines(body) {
			if !strings.HasPrefix(line, "isthmus_rule_hits_total{") {
				continue
			}
			m := hitsLine.FindStringSubmatch(strings.TrimSpace(line))
			if m == nil {
				l.Fatalf("unexpected series %s", line)
			}
			value, err := strconv.ParseUint(m[8], 10, 64)
			if err != nil {
				l.Fatal(err)
			}
			all.set(value, n.Name, model.Origin{Kind: m[3], Namespace: m[4], Name: m[5]}, m[1], m[6], m[7])
		}
	}
	return all
}

// policies reads the hits that isthmusctl policies shows at all nodes.
func (l *rulesLab) policies() hits {
	l.Helper()
	all := hits{}
	for _, n := range l.cluster.Nodes {
		out, err := n.Ctl(l.Context(), "policies", "-o", "json").Output()
		if err != nil {
			l.Fatal(err)
		}
		var report struct {
			Items []struct {
				Policy string
				Rules  []struct {
					Direction       string
					Rule            *int
					Allowed, Denied uint64
				}
			}
		}
		if err := json.Unmarshal(out, &report); err != nil || len(report.Items) == 0 {
			l.Fatalf("%v\n%s", err, out)
		}
		for _, p := range report.Items {
			for _, r := range p.Rules {
				rule := "isolation"
				if r.Rule != nil {
					rule = strconv.Itoa(*r.Rule)
				}
				all.set(r.Allowed, n.Name, p.Policy, r.Direction, rule, model.Allow)
				all.set(r.Denied, n.Name, p.Policy, r.Direction, rule, model.Deny)
			}
		}
	}
	return all
}

// events counts the flow events of all nodes by the rules that they name.
func (l *rulesLab) events() hits {
	l.Helper()
	all := hits{}
	for _, n := range l.cluster.Nodes {
		out, err := n.Ctl(l.Context(), "events", "--last", "2048", "-o", "json").Output()
		if err != nil {
			l.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			var e flowEvent
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				l.Fatalf("%v\n%s", err, line)
			}
			if e.Event.Policy == "" || e.Event.Protocol != "UDP" {
				continue
			}
			rule := "isolation"
			if m := causeRule.FindStringSubmatch(e.Event.Cause); m != nil {
				rule = m[1]
			}
			all.set(1, n.Name, e.Event.Policy, e.Event.Direction, rule, e.Event.Verdict)
		}
	}
	return all
}

// agree waits until these numbers are those of the evaluator.
func (l *rulesLab) agree(what string, read func() hits, want hits) {
	l.Helper()
	var got hits
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if got = read(); maps.Equal(got, want) {
			return
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if got[key] != want[key] {
			l.Errorf("%s: %s: %d flows, the evaluator counts %d", what, key, got[key], want[key])
		}
	}
	for key, n := range got {
		if _, ok := want[key]; !ok {
			l.Errorf("%s: %s: %d flows, the evaluator counts none", what, key, n)
		}
	}
}

// moved returns numbers after rules of the server got other indexes.
func (h hits) moved(to map[string]string) hits {
	is := hits{}
	for key, n := range h {
		for was, now := range to {
			if before, after, ok := strings.Cut(key, "test/server ingress "+was+" "); ok {
				key = before + "test/server ingress " + now + " " + after
				break
			}
		}
		is[key] += n
	}
	return is
}

// The metric of rules, isthmusctl policies and flow events name the same rules with the same numbers as the reference
// evaluator, also after rules were inserted, moved and removed. Events from before a change keep the index of then.
func TestRulesAgree(t *testing.T) {
	c, pods := startCluster(t, rulePods, cluster.Config{Linux: 2, AgentFlags: []string{"--rule-metrics=100", "--flow-event-burst=2000", "--flow-event-rate=2000"}})
	l := &rulesLab{T: t, cluster: c, pods: pods, want: hits{}}
	use := func(rules ...string) {
		t.Helper()
		if err := c.Manifests.Put("rules", rulePolicies(rules...)); err != nil {
			t.Fatal(err)
		}
		if err := c.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	told := hits{} // what events name, by the indexes of their time
	check := func(what string, each int) {
		t.Helper()
		for key, n := range l.send(each) {
			told[key] += n
		}
		l.agree(what+", metric", l.metrics, l.want)
		l.agree(what+", isthmusctl policies", l.policies, l.want)
		l.agree(what+", events", l.events, told)
	}
	use(ruleA, ruleB)
	check("two rules", 3)
	use(ruleC, ruleB, ruleA)
	l.want = l.want.moved(map[string]string{"0": "2", "1": "1"})
	l.agree("an inserted rule and a new order, metric", l.metrics, l.want)
	l.agree("an inserted rule and a new order, events", l.events, told)
	check("three rules", 2)
	use(ruleA, ruleC)
	l.want = l.want.moved(map[string]string{"2": "0", "1": "gone", "0": "1"})
	maps.DeleteFunc(l.want, func(key string, _ uint64) bool { return strings.Contains(key, " gone ") })
	check("a removed rule", 2)
	if t.Failed() {
		return
	}
	flows, rules := uint64(0), len(l.want)
	for _, n := range told {
		flows += n
	}
	if rules < 5 {
		t.Errorf("only %d rules have decided: %v", rules, l.want)
	}
	t.Logf("rules: counted=%d decisions=%d changes=2", rules, flows)
}
