// SPDX-License-Identifier: Apache-2.0

package query

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/analysis/lint"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/world"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Constructs that other products do not enforce on Windows are exact here. lint reports so,
// and the ACLs decide as the reference evaluator does, under every reading.
func TestExactOnWindows(t *testing.T) {
	_, out, _ := ctl("lint", "-m", "testdata/mixed", "-o", "json")
	var answer struct{ Constructs []lint.Construct }
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, c := range answer.Constructs {
		seen[c.Construct] = true
		for _, on := range c.On {
			if want := c.Construct != policy.ConstructBlock6 || on.Platform != "hns-9.5"; (on.Result == "exact") != want {
				t.Errorf("%s rule %d %s on %s: %s", c.Policy, c.Rule, c.Construct, on.Platform, on.Result)
			}
		}
	}
	for _, c := range []string{policy.ConstructExcept, policy.ConstructNamedPort, policy.ConstructRange, policy.ConstructNegativeSelector,
		policy.ConstructPass, policy.ConstructDeny, policy.ConstructBlock6} {
		if !seen[c] {
			t.Errorf("no rule of the example has %s", c)
		}
	}
	s, _, err := (&cluster.Source{Manifests: []string{"testdata/mixed"}}).Load(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	cells := 0
	for _, v := range hns.Profiles() {
		cells += compareACLs(t, s, v)
	}
	t.Logf("cells=%d", cells)
}

// compareACLs decides every probe at every pod, over IPv4.
func compareACLs(t *testing.T, s *model.Snapshot, v hns.Version) (cells int) {
	t.Helper()
	reference := policy.NewEvaluator(s)
	addrs, ports := world.Probes(s)
	for _, pod := range s.Pods.All() {
		state, _ := compileNode(s, pod.Node)
		lowering := acl.Lower(state, aclOptions(v), v.String())
		for _, a := range addrs {
			if a.Is6() {
				continue
			}
			for _, p := range ports {
				for _, d := range model.Directions {
					f := model.Flow{Src: pod.IPs[0], Dst: pod.IPs[0], Protocol: p.Protocol, Port: p.Port}
					want := reference.Endpoint(pod, d, a, p.Protocol, p.Port).Verdict
					got, reason := decideACLs(&lowering.Ruleset, engine.EndpointOf(pod), pod, d, a, f)
					cells++
					if got != want || reason != "" {
						t.Fatalf("HNS %s: %s %s %s %v: ACLs %s %s, reference %s", v, pod.PodID, d, a, p, got, reason, want)
					}
				}
			}
		}
	}
	return cells
}

// If there are more sets of ports than fit, lint reports the omitted ones, and explain
// reports what is enforced instead.
func TestOverBlocked(t *testing.T) {
	dir := t.TempDir()
	rules := ""
	for i := range 1200 {
		rules += "    - from: [{ipBlock: {cidr: 172.16.0.0/24}}]\n      ports: [{port: " + text(1000+2*i) + "}]\n"
	}
	manifest := `apiVersion: v1
kind: Pod
metadata: {name: p, namespace: shop}
spec: {nodeSelector: {kubernetes.io/os: windows}, containers: [{name: c}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: many, namespace: shop}
spec:
  podSelector: {}
  ingress:
` + rules
	if err := os.WriteFile(filepath.Join(dir, "m.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	status, out, _ := ctl("lint", "-m", dir, "-o", "json")
	var r struct {
		Findings []struct{ Severity, Check, Policy string }
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != 1 {
		t.Fatalf("exit status %d, %v", status, err)
	}
	if !slices.ContainsFunc(r.Findings, func(f struct{ Severity, Check, Policy string }) bool {
		return f.Severity == "warning" && f.Check == "enforceability"
	}) {
		t.Errorf("no finding about it: %.300s", out)
	}
	inexact := 0
	for _, i := range []int{0, 600, 1199} {
		_, out, _ = ctl("explain", "-m", dir, "--from", "172.16.0.9", "--to", "shop/p", "-p", text(1000+2*i), "--hns", "13.3", "-o", "json")
		var x explain.Report
		if err := json.Unmarshal([]byte(out), &x); err != nil || len(x.Sides) != 1 {
			t.Fatalf("%v: %s", err, out)
		}
		for _, c := range x.Sides[0].Enforced {
			if !c.Exact {
				inexact++
				if c.Verdict != "deny" || len(c.Reasons) == 0 {
					t.Errorf("enforced as %+v", c)
				}
			}
		}
	}
	if inexact == 0 {
		t.Error("no flow is over-blocked")
	}
}

func text(n int) string {
	b, _ := json.Marshal(n)
	return string(b)
}
