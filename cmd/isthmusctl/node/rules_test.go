// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
)

// The flows of a rule are those of its cause, and no others. What no listed rule decided is in the last lines.
func TestPoliciesCountRules(t *testing.T) {
	origin := model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "api"}
	api := &model.Policy{Origin: origin, Tier: model.TierNetworkPolicy, Isolates: [2]bool{model.Ingress: true}}
	api.Rules[model.Ingress] = []model.Rule{{Action: model.ActionAccept}, {Index: 1, Action: model.ActionAccept}}
	rule := func(o model.Origin, d model.Direction, n int) model.Decision {
		return model.Decision{Verdict: model.Allow, Cause: &model.Cause{Reason: model.ReasonRule, Origin: o, Tier: model.TierNetworkPolicy, Direction: d, Rule: n}}
	}
	other := origin
	other.Name = "other"
	shared := rule(origin, model.Ingress, 0)
	b := &inspect.Bundle{
		About:     inspect.About{OS: model.Linux},
		Cluster:   inspect.Cluster{Policies: []*model.Policy{api}},
		Endpoints: []inspect.Endpoint{{Policies: []model.Origin{origin}}},
		Counts: &inspect.Counts{Others: [2][2]uint64{{4, 1}, {0, 2}}, Past: [2][2]uint64{{0, 9}, {0, 0}}, Shared: []model.Decision{shared}, Causes: []inspect.Count{
			{Decision: rule(origin, model.Ingress, 1), Flows: 7}, {Decision: rule(origin, model.Egress, 1), Flows: 100}, {Decision: rule(other, model.Ingress, 1), Flows: 100},
			{Decision: model.Decision{Verdict: model.Deny, Cause: &model.Cause{Reason: model.ReasonIsolated, Origin: origin, Tier: model.TierNetworkPolicy}}, Flows: 5},
			{Decision: model.Decision{Verdict: model.Allow, Cause: &model.Cause{Reason: model.ReasonNode}}, Flows: 3}, {Decision: model.Decision{Verdict: model.Allow, Cause: &model.Cause{}}, Flows: 11}}},
	}
	var archive bytes.Buffer
	if err := b.Write(&archive); err != nil {
		t.Fatal(err)
	}
	read, err := inspect.Read(&archive)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	e := env{}
	e.Stdout = &out
	if err := e.writePolicies(read, "text"); err != nil {
		t.Fatal(err)
	}
	want := `POLICY                             TIER           PODS  ENFORCED  ALLOWED  DENIED
NetworkPolicy shop/api             NetworkPolicy  1     exactly   7        5
  ingress rule 0, not all counted                                 0        0
  ingress rule 1                                                  7        0
  isolation, ingress                                              0        5
Other new flows: 11 where no policy isolates the pod, 3 of the node itself or of a pod to itself, 0 before policy was known, 9 of rules that are gone.
Not counted separately: 3 allowed, 4 denied; rules without a counter of their own: 1.
`
	if out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
	}
	checkPoliciesJSON(t, read, origin)
	out.Reset()
	read.Counts.Packets, read.About.OS = true, model.Windows
	if err := e.writePolicies(read, "text"); err != nil || !strings.Contains(out.String(), "ALLOWED PACKETS  DENIED PACKETS") || !strings.Contains(out.String(), "Other packets: 11 where") {
		t.Errorf("packets: %v\n%s", err, out.String())
	}
	read.Counts = nil
	out.Reset()
	if err := e.writePolicies(read, "text"); err != nil || !strings.Contains(out.String(), "not counted  not counted") || strings.Contains(out.String(), "Other new flows") {
		t.Errorf("on Windows: %v\n%s", err, out.String())
	}
}

// checkPoliciesJSON checks the numbers of the policy in JSON.
func checkPoliciesJSON(t *testing.T, read *inspect.Bundle, origin model.Origin) {
	t.Helper()
	var out bytes.Buffer
	e := env{}
	e.Stdout = &out
	if err := e.writePolicies(read, "json"); err != nil {
		t.Fatal(err)
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
	if err := json.Unmarshal(out.Bytes(), &report); err != nil || len(report.Items) != 1 || len(report.Items[0].Rules) != 3 {
		t.Fatalf("JSON %s: %v", out.String(), err)
	}
	if p := report.Items[0]; p.Policy != origin.String() || p.Rules[1].Rule == nil || *p.Rules[1].Rule != 1 || p.Rules[1].Direction != "ingress" || p.Rules[1].Allowed != 7 ||
		p.Rules[2].Rule != nil || p.Rules[2].Denied != 5 {
		t.Errorf("JSON %s", out.String())
	}
}
