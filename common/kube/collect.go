// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// collector owns the snapshot under construction.
type collector struct {
	snapshot *model.Snapshot
}

// collect builds the next snapshot from the last one and the changes of the feeds. It reports whether to
// publish it: it differs from the last, and it contains every kind that was served at the start.
func (a *APIServer) collect(c *collector) (*model.Snapshot, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.published && !a.ready() {
		return nil, false
	}
	next, changed := *c.snapshot, !a.published
	for _, kind := range slices.Sorted(maps.Keys(a.feeds)) {
		changes, complete, synced := a.feeds[kind].take()
		if !synced || len(changes) == 0 && !complete {
			continue
		}
		if a.apply(&next, kind, changes, complete) {
			changed = true
		}
	}
	if !changed {
		return nil, false
	}
	a.published = true
	c.snapshot = &next
	return &next, true
}

// hold reports whether changes must wait. After an outage of the API server the kinds become up to date one
// after the other. Applied one by one they could form a cluster that never existed, and that allows more
// than both the old and the new one.
func (a *APIServer) hold(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.published || !a.away.Load() {
		return false
	}
	changed, behind := false, false
	for _, f := range a.feeds {
		changes, incomplete := f.waiting()
		changed, behind = changed || changes, behind || incomplete
	}
	switch {
	case !behind:
		a.away.Store(false)
		a.heldSince, a.waived = time.Time{}, false
		return false
	case !changed, a.waived:
		return false
	case a.heldSince.IsZero():
		a.heldSince = now
	case now.Sub(a.heldSince) > a.cfg.CatchUp:
		a.waived = true
		a.log.Warn("some kinds still cannot be read, applying the changes of the others", "after", a.cfg.CatchUp)
		return false
	}
	return true
}

// ready reports whether the first complete state is known.
func (a *APIServer) ready() bool {
	if !a.discovered {
		return false
	}
	for _, f := range a.feeds {
		f.mu.Lock()
		synced := f.synced
		f.mu.Unlock()
		if !synced {
			return false
		}
	}
	return true
}

// apply applies the changes of one kind to the snapshot.
func (a *APIServer) apply(s *model.Snapshot, kind string, changes map[string]*record, complete bool) bool {
	var changed bool
	name := func(r *record) string { return r.name }
	all := func(string) bool { return true }
	switch kind {
	case "Namespace":
		s.Namespaces, changed = applyRecords(a, kind, s.Namespaces, changes, complete, name, all)
	case "Node":
		s.Nodes, changed = applyRecords(a, kind, s.Nodes, changes, complete, name, all)
	case "Pod":
		s.Pods, changed = applyRecords(a, kind, s.Pods, changes, complete,
			func(r *record) model.PodID { return model.PodID{Namespace: r.namespace, Name: r.name} },
			func(model.PodID) bool { return true })
	case model.KindDenyList:
		s.DenyLists, changed = applyRecords(a, kind, s.DenyLists, changes, complete, name, all)
	default:
		s.Policies, changed = applyRecords(a, kind, s.Policies, changes, complete,
			func(r *record) model.Origin {
				return model.Origin{Kind: kind, Namespace: r.namespace, Name: r.name}
			},
			func(o model.Origin) bool { return o.Kind == kind })
		a.keepStatus(kind, changes, complete)
	}
	return changed
}

// applyRecords edits one map. An invalid object leaves its predecessor in place. mine reports which entries
// of the map belong to the kind.
func applyRecords[K comparable, V any](a *APIServer, kind string, m immutable.Map[K, *V], changes map[string]*record, complete bool,
	key func(*record) K, mine func(K) bool) (immutable.Map[K, *V], bool) {
	edits := make(map[K]*V, len(changes))
	if complete {
		a.forget(kind, changes)
		for k := range m.All() {
			if mine(k) {
				edits[k] = nil
			}
		}
	}
	for _, r := range changes {
		k, object := key(r), objectName(kind, r.namespace, r.name)
		value, _ := r.value.(*V)
		was, known := m.Get(k)
		// An object that never was valid is replaced by the part that can be enforced now.
		kept := r.bad && known && !a.unsound[object]
		if kept {
			value = was
		}
		edits[k] = value
		if r.explain(kept); r.bad && !kept {
			a.unsound[object] = true
		} else if !r.bad {
			delete(a.unsound, object)
		}
		if len(r.notes) == 0 {
			delete(a.faults, object)
			continue
		}
		if !slices.Equal(a.faults[object], r.notes) { // this agent may have changed its status
			a.log.Warn("object of the API server", "object", object, "notes", r.notes)
		}
		a.faults[object] = r.notes
	}
	return edit(m, edits)
}

// forget drops the remarks on all objects of a kind, and the state of deleted ones.
func (a *APIServer) forget(kind string, there map[string]*record) {
	prefix := kind + " "
	maps.DeleteFunc(a.faults, func(object string, _ []string) bool { return strings.HasPrefix(object, prefix) })
	names := make(map[string]bool, len(there))
	for _, r := range there {
		names[objectName(kind, r.namespace, r.name)] = true
	}
	maps.DeleteFunc(a.unsound, func(object string, _ bool) bool { return strings.HasPrefix(object, prefix) && !names[object] })
}
