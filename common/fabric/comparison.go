// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"slices"
	"strings"
	"time"
)

// The interval between comparisons of the system with an unchanged plan, and the interval after a problem.
const (
	auditPeriod = 5 * time.Second
	retryPeriod = time.Second
)

// Warning begins the text of a problem that does not prevent the node from working.
const Warning = "warning: "

// Comparison is the result of the last comparison of a system with its plan. The zero value is due at once.
type Comparison struct {
	// Problems are sorted, on one line each, and name the fabric.
	Problems []string
	// Due is the time of the next comparison.
	Due time.Time
}

// Done records a comparison that found problems. It returns the problems that the last one did not have, on one
// line each.
func (c *Comparison) Done(now time.Time, problems []string) (fresh []string) {
	c.Due = now.Add(auditPeriod)
	if len(problems) > 0 {
		c.Due = now.Add(retryPeriod)
	}
	lines := make([]string, 0, len(problems))
	for _, p := range problems {
		lines = append(lines, strings.ReplaceAll(p, "\n", "; "))
	}
	slices.Sort(lines)
	lines = slices.Compact(lines)
	named := make([]string, 0, len(lines))
	for _, p := range lines {
		text := "fabric: " + p
		if rest, ok := strings.CutPrefix(p, Warning); ok {
			text = Warning + "fabric: " + rest
		}
		if !slices.Contains(c.Problems, text) {
			fresh = append(fresh, p)
		}
		named = append(named, text)
	}
	c.Problems = named
	return fresh
}
