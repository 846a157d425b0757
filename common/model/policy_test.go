// SPDX-License-Identifier: Apache-2.0

package model

import "testing"

// TestMatchesNamespace states which namespaces a selector means. The compiler and
// the Evaluator share the method, so nothing else would notice its mistakes.
func TestMatchesNamespace(t *testing.T) {
	red := MakeSelector(Requirement{Key: "team", Operator: In, Values: []string{"red"}})
	for _, c := range []struct {
		why      string
		selector PodSelector
		name     string
		labels   map[string]string
		want     bool
	}{
		{"the name", PodSelector{Namespace: "team"}, "team", nil, true},
		{"a name that begins with it", PodSelector{Namespace: "team"}, "team-b", nil, false},
		{"a name that it begins with", PodSelector{Namespace: "team-b"}, "team", nil, false},
		{"another case", PodSelector{Namespace: "team"}, "Team", nil, false},
		{"labels count only without a name", PodSelector{Namespace: "team", Namespaces: red}, "other", map[string]string{"team": "red"}, false},
		{"labels are not needed with a name", PodSelector{Namespace: "team", Namespaces: red}, "team", nil, true},
		{"labels", PodSelector{Namespaces: red}, "other", map[string]string{"team": "red"}, true},
		{"other labels", PodSelector{Namespaces: red}, "red", map[string]string{"team": "blue"}, false},
		{"no condition", PodSelector{}, "any", nil, true},
	} {
		if got := c.selector.MatchesNamespace(NewNamespace(c.name, c.labels)); got != c.want {
			t.Errorf("%s: %s matches namespace %s %v: %t, want %t", c.why, c.selector, c.name, c.labels, got, c.want)
		}
	}
}
