// SPDX-License-Identifier: Apache-2.0

package writeback

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/isthmus-net/isthmus/common/kube/convert"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/report"
)

// unreachable reports whether an error has nothing to do with the content of the request.
func unreachable(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsUnauthorized(err)
}

// place is the location of a condition: its policy and the served version.
type place struct {
	policy     model.Origin
	version    string
	generation int64
	kind       string // the type of the condition
}

// manager returns the field manager of the conditions of one type, whichever node writes them. Applying
// without them removes them, and leaves conditions of other managers alone.
func (p place) manager() string {
	return "isthmus-" + strings.TrimPrefix(p.kind, report.ConditionPrefix)
}

// writeCondition applies a condition. is may be nil.
func (r *Reporter) writeCondition(ctx context.Context, at place, c report.Condition, is *report.Written) error {
	since := time.Now()
	if is != nil && is.Status == "False" && !is.Since.IsZero() {
		since = is.Since
	}
	return r.applyConditions(ctx, at, []any{map[string]any{
		"type": at.kind, "status": "False", "reason": c.Reason, "message": c.Signed(r.cfg.Node), "observedGeneration": at.generation,
		"lastTransitionTime": since.UTC().Format(time.RFC3339)}})
}

// clearCondition removes a condition.
func (r *Reporter) clearCondition(ctx context.Context, at place) error {
	return r.applyConditions(ctx, at, []any{})
}

func (r *Reporter) applyConditions(ctx context.Context, at place, conditions []any) error {
	k, ok := convert.KindOf(at.policy.Kind)
	if !ok || !k.Custom() {
		return fmt.Errorf("report on %s: has no status", at.policy)
	}
	gv := schema.GroupVersion{Group: k.Group, Version: at.version}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": gv.String(), "kind": at.policy.Kind,
		// The UID protects a policy that was recreated meanwhile.
		"metadata": map[string]any{"name": at.policy.Name, "uid": at.policy.UID},
		"status":   map[string]any{"conditions": conditions},
	}}
	_, err := r.client.Resource(gv.WithResource(k.Resource)).ApplyStatus(ctx, at.policy.Name, u,
		metav1.ApplyOptions{FieldManager: at.manager(), Force: true})
	if apierrors.IsNotFound(err) && at.policy.Kind == model.KindDenyList {
		// The list was deleted, or the definition is that of an older version, without a status.
		r.statusless[at.policy.Kind] = time.Now()
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // deleted or recreated; the next read decides
	}
	return err
}

// createEvent creates an event, unless it exists. Reading it first would need the right to read events, and
// load the API server as much.
func (r *Reporter) createEvent(ctx context.Context, e report.Event) error {
	namespace := e.Object.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault // the namespace for events of cluster-scoped objects
	}
	events := r.client.Resource(schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}).Namespace(namespace)
	_, err := events.Create(ctx, r.event(e, namespace), metav1.CreateOptions{FieldManager: r.source.UserAgent()})
	gone := apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, "NamespaceTerminating") // the namespace is deleted, and the object with it
	if err != nil && !apierrors.IsAlreadyExists(err) && !gone {
		return err
	}
	r.seen[e.Name] = time.Now()
	return nil
}

func (r *Reporter) event(e report.Event, namespace string) *unstructured.Unstructured {
	k, _ := convert.KindOf(e.Object.Kind)
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "events.k8s.io/v1", "kind": "Event",
		"metadata":  map[string]any{"name": e.Name, "namespace": namespace},
		"eventTime": time.Now().UTC().Format(metav1.RFC3339Micro),
		"type":      "Warning", "reason": e.Reason, "action": e.Action, "note": e.Note,
		"reportingController": strings.TrimSuffix(report.ConditionPrefix, "/") + "/agent", "reportingInstance": r.cfg.Node,
		"regarding": map[string]any{"apiVersion": k.APIVersion(), "kind": e.Object.Kind, "namespace": e.Object.Namespace,
			"name": e.Object.Name, "uid": e.Object.UID},
	}}
}

// nodeConditionType is the type of the Node's condition.
const nodeConditionType = report.ConditionPrefix + "PolicyEnforced"

// writeNode writes the condition of this node's Node, if it differs.
func (r *Reporter) writeNode(ctx context.Context, c report.NodeCondition) error {
	nodes := r.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	// A list with one element: get would need one more right.
	list, err := nodes.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + r.cfg.Node})
	if err != nil {
		return err
	}
	if len(list.Items) == 0 {
		return fmt.Errorf("find Node %s: it does not exist: check --node-name", r.cfg.Node)
	}
	status := "False"
	if c.Enforced {
		status = "True"
	}
	now := time.Now().UTC().Format(time.RFC3339)
	since := now
	existing, _, _ := unstructured.NestedSlice(list.Items[0].Object, "status", "conditions")
	for _, item := range existing {
		old, _ := item.(map[string]any)
		if old["type"] != nodeConditionType || old["status"] != status {
			continue
		}
		if old["reason"] == c.Reason && old["message"] == c.Message {
			r.node, r.nodeAt = &c, time.Now()
			return nil
		}
		if text, ok := old["lastTransitionTime"].(string); ok {
			since = text
		}
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": r.cfg.Node, "uid": string(list.Items[0].GetUID())},
		"status": map[string]any{"conditions": []any{map[string]any{"type": nodeConditionType, "status": status, "reason": c.Reason,
			"message": c.Message, "lastHeartbeatTime": now, "lastTransitionTime": since}}},
	}}
	if _, err := nodes.ApplyStatus(ctx, r.cfg.Node, u, metav1.ApplyOptions{FieldManager: r.source.UserAgent(), Force: true}); err != nil {
		return err
	}
	r.node, r.nodeAt = &c, time.Now()
	return nil
}
