// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
)

// requirement is one part of a label selector.
type requirement struct {
	// source is the part of the key before ":", as k8s; "" is any.
	source, key string
	// exists is false for !key. negate is true for != and notin. values is nil if the value does not count.
	exists, negate bool
	values         []string
}

// selectors matches labels in the form source:key=value by selectors in the syntax of Kubernetes.
func (c *compiler) selectors(field string, texts []string, get func(*flow.Flow) []string) {
	var all [][]requirement
	for _, t := range texts {
		s, err := parseSelector(t)
		if err != nil {
			c.fail("%s %q: %w", field, t, err)
		}
		all = append(all, s)
	}
	c.any(len(texts), func(x *flow.Flow) bool {
		labels := get(x)
		return slices.ContainsFunc(all, func(s []requirement) bool {
			return !slices.ContainsFunc(s, func(r requirement) bool { return !r.matches(labels) })
		})
	})
}

func (r *requirement) matches(labels []string) bool {
	value, found := "", false
	for _, l := range labels {
		key, v, _ := strings.Cut(l, "=")
		source, name, ok := strings.Cut(key, ":")
		if !ok {
			source, name = "", key
		}
		if name == r.key && (r.source == "" || r.source == source) {
			value, found = v, true
			break
		}
	}
	switch {
	case r.values == nil:
		return found == r.exists
	case r.negate:
		return !found || !slices.Contains(r.values, value)
	}
	return found && slices.Contains(r.values, value)
}

// parseSelector parses "key", "!key", "key=value", "key==value", "key!=value", "key in (a,b)" and
// "key notin (a,b)", separated by commas. An empty text selects everything.
func parseSelector(text string) (list []requirement, err error) {
	for _, part := range splitOutside(text) {
		part = strings.TrimSpace(part)
		if part == "" {
			if strings.TrimSpace(text) == "" {
				return nil, nil
			}
			return nil, fmt.Errorf("a part is empty: give KEY=VALUE parts separated by commas")
		}
		r, err := parseRequirement(part)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

// splitOutside splits at the commas outside of parentheses.
func splitOutside(text string) (parts []string) {
	depth, start := 0, 0
	for i, r := range text {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case r == ',' && depth == 0:
			parts, start = append(parts, text[start:i]), i+1
		}
	}
	return append(parts, text[start:])
}

func parseRequirement(part string) (requirement, error) {
	r := requirement{exists: true}
	var key string
	if i := strings.IndexAny(part, "=!("); i > 0 && part[i] != '(' {
		op := strings.TrimLeft(part[i:], "=!")
		r.negate = part[i] == '!'
		if text := part[i : len(part)-len(op)]; text != "=" && text != "==" && text != "!=" {
			return r, fmt.Errorf("%q: give =, == or !=", text)
		}
		key, r.values = strings.TrimSpace(part[:i]), []string{strings.TrimSpace(op)}
	} else if head, set, ok := strings.Cut(part, "("); ok {
		words := strings.Fields(head)
		inner, closed := strings.CutSuffix(strings.TrimSpace(set), ")")
		if len(words) != 2 || words[1] != "in" && words[1] != "notin" || !closed {
			return r, fmt.Errorf("%q: give KEY in (A, B) or KEY notin (A, B)", part)
		}
		key, r.negate, r.values = words[0], words[1] == "notin", []string{}
		for v := range strings.SplitSeq(inner, ",") {
			r.values = append(r.values, strings.TrimSpace(v))
		}
	} else {
		name, negated := strings.CutPrefix(part, "!")
		key, r.exists = strings.TrimSpace(name), !negated
	}
	if source, name, ok := strings.Cut(key, ":"); ok {
		if r.source = source; source == "any" {
			r.source = ""
		}
		key = name
	}
	r.key = key
	for _, text := range append([]string{key}, r.values...) {
		if strings.ContainsAny(text, "()=!<>, \t\n") {
			return r, fmt.Errorf("%q is not the name or value of a label", text)
		}
	}
	if key == "" {
		return r, fmt.Errorf("%q has no key: give KEY=VALUE", part)
	}
	return r, nil
}
