// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"maps"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/report"
)

// writtenStatus is the stored part of the status of a cluster-wide policy: the conditions of Isthmus, by
// type.
type writtenStatus struct {
	generation int64
	conditions map[string]*report.Written
}

// statusOf reads the status of an untyped object. It skips entries that do not have the shape of a
// condition: other components wrote them.
func statusOf(u *unstructured.Unstructured) *writtenStatus {
	s := &writtenStatus{generation: u.GetGeneration()}
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, item := range list {
		c, ok := item.(map[string]any)
		if !ok {
			continue
		}
		text := func(key string) string {
			value, _ := c[key].(string)
			return value
		}
		if !strings.HasPrefix(text("type"), report.ConditionPrefix) {
			continue
		}
		w := &report.Written{Status: text("status"), Reason: text("reason"), Message: text("message")}
		w.Generation, _ = c["observedGeneration"].(int64)
		w.Since, _ = time.Parse(time.RFC3339, text("lastTransitionTime"))
		if s.conditions == nil {
			s.conditions = make(map[string]*report.Written)
		}
		s.conditions[text("type")] = w
	}
	return s
}

// keepStatus stores the statuses of changed policies of a kind, and the findings about them. The caller
// holds a.mu.
func (a *APIServer) keepStatus(kind string, changes map[string]*record, complete bool) {
	if complete {
		mine := func(o model.Origin) bool { return o.Kind == kind }
		maps.DeleteFunc(a.statuses, func(o model.Origin, _ *writtenStatus) bool { return mine(o) })
		maps.DeleteFunc(a.remarks, func(o model.Origin, _ report.Remarks) bool { return mine(o) })
	}
	for _, r := range changes {
		o := model.Origin{Kind: kind, Namespace: r.namespace, Name: r.name}
		delete(a.statuses, o)
		delete(a.remarks, o)
		if r.written != nil {
			a.statuses[o] = r.written
		}
		if len(r.notes) > 0 {
			a.remarks[o] = report.Remarks{Notes: r.notes, Bad: r.bad}
		}
	}
	if a.statusChanged != nil {
		a.statusChanged()
	}
}

// policyStatuses returns copies of what keepStatus stored, and the served versions of kinds.
func (a *APIServer) policyStatuses() (map[model.Origin]*writtenStatus, map[model.Origin]report.Remarks, map[string]string) {
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
