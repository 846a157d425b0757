// SPDX-License-Identifier: Apache-2.0

package testpods

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-net/isthmus/common/connectivity"
)

// maxWarning bounds the text of an event, in bytes.
const maxWarning = 400

// States implements connectivity.Cluster.
func (c *Cluster) States(ctx context.Context, namespace string) (map[string]connectivity.PodState, error) {
	var list corev1.PodList
	selector := &metav1.ListOptions{LabelSelector: LabelRun + "=" + namespace}
	if err := c.core.Get().Namespace(namespace).Resource("pods").VersionedParams(selector, c.codec).Do(ctx).Into(&list); err != nil {
		return nil, described("list pods of namespace "+namespace, err)
	}
	states := make(map[string]connectivity.PodState, len(list.Items))
	waiting := false
	for i := range list.Items {
		s := stateOf(&list.Items[i])
		states[list.Items[i].Name] = s
		waiting = waiting || !s.Running
	}
	if !waiting {
		return states, nil
	}
	for name, warning := range c.warnings(ctx, namespace) {
		if s, ok := states[name]; ok && !s.Running {
			s.Waits += ": " + warning
			states[name] = s
		}
	}
	return states, nil
}

// warnings returns the newest warning about each pod. Without the right to read events there are none.
func (c *Cluster) warnings(ctx context.Context, namespace string) map[string]string {
	var list corev1.EventList
	if err := c.core.Get().Namespace(namespace).Resource("events").VersionedParams(&metav1.ListOptions{Limit: 500}, c.codec).Do(ctx).Into(&list); err != nil {
		return nil
	}
	newest := make(map[string]corev1.Event)
	for _, e := range list.Items {
		if e.Type != corev1.EventTypeWarning || e.InvolvedObject.Kind != "Pod" {
			continue
		}
		if old, ok := newest[e.InvolvedObject.Name]; !ok || !seen(&e).Before(seen(&old)) {
			newest[e.InvolvedObject.Name] = e
		}
	}
	texts := make(map[string]string, len(newest))
	for name, e := range newest {
		texts[name] = fmt.Sprintf("%s: %.*s", e.Reason, maxWarning, e.Message)
	}
	return texts
}

func seen(e *corev1.Event) *metav1.Time {
	if !e.LastTimestamp.IsZero() {
		return &e.LastTimestamp
	}
	return &e.CreationTimestamp
}

func stateOf(p *corev1.Pod) connectivity.PodState {
	var s connectivity.PodState
	for _, ip := range p.Status.PodIPs {
		s.Addresses = append(s.Addresses, parsed([]string{ip.IP})...)
	}
	for _, status := range p.Status.ContainerStatuses {
		switch {
		case status.State.Running != nil:
			s.Running = len(s.Addresses) > 0 && p.DeletionTimestamp == nil
		case status.State.Waiting != nil:
			s.Waits = status.State.Waiting.Reason
		case status.State.Terminated != nil:
			s.Waits = fmt.Sprintf("the container ended with status %d", status.State.Terminated.ExitCode)
		}
	}
	s.Waits = cmp.Or(s.Waits, p.Status.Reason, "the pod is "+cmp.Or(string(p.Status.Phase), "not known to its kubelet"))
	return s
}
