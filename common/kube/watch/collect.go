// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/kube/convert"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/report"
)

// podKind is the kind of pods. Kinds are collected in the order of their names, so that of namespaces is before it.
const podKind = "Pod"

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
	a.early.unread = a.unread()
	for _, name := range slices.Sorted(maps.Keys(a.feeds)) {
		f := a.feeds[name]
		changes, complete, synced := f.take()
		if name == podKind && synced { // namespaces come first
			changes = a.early.hold(c.snapshot, &next, changes, complete)
		}
		if !synced || len(changes) == 0 && !complete {
			continue
		}
		if a.apply(&next, &f.kind, changes, complete) {
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

// unread returns the kinds of policies that are not up to date since an outage. Before the first state none are: it waits for all kinds.
// A kind that is not served gets no new policies.
func (a *APIServer) unread() (kinds []string) {
	if !a.away.Load() || !a.published {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(a.feeds)) {
		f := a.feeds[name]
		if _, incomplete := f.waiting(); incomplete && f.kind.Policy && f.absent == 0 {
			kinds = append(kinds, name)
		}
	}
	return kinds
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
func (a *APIServer) apply(s *model.Snapshot, k *convert.Kind, changes map[string]*convert.Record, complete bool) bool {
	if complete {
		a.forget(k.Name, changes)
	}
	changed := k.Apply(s, changes, complete, func(r *convert.Record, known bool) bool {
		recreated := a.recreated(k, r)
		return a.judge(k.Name, r, known && !recreated)
	})
	if k.Policy || k.Reported {
		a.keepStatus(k.Name, changes, complete)
	}
	return changed
}

// recreated reports whether an object has the name of another one, which was deleted meanwhile, and remembers the object.
func (a *APIServer) recreated(k *convert.Kind, r *convert.Record) bool {
	if !k.Policy && !k.Reported {
		return false
	}
	object := convert.ObjectName(k.Name, r.Namespace, r.Name)
	was, known := a.uids[object]
	if r.UID == "" { // it was deleted
		delete(a.uids, object)
	} else {
		a.uids[object] = r.UID
	}
	return known && was != r.UID
}

// judge notes the remarks on an object. It reports whether its predecessor stays in force: an invalid object
// does not replace a valid one. known is true if it has a predecessor.
func (a *APIServer) judge(kind string, r *convert.Record, known bool) bool {
	object := convert.ObjectName(kind, r.Namespace, r.Name)
	// An object that never was valid is replaced by the part that can be enforced now.
	kept := r.Bad && known && !a.unsound[object]
	if r.Explain(kept); r.Bad && !kept {
		a.unsound[object] = true
	} else if !r.Bad {
		delete(a.unsound, object)
	}
	if len(r.Notes) == 0 {
		delete(a.faults, object)
		return kept
	}
	if !slices.Equal(a.faults[object], r.Notes) { // this agent may have changed its status
		a.log.Warn("object of the API server", "object", object, "notes", r.Notes)
	}
	a.faults[object] = r.Notes
	return kept
}

// forget drops the remarks on all objects of a kind, and the state of deleted ones.
func (a *APIServer) forget(kind string, there map[string]*convert.Record) {
	prefix := kind + " "
	maps.DeleteFunc(a.faults, func(object string, _ []string) bool { return strings.HasPrefix(object, prefix) })
	names := make(map[string]bool, len(there))
	for _, r := range there {
		names[convert.ObjectName(kind, r.Namespace, r.Name)] = true
	}
	gone := func(object string) bool { return strings.HasPrefix(object, prefix) && !names[object] }
	maps.DeleteFunc(a.unsound, func(object string, _ bool) bool { return gone(object) })
	maps.DeleteFunc(a.uids, func(object, _ string) bool { return gone(object) })
}

// keepStatus stores the statuses of changed policies, or deny lists, of a kind, and the findings about them. The caller
// holds a.mu.
func (a *APIServer) keepStatus(kind string, changes map[string]*convert.Record, complete bool) {
	if complete {
		mine := func(o model.Origin) bool { return o.Kind == kind }
		maps.DeleteFunc(a.statuses, func(o model.Origin, _ *convert.Status) bool { return mine(o) })
		maps.DeleteFunc(a.remarks, func(o model.Origin, _ report.Remarks) bool { return mine(o) })
	}
	for _, r := range changes {
		o := model.Origin{Kind: kind, Namespace: r.Namespace, Name: r.Name}
		delete(a.statuses, o)
		delete(a.remarks, o)
		if r.Status != nil {
			a.statuses[o] = r.Status
		}
		if len(r.Notes) > 0 {
			a.remarks[o] = report.Remarks{Notes: r.Notes, Bad: r.Bad}
		}
	}
	if a.statusChanged != nil {
		a.statusChanged()
	}
}

// PolicyStatuses returns copies of what keepStatus stored, and the served versions of kinds.
func (a *APIServer) PolicyStatuses() (map[model.Origin]*convert.Status, map[model.Origin]report.Remarks, map[string]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	versions := make(map[string]string)
	for kind, f := range a.feeds {
		if f.stop != nil {
			versions[kind] = f.version
		}
	}
	return maps.Clone(a.statuses), maps.Clone(a.remarks), versions
}
