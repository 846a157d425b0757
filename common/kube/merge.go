// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"maps"
	"reflect"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// rebuildShare: if more than one in so many entries change, it is cheaper to rebuild a map than to edit it.
const rebuildShare = 8

// edit applies changes to a map; nil removes. A value that equals the old one is not a change: the old
// pointer stays. It reports whether anything changed.
func edit[K comparable, V any](m immutable.Map[K, *V], changes map[K]*V) (immutable.Map[K, *V], bool) {
	real := make(map[K]*V)
	for k, v := range changes {
		was, ok := m.Get(k)
		if v == nil && !ok || v != nil && ok && (was == v || reflect.DeepEqual(was, v)) {
			continue
		}
		real[k] = v
	}
	if len(real) == 0 {
		return m, false
	}
	if len(real)*rebuildShare > m.Len() {
		all := maps.Collect(m.All())
		for k, v := range real {
			if v == nil {
				delete(all, k)
			} else {
				all[k] = v
			}
		}
		return immutable.MakeMap(all), true
	}
	for k, v := range real {
		if v == nil {
			m = m.Without(k)
		} else {
			m = m.With(k, v)
		}
	}
	return m, true
}

// replace makes a map equal to next, with old pointers where values are equal.
func replace[K comparable, V any](m, next immutable.Map[K, *V]) (immutable.Map[K, *V], bool) {
	changes := make(map[K]*V)
	for k := range next.Changes(m) {
		changes[k], _ = next.Get(k)
	}
	return edit(m, changes)
}

// replaceSnapshot returns a snapshot that equals next and shares all equal parts with old. It reports
// whether anything changed.
func replaceSnapshot(old, next *model.Snapshot) (*model.Snapshot, bool) {
	var s model.Snapshot
	var changed [5]bool
	s.Namespaces, changed[0] = replace(old.Namespaces, next.Namespaces)
	s.Nodes, changed[1] = replace(old.Nodes, next.Nodes)
	s.Pods, changed[2] = replace(old.Pods, next.Pods)
	s.Policies, changed[3] = replace(old.Policies, next.Policies)
	s.DenyLists, changed[4] = replace(old.DenyLists, next.DenyLists)
	return &s, changed != [5]bool{}
}
