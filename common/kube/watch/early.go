// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"strings"

	"github.com/isthmus-net/isthmus/common/kube/convert"
	"github.com/isthmus-net/isthmus/common/model"
)

// early are the pods whose namespace is not known, by key. Watches of different kinds have no common order, so a pod may arrive
// before its namespace. Without the labels of that, rules that deny the pod would not, and policies that select it would not either.
// Such a pod is not in the snapshot: its address is that of an unknown pod, and it is not attached.
//
// While policies cannot be read, new pods wait, too: they may be pods that a new policy isolates or denies.
type early struct {
	pods map[string]*convert.Record
	// unread are the kinds of policies that are not up to date.
	unread []string
}

func newEarly() early { return early{pods: make(map[string]*convert.Record)} }

// hold moves pods between their changes and those that wait. was is the last snapshot, and s the next one, which has its namespaces
// but not its pods. It returns the changes for s.
func (e early) hold(was, s *model.Snapshot, changes map[string]*convert.Record, complete bool) map[string]*convert.Record {
	known := func(r *convert.Record) bool {
		_, ok := s.Namespaces.Get(r.Namespace)
		return ok && (len(e.unread) == 0 || inForce(was, r))
	}
	if complete {
		clear(e.pods)
	}
	all := make(map[string]*convert.Record, len(changes))
	for key, r := range e.pods {
		if known(r) {
			all[key] = r
			delete(e.pods, key)
		}
	}
	if !complete && lost(was, s) {
		for _, pod := range s.Pods.All() {
			if r := (&convert.Record{Namespace: pod.Namespace, Name: pod.Name, Value: pod}); !known(r) {
				all[r.Key()] = r
			}
		}
	}
	for key, r := range changes {
		delete(e.pods, key)
		all[key] = r
	}
	for key, r := range all {
		if r.Value != nil && !known(r) {
			e.pods[key], all[key] = r, &convert.Record{Namespace: r.Namespace, Name: r.Name}
		}
	}
	return all
}

// inForce reports whether a snapshot has the pod of a record, and not another pod of its name.
func inForce(s *model.Snapshot, r *convert.Record) bool {
	pod, ok := r.Value.(*model.Pod)
	if !ok {
		return false
	}
	was, ok := s.Pods.Get(pod.PodID)
	return ok && was.UID == pod.UID
}

// lost reports whether a namespace is gone.
func lost(was, s *model.Snapshot) bool {
	for name := range s.Namespaces.Changes(was.Namespaces) {
		if _, ok := s.Namespaces.Get(name); !ok {
			return true
		}
	}
	return false
}

// problems returns one line for each namespace that is missing, or one for all pods if policies cannot be read.
func (e early) problems() (all []string) {
	if len(e.unread) > 0 && len(e.pods) > 0 {
		return []string{fmt.Sprintf("%s: policies of this kind cannot be read, so new pods (%d) are unknown and not attached: policy denies what it might deny them",
			strings.Join(e.unread, ", "), len(e.pods))}
	}
	pods := make(map[string]int)
	for _, r := range e.pods {
		pods[r.Namespace]++
	}
	for name, n := range pods {
		all = append(all, fmt.Sprintf("Namespace %s: it is not known yet, so its pods (%d) are unknown: policy denies what it might deny them; if this lasts, create the namespace again or delete its pods", name, n))
	}
	return all
}
