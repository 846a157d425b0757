// SPDX-License-Identifier: Apache-2.0

package nodecidr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/isthmus-net/isthmus/common/kube/convert"
	"github.com/isthmus-net/isthmus/common/nodeipam"
)

// pageSize is how many nodes a request lists.
const pageSize = 500

// follow wakes the worker when a node without ranges appears, or when one is deleted while others wait. Its
// view may be stale; it is only a trigger.
func (c *Controller) follow(ctx context.Context) {
	nodes := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.nodes.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.nodes.Watch(ctx, o)
		},
	}
	look := func(o any) {
		if n, ok := o.(*corev1.Node); ok && len(n.Spec.PodCIDRs) == 0 {
			c.notify()
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: nodes, ObjectType: &corev1.Node{},
		Transform: func(o any) (any, error) {
			if n, ok := o.(*corev1.Node); ok { // only these fields are used
				return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion},
					Spec: corev1.NodeSpec{PodCIDRs: n.Spec.PodCIDRs}}, nil
			}
			return o, nil
		},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    look,
			UpdateFunc: func(_, o any) { look(o) },
			DeleteFunc: func(any) {
				if c.waiting.Load() {
					c.notify()
				}
			},
		},
	})
	informer.RunWithContext(ctx)
}

func (c *Controller) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// assign lists all nodes and assigns ranges to those without.
func (c *Controller) assign(ctx context.Context) error {
	found, err := c.list(ctx)
	if err != nil {
		return err
	}
	var nodes []nodeipam.Node
	for _, n := range found {
		if n.DeletionTimestamp == nil || len(n.Spec.PodCIDRs) > 0 {
			nodes = append(nodes, planned(n))
		}
	}
	plan := nodeipam.MakePlan(c.cfg.Ranges, nodes)
	c.metrics.note(plan)
	var errs []error
	for _, a := range plan.Assignments {
		if err := c.write(ctx, found[a.Node], a.PodCIDRs); err != nil {
			c.metrics.writes.WithLabelValues("error").Inc()
			errs = append(errs, err)
			continue
		}
		c.metrics.writes.WithLabelValues("ok").Inc()
		c.log.Info("node has pod ranges", "node", a.Node, "ranges", a.PodCIDRs)
	}
	c.reportProblems(found, plan.Problems)
	return errors.Join(errs...)
}

// list reads all nodes at their current version, not from the API server's cache: it must see a range that
// another controller has just assigned.
func (c *Controller) list(ctx context.Context) (map[string]*corev1.Node, error) {
	all := make(map[string]*corev1.Node)
	for o := (metav1.ListOptions{Limit: pageSize}); ; {
		page, err := c.nodes.List(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("list nodes: %w", err)
		}
		for i := range page.Items {
			all[page.Items[i].Name] = &page.Items[i]
		}
		if o.Continue = page.Continue; o.Continue == "" {
			return all, nil
		}
	}
}

// planned returns the relevant fields of a node. Its ranges are read as agents do, which route to them.
func planned(n *corev1.Node) nodeipam.Node {
	ranges, errs := convert.PodCIDRs(n)
	node := nodeipam.Node{Name: n.Name, PodCIDRs: ranges, Unread: len(errs) > 0}
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil {
			node.Addresses = append(node.Addresses, ip)
		}
	}
	return node
}

// write assigns ranges to a node. The API server accepts them only while the node has none, and only if it
// is still the same node.
func (c *Controller) write(ctx context.Context, n *corev1.Node, ranges []netip.Prefix) error {
	var texts []string
	for _, r := range ranges {
		texts = append(texts, r.String())
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.UID},
		"spec":     map[string]any{"podCIDR": texts[0], "podCIDRs": texts},
	})
	if err != nil {
		return fmt.Errorf("encode pod ranges of node %s: %w", n.Name, err)
	}
	_, err = c.nodes.Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: c.cfg.UserAgent})
	if apierrors.IsNotFound(err) {
		return nil // the node is deleted
	}
	if err != nil {
		return fmt.Errorf("write pod ranges %v of node %s: %w", texts, n.Name, err)
	}
	return nil
}

// reportProblems reports problems of nodes once, in the log and as an event.
func (c *Controller) reportProblems(nodes map[string]*corev1.Node, problems []nodeipam.Problem) {
	now := make(map[string]string)
	waiting := false
	for _, p := range problems {
		waiting = waiting || p.Exhausted
		key := p.Node + "\x00" + p.Text
		now[key] = p.Text
		if _, reported := c.reported[key]; reported {
			continue
		}
		reason := "PodCIDRWrong"
		if p.Exhausted {
			reason = "PodCIDRNotAvailable"
		}
		c.log.Warn("node without the pod ranges that it should have", "node", p.Node, "problem", p.Text)
		if n := nodes[p.Node]; n != nil {
			c.recorder.Event(&corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: n.Name, UID: n.UID}, corev1.EventTypeWarning, reason, p.Text)
		}
	}
	c.reported = now
	c.waiting.Store(waiting)
}
