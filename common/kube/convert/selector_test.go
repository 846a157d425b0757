// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestStoredCIDRs checks that texts that an old API server accepted keep their meaning.
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
		for s, want := range map[Strictness]string{Stored: c.stored, Written: c.written} {
			got, errs := cidr(c.text, s, field.NewPath("cidr"))
			if (len(errs) == 0) != (want != "") || want != "" && got.String() != want {
				t.Errorf("%q strict=%t: %s %v, want %q", c.text, s, got, errs, want)
			}
		}
	}
}

func TestStoredSelectorsMayHaveBadValues(t *testing.T) {
	ls := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: []string{"b c"}}}}
	if s, errs := selector(ls, Stored, field.NewPath("s")); len(errs) > 0 || s.String() != "a=b c" {
		t.Errorf("%s %v", s, errs)
	}
	if _, errs := selector(ls, Written, field.NewPath("s")); len(errs) != 1 {
		t.Errorf("%v", errs)
	}
}
