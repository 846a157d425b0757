// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// TestStoredCIDRs: texts that an old API server accepted keep their meaning.
func TestStoredCIDRs(t *testing.T) {
	for _, c := range []struct{ text, stored, written string }{
		{"10.0.0.0/8", "10.0.0.0/8", "10.0.0.0/8"},
		{"10.1.2.3/8", "10.0.0.0/8", ""},
		{"010.002.0.0/16", "10.2.0.0/16", ""},
		{"10.0.0.0/08", "10.0.0.0/8", ""},
		{"::ffff:10.1.0.0/112", "10.1.0.0/16", ""},
		{"::ffff:0.0.0.0/96", "0.0.0.0/0", ""},
		{"::ffff:10.1.0.0/90", "::ffc0:0:0/90", ""},
		{"FE80:0:0::/64", "fe80::/64", "fe80::/64"},
		{"0.0.0.0/0", "0.0.0.0/0", "0.0.0.0/0"},
		{"::/0", "::/0", "::/0"},
		{"10.0.0.0", "", ""},
		{"10.0.0.0/33", "", ""},
		{"10.0.0.0/-1", "", ""},
		{"fe80::1%eth0/64", "", ""},
		{"", "", ""},
	} {
		for s, want := range map[strictness]string{stored: c.stored, written: c.written} {
			got, errs := cidr(c.text, s, field.NewPath("cidr"))
			if (len(errs) == 0) != (want != "") || want != "" && got.String() != want {
				t.Errorf("%q strict=%t: %s %v, want %q", c.text, s, got, errs, want)
			}
		}
	}
}

func TestStoredSelectorsMayHaveBadValues(t *testing.T) {
	ls := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: []string{"b c"}}}}
	if s, errs := selector(ls, stored, field.NewPath("s")); len(errs) > 0 || s.String() != "a=b c" {
		t.Errorf("%s %v", s, errs)
	}
	if _, errs := selector(ls, written, field.NewPath("s")); len(errs) != 1 {
		t.Errorf("%v", errs)
	}
}

// TestClusterPolicyLimits writes one item less and one more than is allowed.
func TestClusterPolicyLimits(t *testing.T) {
	list := func(n int, item string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(item+", ", n), ", ") + "]"
	}
	networks := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("10.0.%d.0/24", i))
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	cnp := func(spec string) string {
		return "{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: a}, spec: {tier: Admin, subject: {namespaces: {}}, " + spec + "}}"
	}
	anp := func(spec string) string {
		return "{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: a}, spec: {priority: 1, subject: {namespaces: {}}, " + spec + "}}"
	}
	for name, c := range map[string]struct {
		max   int
		field string
		text  func(n int) string
	}{
		"rules": {25, "spec.ingress", func(n int) string {
			return cnp("priority: 1, ingress: " + list(n, "{action: Deny, from: [{namespaces: {}}]}"))
		}},
		"peers": {25, "spec.ingress[0].from", func(n int) string {
			return cnp("priority: 1, ingress: [{action: Deny, from: " + list(n, "{namespaces: {}}") + "}]")
		}},
		"protocols": {25, "spec.egress[0].protocols", func(n int) string {
			return cnp("priority: 1, egress: [{action: Deny, to: [{namespaces: {}}], protocols: " + list(n, "{tcp: {destinationPort: {number: 1}}}") + "}]")
		}},
		"networks": {25, "spec.egress[0].to[0].networks", func(n int) string {
			return cnp("priority: 1, egress: [{action: Deny, to: [{networks: " + networks(n) + "}]}]")
		}},
		"name": {100, "spec.egress[0].name", func(n int) string {
			return cnp("priority: 1, egress: [{name: " + strings.Repeat("ä", n) + ", action: Deny, to: [{namespaces: {}}]}]")
		}},
		"priority": {1000, "spec.priority", func(n int) string { return cnp(fmt.Sprintf("priority: %d", n)) }},
		"v1alpha1 rules": {100, "spec.egress", func(n int) string {
			return anp("egress: " + list(n, "{action: Deny, to: [{namespaces: {}}]}"))
		}},
		"v1alpha1 ports": {100, "spec.ingress[0].ports", func(n int) string {
			return anp("ingress: [{action: Deny, from: [{namespaces: {}}], ports: " + list(n, "{portNumber: {port: 1}}") + "}]")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, errs := Parse("a.yaml", []byte(c.text(c.max)), DefaultLimits()); len(errs) > 0 {
				t.Errorf("%d: %v", c.max, errs)
			}
			_, _, errs := Parse("a.yaml", []byte(c.text(c.max+1)), DefaultLimits())
			if len(errs) != 1 || errs[0].Field != c.field {
				t.Errorf("%d: %v, want one error on %s", c.max+1, errs, c.field)
			}
		})
	}
	if _, _, errs := Parse("a.yaml", []byte(cnp("priority: -1")), DefaultLimits()); len(errs) != 1 {
		t.Errorf("priority -1: %v", errs)
	}
}

