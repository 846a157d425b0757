// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

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
	want := []string{"AdminNetworkPolicy", "ClusterNetworkPolicy", "NetworkPolicy", "BaselineAdminNetworkPolicy"}
	if !slices.Equal(kinds, want) {
		t.Errorf("%v, want %v", kinds, want)
	}
}
