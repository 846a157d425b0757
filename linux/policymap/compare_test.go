// SPDX-License-Identifier: Apache-2.0

package policymap_test

import (
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/linux/policymap"
)

// TestDifferencesAreSorted: two reports of the same damage are equal.
func TestDifferencesAreSorted(t *testing.T) {
	row := map[uint32]policymap.VerdictRow{}
	for peer := range uint32(20) {
		row[peer] = policymap.VerdictRow{Row: peer + 1}
	}
	want := &policymap.Entries{Verdicts: map[uint32]map[uint32]policymap.VerdictRow{6: row}}
	first := policymap.Compare(want, &policymap.Entries{}).Differences
	if len(first) < len(row) {
		t.Fatalf("%d differences, want at least %d", len(first), len(row))
	}
	for range 20 {
		if again := policymap.Compare(want, &policymap.Entries{}).Differences; !slices.Equal(again, first) {
			t.Fatalf("%v, then %v", first, again)
		}
	}
}
