// SPDX-License-Identifier: Apache-2.0

package fabric_test

import (
	"slices"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/fabric"
)

// TestComparison checks texts, repeated problems, and the time of the next comparison.
func TestComparison(t *testing.T) {
	start := time.Unix(1000, 0)
	var c fabric.Comparison
	for _, step := range []struct {
		found, fresh, problems []string
		due                    time.Duration
	}{
		{nil, nil, nil, 5 * time.Second},
		{[]string{"b", "a\nc", "b"}, []string{"a; c", "b"}, []string{"fabric: a; c", "fabric: b"}, time.Second},
		{[]string{"b", fabric.Warning + "d"}, []string{fabric.Warning + "d"}, []string{"fabric: b", "warning: fabric: d"}, time.Second},
		{nil, nil, nil, 5 * time.Second},
		{[]string{"b"}, []string{"b"}, []string{"fabric: b"}, time.Second},
	} {
		if fresh := c.Done(start, step.found); !slices.Equal(fresh, step.fresh) {
			t.Errorf("found %q: new problems %q, want %q", step.found, fresh, step.fresh)
		}
		if !slices.Equal(c.Problems, step.problems) || c.Due != start.Add(step.due) {
			t.Errorf("found %q: problems %q, due after %s; want %q, %s", step.found, c.Problems, c.Due.Sub(start), step.problems, step.due)
		}
	}
}
