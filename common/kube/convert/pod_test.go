// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod starts when its sandbox has a network: a later one after a restart of the node. Without the condition it is when
// kubelet accepted the pod. A pod without addresses has no start.
func TestPodStarted(t *testing.T) {
	at := func(second int64) metav1.Time { return metav1.Unix(second, 0) }
	accepted, ready := at(1000), at(2000)
	condition := func(kind corev1.PodConditionType, status corev1.ConditionStatus, since metav1.Time) corev1.PodCondition {
		return corev1.PodCondition{Type: kind, Status: status, LastTransitionTime: since}
	}
	network, initialized := corev1.PodReadyToStartContainers, corev1.PodInitialized
	for name, c := range map[string]struct {
		status corev1.PodStatus
		want   int64
	}{
		"ready":                {corev1.PodStatus{StartTime: &accepted, Conditions: []corev1.PodCondition{condition(initialized, "True", at(5)), condition(network, "True", ready)}}, 2000},
		"not ready":            {corev1.PodStatus{StartTime: &accepted, Conditions: []corev1.PodCondition{condition(network, "False", ready)}}, 1000},
		"old kubelet":          {corev1.PodStatus{StartTime: &accepted}, 1000},
		"condition without it": {corev1.PodStatus{Conditions: []corev1.PodCondition{condition(network, "True", metav1.Time{})}}, 0},
		"unknown":              {corev1.PodStatus{}, 0},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", CreationTimestamp: metav1.NewTime(time.Unix(1, 0))}, Status: c.status}
		if got, errs := convertPod(pod, Stored); got.Started != 0 || len(errs) > 0 {
			t.Errorf("%s, without addresses: started %d, %v", name, got.Started, errs)
		}
		pod.Status.PodIP = "10.1.0.1"
		if got, errs := convertPod(pod, Stored); got.Started != c.want || len(errs) > 0 {
			t.Errorf("%s: started %d, want %d, %v", name, got.Started, c.want, errs)
		}
	}
}
