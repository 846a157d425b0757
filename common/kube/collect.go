// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"maps"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
)

// collector owns the snapshot that is being built.
type collector struct {
	snapshot *model.Snapshot
}

// collect takes what the feeds have gathered and builds the next snapshot out
// of the last. It reports whether there is one to publish: it differs from the
// last, and everything that was served at the start is in it.
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

// hold reports whether changes wait. After the API server was away the kinds
// are up to date one after the other; taken one by one they could add up to a
// cluster that never was, and that allows more than the old one and the new one.
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
		a.log.Warn("not all kinds can be read again, changes of the others are taken in", "after", a.cfg.CatchUp)
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

// apply puts the changes of one kind into the snapshot.
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
		a.keepStatus(kind, changes, complete)
		s.Policies, changed = applyRecords(a, kind, s.Policies, changes, complete,
			func(r *record) model.Origin {
				return model.Origin{Kind: kind, Namespace: r.namespace, Name: r.name}
			},
			func(o model.Origin) bool { return o.Kind == kind })
	}
	return changed
}

// applyRecords edits one map. A bad object leaves its predecessor in place.
// mine tells which entries of the map belong to the kind.
func applyRecords[K comparable, V any](a *APIServer, kind string, m model.Map[K, *V], changes map[string]*record, complete bool,
	key func(*record) K, mine func(K) bool) (model.Map[K, *V], bool) {
	edits := make(map[K]*V, len(changes))
	if complete {
		a.forget(kind)
		for k := range m.All() {
			if mine(k) {
				edits[k] = nil
			}
		}
	}
	for _, r := range changes {
		if object := objectName(kind, r.namespace, r.name); len(r.notes) == 0 {
			delete(a.faults, object)
		} else {
			if !slices.Equal(a.faults[object], r.notes) { // its status may have changed, by our own hand
				a.log.Warn("object of the API server", "object", object, "notes", r.notes)
			}
			a.faults[object] = r.notes
		}
		k := key(r)
		value, _ := r.value.(*V)
		if was, ok := m.Get(k); ok && r.bad {
			value = was
		}
		edits[k] = value
	}
	return edit(m, edits)
}

// forget drops the remarks on all objects of a kind.
func (a *APIServer) forget(kind string) {
	prefix := kind + " "
	for object := range a.faults {
		if len(object) > len(prefix) && object[:len(prefix)] == prefix {
			delete(a.faults, object)
		}
	}
}
