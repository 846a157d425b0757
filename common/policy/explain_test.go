// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/world"
)

// Explain decides as Endpoint does. Its trace has exactly the rule that the cause names, and
// every listed change reverses the verdict.
func TestExplainAgreesWithEvaluate(t *testing.T) {
	flows, changes, next := 0, 0, 0
	for i, shape := range world.Shapes {
		for seed := range uint64(6) {
			s := world.Random(seed+uint64(1000*i), shape)
			reference := policy.NewEvaluator(s)
			addrs, ports := world.Probes(s)
			for _, p := range s.Pods.All() {
				for n, a := range addrs {
					at := ports[(n*7+int(seed))%len(ports)]
					for _, d := range model.Directions {
						want := reference.Endpoint(p, d, a, at.Protocol, at.Port)
						x := reference.Explain(p, d, a, at.Protocol, at.Port)
						flows++
						changes += len(x.Changes)
						if x.Next != nil {
							next++
						}
						checkExplanation(t, x, want)
					}
				}
			}
		}
	}
	if changes == 0 || next == 0 {
		t.Error("no change was suggested in any case, or nothing denies without the rule that denies")
	}
	t.Logf("flows=%d changes=%d next=%d", flows, changes, next)
}

func checkExplanation(t *testing.T, x policy.Explanation, want model.Decision) {
	t.Helper()
	if x.Decision.Verdict != want.Verdict || *x.Decision.Cause != *want.Cause {
		t.Fatalf("%s %s %s: explained as %s, reference %s", x.Pod.PodID, x.Direction, x.Remote, x.Decision, want)
	}
	removed := slices.ContainsFunc(x.Changes, func(c policy.Change) bool {
		return c.Policy == want.Cause.Origin && c.Rule == want.Cause.Rule && c.What == "without this rule"
	})
	if denied := want.Verdict == model.Deny && want.Cause.Reason == model.ReasonRule; (x.Next != nil) != (denied && !removed) && len(x.Changes) < 10 {
		t.Fatalf("%s: without the rule %v denies it, changes are %v", want, x.Next, x.Changes)
	}
	deciding := 0
	for _, r := range x.Rules {
		if r.Role == policy.Decides {
			deciding++
			if want.Cause.Reason != model.ReasonRule || r.Policy.Origin != want.Cause.Origin || r.Rule.Index != want.Cause.Rule {
				t.Fatalf("trace: %s rule %d decides, reference %s", r.Policy.Origin, r.Rule.Index, want)
			}
		}
		matches := len(r.PeerMisses) == 0 && len(r.PortMisses) == 0
		if r.Role == policy.NoMatch && matches || r.Role == policy.Passes && !matches {
			t.Fatalf("%s rule %d %s, and yet misses %q %q", r.Policy.Origin, r.Rule.Index, r.Role, r.PeerMisses, r.PortMisses)
		}
	}
	if (deciding == 1) != (want.Cause.Reason == model.ReasonRule) || deciding > 1 {
		t.Fatalf("%d rules decide, reference %s", deciding, want)
	}
	for _, c := range x.Changes {
		if c.Then.Verdict == want.Verdict || c.What == "" {
			t.Fatalf("change %q of %s does not reverse %s: %s", c.What, c.Policy, want, c.Then)
		}
	}
}
