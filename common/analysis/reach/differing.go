// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"maps"
	"reflect"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Edit is a policy that differs between two versions. Was is nil if it was added, and Is
// if it was removed.
type Edit struct{ Was, Is *model.Policy }

// Origin names the policy.
func (e Edit) Origin() model.Origin {
	if e.Is != nil {
		return e.Is.Origin
	}
	return e.Was.Origin
}

// String returns "added", "removed" or "changed".
func (e Edit) String() string {
	switch {
	case e.Was == nil:
		return "added"
	case e.Is == nil:
		return "removed"
	}
	return "changed"
}

// Edits lists the policies that only one list has, or that differ between the lists, in
// order of their origins.
func Edits(was, is []*model.Policy) []Edit {
	before := make(map[model.Origin]*model.Policy)
	for _, p := range was {
		before[p.Origin.Key()] = p
	}
	var edits []Edit
	for _, p := range is {
		q := before[p.Origin.Key()]
		delete(before, p.Origin.Key())
		if q != nil {
			same := *q
			same.Origin.UID = p.Origin.UID
			if reflect.DeepEqual(p, &same) {
				continue
			}
		}
		edits = append(edits, Edit{q, p})
	}
	for p := range maps.Values(before) {
		edits = append(edits, Edit{Was: p})
	}
	slices.SortFunc(edits, func(a, b Edit) int { return a.Origin().Compare(b.Origin()) })
	return edits
}

// Differing names the policies that only one list has, or that differ between the lists.
func Differing(was, is []*model.Policy) []string {
	names := []string{}
	for _, e := range Edits(was, is) {
		names = append(names, e.Origin().String())
	}
	slices.Sort(names)
	return names
}