// TestEdit compares editing with what a plain map does, for few and for many
// changes.
func TestEdit(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	plain := make(map[int]*model.Node)
	var m immutable.Map[int, *model.Node]
	for step := range 300 {
		changes := make(map[int]*model.Node)
		want := maps.Clone(plain)
		touched := false
		for range 1 + r.IntN(1<<r.IntN(9)) {
			k := r.IntN(2000)
			if r.IntN(4) == 0 {
				changes[k] = nil
			} else {
				changes[k] = &model.Node{Name: fmt.Sprint(r.IntN(3))}
			}
		}
		for k, v := range changes {
			was := want[k]
			switch {
			case v == nil && was == nil, v != nil && was != nil && v.Name == was.Name: // not a change, and the old pointer stays
			case v == nil:
				delete(want, k)
				touched = true
			default:
				want[k] = v
				touched = true
			}
		}
		before := maps.Collect(m.All())
		next, changed := edit(m, changes)
		if got := maps.Collect(next.All()); !maps.Equal(got, want) || changed != touched {
			t.Fatalf("step %d: %d entries, want %d; changed %t, want %t", step, len(got), len(want), changed, touched)
		}
		if !maps.Equal(before, maps.Collect(m.All())) {
			t.Fatal("the old map was modified")
		}
		m, plain = next, want
	}
}

func TestErrorsAreOneLine(t *testing.T) {
	e := DocumentError{File: "a\nb", Document: 2, Line: 7, Object: "Pod x", Field: "spec.a", Detail: "bad\r\n\u2028\x00\xffthing"}
	if got, want := e.Error(), "a b: document 2 (line 7): Pod x: spec.a: bad    ?thing"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (DocumentError{File: "a", Detail: "d"}).Error(); got != "a: d" {
		t.Errorf("%q", got)
	}
	long := strings.Repeat("x", 10_000)
	for _, text := range []string{
		"spec: {podSelector: " + long + "}",
		"spec: {policyTypes: [" + long + "]}",
		"spec: {policyTypes: [" + long + ", a, b]}",
		"spec: {podSelector: {matchLabels: {a: " + long + "}}}",
		"spec: {podSelector: {matchLabels: {" + long + ": 5}}}",
		"spec: {ingress: [{ports: [{protocol: " + long + "}]}]}",
		long + ": 5, spec: {ingress: 5}",
		"kind: " + long + ", spec: {ingress: 5}",
		"apiVersion: " + long + ", kind: Pod, spec: {hostNetwork: 5}",
	} {
		head := "apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, "
		if strings.Contains(text, "kind") {
			head = "apiVersion: policy.networking.k8s.io/v1, "
		}
		if strings.Contains(text, "apiVersion") {
			head = ""
		}
		_, warnings, errs := Parse("a.yaml", []byte("{"+head+"metadata: {name: "+long+"}, "+text+"}"), DefaultLimits())
		for _, e := range errs {
			if len(e.Error()) > 2500 {
				t.Errorf("%.60s: an error of %d bytes", text, len(e.Error()))
			}
		}
		for _, w := range warnings {
			if len(w.String()) > 2500 {
				t.Errorf("%.60s: a warning of %d bytes", text, len(w.String()))
			}
		}
		if len(errs)+len(warnings) == 0 && head != "" {
			t.Errorf("%.60s: no error", text)
		}
	}
}

// TestPoliciesOfEveryKindCoexist: one name in four kinds is four policies.
func TestPoliciesOfEveryKindCoexist(t *testing.T) {
	text := `
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: default}, spec: {}}
---
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: default}, spec: {tier: Admin, priority: 1, subject: {namespaces: {}}}}
---
{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: default}, spec: {priority: 1, subject: {namespaces: {}}}}
---
{apiVersion: policy.networking.k8s.io/v1alpha1, kind: BaselineAdminNetworkPolicy, metadata: {name: default}, spec: {subject: {namespaces: {}}}}
`
	o, warnings, errs := Parse("a.yaml", []byte(text), DefaultLimits())
	if len(errs) > 0 || len(warnings) > 0 {
		t.Fatal(errs, warnings)
	}
	var kinds []string
	for _, p := range o.Snapshot().SortedPolicies() {
		kinds = append(kinds, p.Origin.Kind)
	}
	want := []string{kindAdminNetworkPolicy, kindClusterNetworkPolicy, kindNetworkPolicy, kindBaselineAdminNetworkPolicy}
	if !slices.Equal(kinds, want) {
		t.Errorf("%v, want %v", kinds, want)
	}
}
