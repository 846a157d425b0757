// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

func denied(s *model.Snapshot, list string) string {
	l, _ := s.DenyLists.Get(list)
	return fmt.Sprint(l.Entries)
}

// A bad entry is named with object, field and remedy; the others count.
func TestDenyListFromManifests(t *testing.T) {
	text := `
{apiVersion: isthmus.dev/v1alpha1, kind: DenyList, metadata: {name: scanners},
  spec: {entries: [192.0.2.7, 198.51.100.0/24, "2001:db8:bad::/48", "2001:db8::7"]}}
---
{apiVersion: isthmus.dev/v1alpha1, kind: DenyList, metadata: {name: mixed}, spec: {entries: [192.0.2.300, 203.0.113.0/24]}}
`
	o, warnings, errs := Parse("a.yaml", []byte(text), DefaultLimits())
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	s := o.Snapshot()
	if got := denied(s, "scanners"); got != "[192.0.2.7/32 198.51.100.0/24 2001:db8::7/128 2001:db8:bad::/48]" {
		t.Error(got)
	}
	if got := denied(s, "mixed"); got != "[203.0.113.0/24]" {
		t.Error(got)
	}
	want := `a.yaml: document 2 (line 5): DenyList mixed: spec.entries[0]: "192.0.2.300": write an address, or ADDRESS/BITS; the entry is ignored, the others are enforced`
	if len(warnings) != 1 || warnings[0].String() != want {
		t.Errorf("warnings %v, want %s", warnings, want)
	}
	for _, bad := range []string{
		`{apiVersion: isthmus.dev/v1, kind: DenyList, metadata: {name: a}, spec: {entries: []}}`,
		`{apiVersion: isthmus.dev/v1alpha1, kind: Denylist, metadata: {name: a}, spec: {entries: []}}`,
		`{apiVersion: isthmus.dev/v1alpha1, kind: AllowList, metadata: {name: a}}`,
		`{apiVersion: isthmus.dev/v1alpha1, kind: DenyList, metadata: {name: A_B}, spec: {entries: []}}`,
		`{apiVersion: isthmus.dev/v1alpha1, kind: DenyList, metadata: {name: a}, spec: {entries: 192.0.2.7}}`,
		`{apiVersion: isthmus.dev/v1alpha1, kind: DenyList, metadata: {name: a}, spec: {entries: [1]}}`,
	} {
		if o, _, errs := Parse("a.yaml", []byte(bad), DefaultLimits()); len(errs) != 1 || len(o.DenyLists) > 0 {
			t.Errorf("%s: %v %v", bad, o.DenyLists, errs)
		}
	}
}
