// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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
