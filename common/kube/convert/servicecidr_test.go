// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/isthmus-net/isthmus/common/model"
)

// TestServiceCIDR checks that the valid ranges of an object count, and that each invalid one is
// reported.
func TestServiceCIDR(t *testing.T) {
	for _, c := range []struct {
		cidrs    []any
		want     string
		problems []string
	}{
		{[]any{"10.96.0.0/12", "fd96::/112"}, "[10.96.0.0/12 fd96::/112]", nil},
		{[]any{"fd96::/112"}, "[fd96::/112]", nil},
		{nil, "[]", []string{"spec.cidrs: Required value: name one or two ranges"}},
		{[]any{"x", "10.96.0.0/12"}, "[10.96.0.0/12]", []string{"spec.cidrs[0]"}},
		{[]any{"10.96.0.0/12", "10.0.0.0/24"}, "[10.96.0.0/12]", []string{"spec.cidrs[1]", "is the second range of its family"}},
		{[]any{"0.0.0.0/0", "::/0"}, "[]", []string{"spec.cidrs[0]", "spec.cidrs[1]", "contains all addresses"}},
		{[]any{7}, "none", []string{"spec"}},
	} {
		spec := map[string]any{}
		if c.cidrs != nil {
			spec["cidrs"] = c.cidrs
		}
		kind, _ := KindOf(model.KindServiceCIDR)
		r := kind.Record(&unstructured.Unstructured{Object: map[string]any{"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
			"metadata": map[string]any{"name": "kubernetes"}, "spec": spec, "status": map[string]any{"conditions": []any{}}}})
		got := "none"
		if v, ok := r.Value.(*model.ServiceCIDR); ok {
			got = fmt.Sprint(v.Prefixes)
			if v.Origin().String() != "ServiceCIDR kubernetes" {
				t.Errorf("origin %s", v.Origin())
			}
		}
		if got != c.want || (got == "none") != r.Bad {
			t.Errorf("%v: %s, bad %t; want %s", c.cidrs, got, r.Bad, c.want)
		}
		notes := strings.Join(r.Notes, "\n")
		for _, p := range c.problems {
			if !strings.Contains(notes, p) {
				t.Errorf("%v: notes %q lack %q", c.cidrs, notes, p)
			}
		}
		if len(c.problems) == 0 && notes != "" {
			t.Errorf("%v: notes %q", c.cidrs, notes)
		}
	}
	if k, _ := KindOf(model.KindServiceCIDR); k.Record(&metav1.Status{}) != nil {
		t.Error("an object of another type is converted")
	}
}
