// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"unique"
)

// Labels is an immutable, interned set of labels. Equal sets share memory and compare with ==. Work can
// therefore be done once per distinct set instead of once per pod. The zero value is the empty set.
type Labels struct {
	// set holds the pairs sorted by key, each "key\x00value\x00". Kubernetes allows no NUL in either.
	set unique.Handle[string]
}

// MakeLabels interns a set of labels.
func MakeLabels(m map[string]string) Labels {
	if len(m) == 0 {
		return Labels{}
	}
	keys := make([]string, 0, len(m))
	size := 0
	for k, v := range m {
		keys = append(keys, k)
		size += len(k) + len(v) + 2
	}
	slices.Sort(keys)
	var b strings.Builder
	b.Grow(size)
	for _, k := range keys {
		b.WriteString(k)
		b.WriteByte(0)
		b.WriteString(m[k])
		b.WriteByte(0)
	}
	return Labels{set: unique.Make(b.String())}
}

func (l Labels) text() string {
	if l == (Labels{}) {
		return ""
	}
	return l.set.Value()
}

// All yields the pairs in order of their keys.
func (l Labels) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for rest := l.text(); rest != ""; {
			var k, v string
			k, rest, _ = strings.Cut(rest, "\x00")
			v, rest, _ = strings.Cut(rest, "\x00")
			if !yield(k, v) {
				return
			}
		}
	}
}

// Get returns the value of a key, and whether the key exists.
func (l Labels) Get(key string) (string, bool) {
	for k, v := range l.All() {
		if k == key {
			return v, true
		}
	}
	return "", false
}

// String returns "k=v,k2=v2", sorted.
func (l Labels) String() string {
	var parts []string
	for k, v := range l.All() {
		parts = append(parts, k+"="+v)
	}
	return strings.Join(parts, ",")
}

// Operator relates a label key to values in a Requirement.
type Operator uint8

// The operators of a Kubernetes LabelSelector.
const (
	In Operator = iota
	NotIn
	Exists
	DoesNotExist
)

// String returns the spelling of the Kubernetes API.
func (o Operator) String() string {
	return [...]string{"In", "NotIn", "Exists", "DoesNotExist"}[o]
}

// Requirement is one condition on labels. Values is sorted and used by In and
// NotIn only.
type Requirement struct {
	Key      string
	Operator Operator
	Values   []string
}

// Matches applies the condition as k8s.io/apimachinery does: NotIn and DoesNotExist match a set that lacks
// the key.
func (r Requirement) Matches(l Labels) bool {
	v, ok := l.Get(r.Key)
	switch r.Operator {
	case In:
		return ok && slices.Contains(r.Values, v)
	case NotIn:
		return !ok || !slices.Contains(r.Values, v)
	case Exists:
		return ok
	default:
		return !ok
	}
}

// String returns a canonical text of the condition.
func (r Requirement) String() string {
	switch r.Operator {
	case Exists:
		return r.Key
	case DoesNotExist:
		return "!" + r.Key
	case In:
		if len(r.Values) == 1 {
			return r.Key + "=" + r.Values[0]
		}
		return fmt.Sprintf("%s in (%s)", r.Key, strings.Join(r.Values, ","))
	}
	return fmt.Sprintf("%s notin (%s)", r.Key, strings.Join(r.Values, ","))
}

// Selector is a conjunction of requirements. The zero value matches every set
// of labels, as an empty selector does in Kubernetes.
type Selector struct {
	requirements []Requirement
	text         string
}

// MakeSelector returns the conjunction of requirements, in canonical order.
// It takes ownership of the argument.
func MakeSelector(requirements ...Requirement) Selector {
	for i := range requirements {
		slices.Sort(requirements[i].Values)
		requirements[i].Values = slices.Compact(requirements[i].Values)
	}
	slices.SortFunc(requirements, func(a, b Requirement) int { return strings.Compare(a.String(), b.String()) })
	requirements = slices.CompactFunc(requirements, func(a, b Requirement) bool { return a.String() == b.String() })
	parts := make([]string, len(requirements))
	for i, r := range requirements {
		parts[i] = r.String()
	}
	return Selector{requirements: requirements, text: strings.Join(parts, ",")}
}

// Requirements returns the conditions in canonical order. The caller must not modify them.
func (s Selector) Requirements() []Requirement { return s.requirements }

// Everything reports whether the selector has no conditions.
func (s Selector) Everything() bool { return len(s.requirements) == 0 }

// Matches reports whether every requirement matches.
func (s Selector) Matches(l Labels) bool {
	for _, r := range s.requirements {
		if !r.Matches(l) {
			return false
		}
	}
	return true
}

// String returns a canonical text: selectors with equal text match the same
// sets. The empty selector is "".
func (s Selector) String() string { return s.text }
