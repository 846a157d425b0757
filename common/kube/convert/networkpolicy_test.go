// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStoredPolicyTypes reads policyTypes as the API server may have stored them. An unknown type isolates
// both directions: its author wanted some isolation, and it is not known which.
func TestStoredPolicyTypes(t *testing.T) {
	for _, c := range []struct {
		types []networkingv1.PolicyType
		want  [2]bool // ingress, egress
		errs  int
	}{
		{[]networkingv1.PolicyType{"Ingress"}, [2]bool{true, false}, 0},
		{[]networkingv1.PolicyType{"Egress"}, [2]bool{false, true}, 0},
		{[]networkingv1.PolicyType{"Egress", "Ingress"}, [2]bool{true, true}, 0},
		{[]networkingv1.PolicyType{"Foo"}, [2]bool{true, true}, 1},
		{[]networkingv1.PolicyType{"ingress"}, [2]bool{true, true}, 1},
		{[]networkingv1.PolicyType{"Ingress", "Foo"}, [2]bool{true, true}, 1},
		{[]networkingv1.PolicyType{"Foo", "Egress"}, [2]bool{true, true}, 1},
		{[]networkingv1.PolicyType{"Ingress", "Ingress", "Ingress"}, [2]bool{true, true}, 1},
	} {
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "shop"}, Spec: networkingv1.NetworkPolicySpec{PolicyTypes: c.types}}
		p, errs := convertNetworkPolicy(np, Stored)
		if p == nil || p.Isolates != c.want || len(errs) != c.errs {
			t.Errorf("policyTypes %v: %+v with %v, want isolation %v and %d errors", c.types, p, errs, c.want, c.errs)
		}
	}
}
