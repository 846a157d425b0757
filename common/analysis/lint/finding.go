// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// Severity orders findings.
type Severity int

// The severities, ascending. Never is above all: no finding has it.
const (
	Note Severity = iota
	Warning
	Error
	Never
)

// String returns the word that users write and read.
func (s Severity) String() string { return [...]string{"note", "warning", "error", "never"}[s] }

// MarshalText writes the word.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is one likely mistake, or one construct that is not enforced exactly. Its JSON
// form is an interface of isthmusctl.
type Finding struct {
	Severity Severity `json:"severity"`
	// Check names the check, such as "selects-no-pod".
	Check     string `json:"check"`
	Policy    string `json:"policy,omitempty"`
	Direction string `json:"direction,omitempty"`
	// Rule is the index in the API object; nil if the finding is about all rules.
	Rule *int `json:"rule,omitempty"`
	// Platforms are the platforms of the finding; none means all.
	Platforms []string `json:"platforms,omitempty"`
	Message   string   `json:"message"`
	// Place is where a file defines the policy, or has the document.
	Place *model.Place `json:"place,omitempty"`
}

// String formats the finding as one line.
func (f Finding) String() string {
	where := f.Policy
	if f.Rule != nil {
		where += fmt.Sprintf(" %s rule %d", f.Direction, *f.Rule)
	} else if f.Direction != "" {
		where += " " + f.Direction
	}
	if len(f.Platforms) > 0 {
		where += " on " + strings.Join(f.Platforms, ", ")
	}
	if where = strings.TrimSpace(where); where != "" {
		where += ": "
	}
	at := ""
	if f.Place != nil && f.Policy != "" {
		at = " (" + f.Place.String() + ")"
	}
	return fmt.Sprintf("%-7s %s%s: %s%s", f.Severity, where, f.Check, f.Message, at)
}

// Compare orders findings: the most severe first, then by policy, direction and
// rule.
func Compare(a, b Finding) int {
	rule := func(f Finding) int {
		if f.Rule == nil {
			return -1
		}
		return *f.Rule
	}
	return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Direction, b.Direction),
		cmp.Compare(rule(a), rule(b)), cmp.Compare(a.Check, b.Check), slices.Compare(a.Platforms, b.Platforms), comparePlaces(a.Place, b.Place),
		cmp.Compare(a.Message, b.Message))
}

// comparePlaces orders places by files and lines; those without one are first.
func comparePlaces(a, b *model.Place) int {
	var none model.Place
	if a == nil {
		a = &none
	}
	if b == nil {
		b = &none
	}
	return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
}
