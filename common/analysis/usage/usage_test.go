// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
)

// api is the policy shop/api: two ingress rules, and isolation.
func api() *model.Policy {
	p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "api", UID: "u1"}, Tier: model.TierNetworkPolicy, Isolates: [2]bool{model.Ingress: true}}
	p.Rules[model.Ingress] = []model.Rule{{Action: model.ActionAccept, Name: "web"}, {Index: 1, Action: model.ActionAccept}}
	return p
}

// decided is a counter of a cause.
func decided(reason model.Reason, policy string, d model.Direction, rule int, v model.Verdict, flows uint64) inspect.Count {
	return inspect.Count{Decision: model.Decision{Verdict: v, Cause: &model.Cause{Reason: reason, Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: policy}, Direction: d, Rule: rule}}, Flows: flows}
}

// bundle is a node with pods under policy.
func bundle(os model.OS, pods int, counts *inspect.Counts) *inspect.Bundle {
	other := api()
	other.Origin.Name = "unused"
	b := &inspect.Bundle{About: inspect.About{OS: os, Notes: []string{"turn on --rule-counters"}}, Cluster: inspect.Cluster{Policies: []*model.Policy{other, api()}}, Counts: counts}
	for range pods {
		b.Endpoints = append(b.Endpoints, inspect.Endpoint{Policies: []model.Origin{api().Origin}})
	}
	return b
}

