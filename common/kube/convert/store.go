// SPDX-License-Identifier: Apache-2.0

package convert

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

// store is where a Snapshot keeps the objects of a kind.
type store interface {
	// apply edits the snapshot. With complete, changes are all objects of the kind, and others are removed.
	// keep reports whether the predecessor of a record stays; known is true if there is one. It returns
	// whether anything changed.
	apply(s *model.Snapshot, changes map[string]*Record, complete bool, keep func(r *Record, known bool) bool) bool
	// replace makes the objects of s equal to those of next, with old pointers where values are equal. It
	// returns whether anything changed.
	replace(s, next *model.Snapshot) bool
}

// mapStore is a map of a Snapshot.
type mapStore[K comparable, V any] struct {
	key func(namespace, name string) K
	// mine reports whether an entry belongs to the kind.
	mine func(K) bool
	of   func(*model.Snapshot) *immutable.Map[K, *V]
}

func byName(_, name string) string { return name }

func all[K comparable](K) bool { return true }

// policies is the store of a kind of policies, which share one map.
func policies(kind string) store {
	return mapStore[model.Origin, model.Policy]{
		func(namespace, name string) model.Origin {
			return model.Origin{Kind: kind, Namespace: namespace, Name: name}
		},
		func(o model.Origin) bool { return o.Kind == kind },
		func(s *model.Snapshot) *immutable.Map[model.Origin, *model.Policy] { return &s.Policies }}
}

func putPolicy(o *model.Objects, v any) { o.Policies = append(o.Policies, v.(*model.Policy)) }

func (m mapStore[K, V]) apply(s *model.Snapshot, changes map[string]*Record, complete bool, keep func(*Record, bool) bool) bool {
	at := m.of(s)
	edits := make(map[K]*V, len(changes))
	if complete {
		for k := range at.All() {
			if m.mine(k) {
				edits[k] = nil
			}
		}
	}
	for _, r := range changes {
		k := m.key(r.Namespace, r.Name)
		value, _ := r.Value.(*V)
		was, known := at.Get(k)
		if keep(r, known) {
			value = was
		}
		edits[k] = value
	}
	next, changed := edit(*at, edits)
	*at = next
	return changed
}

func (m mapStore[K, V]) replace(s, next *model.Snapshot) bool {
	at, to := m.of(s), m.of(next)
	changes := make(map[K]*V)
	for k := range to.Changes(*at) {
		if m.mine(k) {
			changes[k], _ = to.Get(k)
		}
	}
	edited, changed := edit(*at, changes)
	*at = edited
	return changed
}

// ReplaceSnapshot returns a snapshot that equals next and shares all equal parts with old. It reports
// whether anything changed.
func ReplaceSnapshot(old, next *model.Snapshot) (*model.Snapshot, bool) {
	s, changed := *old, false
	for _, k := range Kinds() {
		if k.store != nil && k.store.replace(&s, next) {
			changed = true
		}
	}
	return &s, changed
}