// text is what a value holds.
func text(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// The decisions of a rule are those of its cause, and no others. Policies without pods here are missing.
func TestOf(t *testing.T) {
	b := bundle(model.Linux, 2, &inspect.Counts{Others: [2][2]uint64{{4, 1}, {0, 2}}, Past: [2][2]uint64{{0, 9}, {0, 0}},
		Shared: []model.Decision{decided(model.ReasonRule, "api", model.Ingress, 0, model.Allow, 0).Decision, {}},
		Causes: []inspect.Count{decided(model.ReasonRule, "api", model.Ingress, 1, model.Allow, 7), decided(model.ReasonRule, "api", model.Egress, 1, model.Allow, 100),
			decided(model.ReasonRule, "unused", model.Ingress, 1, model.Allow, 100), decided(model.ReasonIsolated, "api", model.Ingress, 0, model.Deny, 5),
			decided(model.ReasonNode, "", 0, 0, model.Allow, 3), decided(model.ReasonSelf, "", 0, 0, model.Allow, 1), decided(model.ReasonDefault, "", 0, 0, model.Allow, 11),
			decided(model.ReasonPending, "", 0, 0, model.Deny, 6), {Flows: 1000}}})
	b.About.Unsupported = []model.Unsupported{{Policy: api().Origin, Rule: 0}, {Policy: api().Origin, Rule: 1}, {Policy: api().Origin, Effect: model.Refused}}
	want := `{"items":[{"policy":"NetworkPolicy shop/api","tier":"NetworkPolicy","pods":2,"inexact":["over-blocks","refused"],"allowed":7,"denied":5,"rules":[` +
		`{"direction":"ingress","rule":0,"name":"web","allowed":0,"denied":0,"shared":true},{"direction":"ingress","rule":1,"allowed":7,"denied":0},{"direction":"ingress","allowed":0,"denied":5}]}],` +
		`"uncounted":{"default":11,"node":4,"pending":6,"not_separately_allowed":3,"not_separately_denied":4,"past":9,"not_separately_rules":2},"unit":"new flows"}`
	if got := text(Of(b)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := Of(bundle(model.Windows, 1, nil)); got.Unit != Packets || got.Items[0].Allowed != nil || got.Uncounted != nil || fmt.Sprint(got.Notes) != "[turn on --rule-counters]" {
		t.Errorf("without numbers: %s", text(got))
	}
}

// answer is that of a node with pods under shop/api: a rule that allowed, and isolation that denied.
func answer(node string, os model.OS, pods int, allowed, denied uint64) Answer {
	p := Of(bundle(os, pods, &inspect.Counts{Packets: os == model.Windows, Others: [2][2]uint64{{1, 0}, {0, 0}},
		Causes: []inspect.Count{decided(model.ReasonRule, "api", model.Ingress, 1, model.Allow, allowed), decided(model.ReasonIsolated, "api", model.Ingress, 0, model.Deny, denied)}}))
	return Answer{Node: node, OS: os, Policies: &p}
}

// Flows and packets are never added to each other, and no node is lost: it counts or it is missing with a reason.
func TestSum(t *testing.T) {
	silent := Of(bundle(model.Windows, 1, nil))
	wrong := answer("n6", model.Windows, 1, 1000, 1000)
	wrong.OS = model.Linux
	shared := answer("n2", model.Linux, 2, 10, 20)
	shared.Policies.Items[0].Rules[1].Shared = true
	total := Sum([]Answer{answer("n1", model.Linux, 1, 1, 2), shared, answer("w1", model.Windows, 1, 100, 200), {Node: "w2", OS: model.Windows, Policies: &silent},
		answer("n3", model.Linux, 0, 500, 500), {Node: "n5", OS: model.Linux, Why: "connection refused"}, {Node: "x"}, wrong})
	rest := func(allowed, denied int) string {
		return fmt.Sprintf(`"Allowed":%d,"Denied":%d,"Rest":{"default":0,"node":0,"pending":0,"not_separately_allowed":%d,"not_separately_denied":%d,"past":0,"not_separately_rules":0}}`, allowed, denied, allowed, denied)
	}
	want := `[{"OS":"linux","Unit":"new flows","Nodes":5,"Answered":4,"Counted":3,"Missing":[{"Node":"n5","Why":"connection refused","Answered":false},` +
		`{"Node":"n6","Why":"it counts packets, unlike the other nodes with its operating system","Answered":true}],` + rest(0, 3) +
		`,{"OS":"unknown","Unit":"new flows","Nodes":1,"Answered":0,"Counted":0,"Missing":[{"Node":"x","Why":"no answer","Answered":false}],` + rest(0, 0) +
		`,{"OS":"windows","Unit":"packets","Nodes":2,"Answered":2,"Counted":1,"Missing":[{"Node":"w2","Why":"turn on --rule-counters","Answered":true}],` + rest(0, 1) + "]"
	if got := text(total.Systems); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	p := total.Policies["NetworkPolicy shop/api"]
	if p == nil || len(total.Policies) != 1 || p.Pods != 4 || p.Flows != (Number{2, 11, 22, true}) || p.Packets != (Number{1, 100, 200, false}) || len(p.Rules) != 3 {
		t.Fatalf("%s", text(total.Policies))
	}
	for i, want := range []RuleTotal{{"ingress", 0, "web", Number{2, 0, 0, false}, Number{1, 0, 0, false}}, {"ingress", 1, "", Number{2, 11, 0, true}, Number{1, 100, 0, false}},
		{"ingress", -1, "", Number{2, 0, 22, false}, Number{1, 0, 200, false}}} {
		if p.Rules[i] != want {
			t.Errorf("rule %d: %+v, want %+v", i, p.Rules[i], want)
		}
	}
}

// Constructs are listed once, with the platforms and nodes that do not enforce them exactly.
func TestInexact(t *testing.T) {
	u := func(policy string, rule int, platform, reason string) model.Unsupported {
		return model.Unsupported{Policy: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: policy, UID: platform}, Rule: rule, Construct: "SCTP", OS: model.Windows, Platform: platform, Reason: reason}
	}
	whole := u("api", -7, "hns 9.5", "r")
	whole.Direction = 200 // of an agent that is wrong
	empty := &Policies{}
	total := Sum([]Answer{{Node: "w2", Policies: empty, Unsupported: []model.Unsupported{u("api", 0, "hns 9.5", "r"), u("api", 0, "hns 9.5", "r"), whole}, Unlisted: 3},
		{Node: "w1", Policies: empty, Unsupported: []model.Unsupported{u("api", 0, "hns 9.5", "r"), u("web", 1, "hns 9.5", "r"), u("api", 0, "hns 13.3", "q")}},
		{Node: "w3", Unsupported: []model.Unsupported{u("no answer", 0, "", "")}}})
	var got []string
	for _, c := range total.Inexact {
		line := fmt.Sprint(c.Policy, " ", c.Direction, " ", c.Rule)
		for _, w := range c.On {
			line += fmt.Sprint("; ", w.Platform, " ", w.Effect, " ", w.Reason, " ", w.Nodes)
		}
		got = append(got, line)
	}
	want := []string{"NetworkPolicy shop/api ingress -1; hns 9.5 over-blocks r [w2]", "NetworkPolicy shop/api ingress 0; hns 13.3 over-blocks q [w1]; hns 9.5 over-blocks r [w1 w2]",
		"NetworkPolicy shop/web ingress 1; hns 9.5 over-blocks r [w1]"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") || total.Unlisted != 3 {
		t.Errorf("%d not listed:\n%s", total.Unlisted, strings.Join(got, "\n"))
	}
}

// A node with endless rules does not fill the memory of those who add up.
func TestBounds(t *testing.T) {
	many := Policies{Unit: Flows, Uncounted: &Rest{}}
	for i := range 3 {
		item := Policy{Policy: fmt.Sprint("NetworkPolicy shop/", i), Allowed: new(uint64), Denied: new(uint64)}
		for n := range maxRules / 2 {
			item.Rules = append(item.Rules, Rule{Rule: &n})
		}
		many.Items = append(many.Items, item)
	}
	total := Sum([]Answer{{Node: "n1", OS: model.Linux, Policies: &many}, answer("n2", model.Linux, 1, 1, 1)})
	if s := total.Systems[0]; s.Counted != 1 || len(s.Missing) != 1 || !strings.Contains(s.Missing[0].Why, "too many rules") {
		t.Errorf("%+v", s)
	}
}

func TestNamespaceOf(t *testing.T) {
	for name, want := range map[string]string{"NetworkPolicy shop/api": "shop", "ClusterNetworkPolicy audit": "", "shop/api": "", "": "", "X a/b/c": "a"} {
		if got := NamespaceOf(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
