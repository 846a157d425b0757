// SPDX-License-Identifier: Apache-2.0

package testpods

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/isthmus-net/isthmus/common/connectivity"
	"github.com/isthmus-net/isthmus/common/connectivity/probe"
	"github.com/isthmus-net/isthmus/common/kube/podexec"
	"github.com/isthmus-net/isthmus/common/kube/watch"
	"github.com/isthmus-net/isthmus/common/model"
)

// Cluster is a Kubernetes cluster. It is safe for concurrent use.
type Cluster struct {
	core, networking rest.Interface
	codec            runtime.ParameterCodec
	exec             *podexec.Executor
}

var _ connectivity.Cluster = (*Cluster)(nil)

// patience bounds the time until a controller has made the service account of a new namespace.
const patience = 30 * time.Second

// New reads credentials as kubectl does. It does not connect.
func New(cfg watch.APIConfig) (*Cluster, error) {
	config, err := watch.RESTConfig(cfg)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), networkingv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("prepare client: %w", err)
	}
	config.UserAgent, config.QPS = cfg.UserAgent, -1
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c := &Cluster{codec: runtime.NewParameterCodec(scheme)}
	at := func(version schema.GroupVersion, path string) (*rest.Config, rest.Interface, error) {
		to := rest.CopyConfig(config)
		to.GroupVersion, to.APIPath = &version, path
		client, err := rest.RESTClientFor(to)
		return to, client, err
	}
	core, client, err := at(corev1.SchemeGroupVersion, "/api")
	if err != nil {
		return nil, fmt.Errorf("prepare client: %w", err)
	}
	c.core, c.exec = client, podexec.New(core, client, c.codec)
	if _, c.networking, err = at(networkingv1.SchemeGroupVersion, "/apis"); err != nil {
		return nil, fmt.Errorf("prepare client: %w", err)
	}
	return c, nil
}

// described names the call of an error, and the remedy if a right is missing.
func described(what string, err error) error {
	if err == nil {
		return nil
	}
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%s: %w: %w: docs/operate/connectivity.md lists the rights", what, err, connectivity.ErrRefused)
	}
	return fmt.Errorf("%s: %w", what, watch.Described(err))
}

// Candidates returns the nodes that a label selector matches; empty matches all.
func (c *Cluster) Candidates(ctx context.Context, selector string) ([]connectivity.Candidate, error) {
	var all []connectivity.Candidate
	for options := (metav1.ListOptions{LabelSelector: selector, Limit: 500}); ; {
		var page corev1.NodeList
		if err := c.core.Get().Resource("nodes").VersionedParams(&options, c.codec).Do(ctx).Into(&page); err != nil {
			return nil, described("list nodes", err)
		}
		for i := range page.Items {
			all = append(all, candidate(&page.Items[i]))
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return all, nil
		}
	}
}

func candidate(n *corev1.Node) connectivity.Candidate {
	c := connectivity.Candidate{Node: connectivity.Node{Name: n.Name, KubeletPort: uint16(n.Status.DaemonEndpoints.KubeletEndpoint.Port),
		OS: model.OS(cmp.Or(n.Status.NodeInfo.OperatingSystem, n.Labels[corev1.LabelOSStable]))}}
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			c.Addresses = append(c.Addresses, ip.Unmap())
		}
	}
	ready := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	switch {
	case n.Spec.Unschedulable:
		c.Unfit = "it is cordoned"
	case ready < 0 || n.Status.Conditions[ready].Status != corev1.ConditionTrue:
		c.Unfit = "it is not ready"
	}
	return c
}

// Tenancies implements connectivity.Cluster.
func (c *Cluster) Tenancies(ctx context.Context) (all []connectivity.Tenancy, err error) {
	var list corev1.NamespaceList
	if err := c.core.Get().Resource("namespaces").VersionedParams(&metav1.ListOptions{LabelSelector: LabelRun}, c.codec).Do(ctx).Into(&list); err != nil {
		return nil, described("look for earlier tests: list namespaces", err)
	}
	for _, n := range list.Items {
		if n.DeletionTimestamp == nil && n.Labels[LabelRun] == n.Name {
			all = append(all, connectivity.Tenancy{Namespace: n.Name, Beat: n.Annotations[annotationBeat], Kept: n.Annotations[annotationKeep] != ""})
		}
	}
	return all, nil
}

// Create implements connectivity.Cluster.
func (c *Cluster) Create(ctx context.Context, t connectivity.Tenancy) error {
	err := c.core.Post().Resource("namespaces").Body(newNamespace(t)).Do(ctx).Error()
	return described("create namespace "+t.Namespace, err)
}

// Touch implements connectivity.Cluster.
func (c *Cluster) Touch(ctx context.Context, t connectivity.Tenancy) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{annotationBeat: t.Beat}}})
	if err != nil {
		return err
	}
	return described("patch namespace "+t.Namespace, c.core.Patch(types.MergePatchType).Resource("namespaces").Name(t.Namespace).Body(patch).Do(ctx).Error())
}

// Remove implements connectivity.Cluster. It checks the label, so that a wrong name costs nothing.
func (c *Cluster) Remove(ctx context.Context, namespace string) error {
	var n corev1.Namespace
	err := c.core.Get().Resource("namespaces").Name(namespace).Do(ctx).Into(&n)
	switch {
	case apierrors.IsNotFound(err) || err == nil && n.DeletionTimestamp != nil:
		return nil
	case err != nil:
		return described("get namespace "+namespace, err)
	case n.Labels[LabelRun] != namespace:
		return fmt.Errorf("namespace %s has no label %s: it is not one of a connectivity test", namespace, LabelRun)
	}
	err = c.core.Delete().Resource("namespaces").Name(namespace).Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &n.UID}}).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	return described("delete namespace "+namespace, err)
}

// Start implements connectivity.Cluster.
func (c *Cluster) Start(ctx context.Context, namespace string, pods []connectivity.Pod) (map[string][]netip.Addr, error) {
	services := make(map[string][]netip.Addr)
	deadline := time.Now().Add(patience)
	for _, p := range pods {
		for {
			err := c.core.Post().Namespace(namespace).Resource("pods").Body(newPod(namespace, p)).Do(ctx).Error()
			if err == nil || apierrors.IsAlreadyExists(err) {
				break
			}
			// The service account of a new namespace follows after a moment.
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "serviceaccount") || time.Now().After(deadline) {
				return nil, described(fmt.Sprintf("create pod %s/%s", namespace, p.Name), err)
			}
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(200 * time.Millisecond):
			}
		}
		if p.Role != connectivity.Server {
			continue
		}
		var s corev1.Service
		err := c.core.Post().Namespace(namespace).Resource("services").Body(newService(namespace, p)).Do(ctx).Into(&s)
		if apierrors.IsAlreadyExists(err) {
			err = c.core.Get().Namespace(namespace).Resource("services").Name(p.Name).Do(ctx).Into(&s)
		}
		if err != nil {
			return nil, described(fmt.Sprintf("create Service %s/%s", namespace, p.Name), err)
		}
		services[p.Name] = parsed(s.Spec.ClusterIPs)
	}
	return services, nil
}

func parsed(texts []string) (all []netip.Addr) {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// Enforce implements connectivity.Cluster.
func (c *Cluster) Enforce(ctx context.Context, namespace string, policies []connectivity.Policy) error {
	var list networkingv1.NetworkPolicyList
	selector := &metav1.ListOptions{LabelSelector: LabelRun + "=" + namespace}
	if err := c.networking.Get().Namespace(namespace).Resource("networkpolicies").VersionedParams(selector, c.codec).Do(ctx).Into(&list); err != nil {
		return described("list NetworkPolicies of namespace "+namespace, err)
	}
	for _, n := range list.Items {
		if slices.ContainsFunc(policies, func(p connectivity.Policy) bool { return p.Name == n.Name }) {
			continue
		}
		err := c.networking.Delete().Namespace(namespace).Resource("networkpolicies").Name(n.Name).Body(&metav1.DeleteOptions{}).Do(ctx).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			return described(fmt.Sprintf("delete NetworkPolicy %s/%s", namespace, n.Name), err)
		}
	}
	for _, p := range policies {
		err := c.networking.Post().Namespace(namespace).Resource("networkpolicies").Body(newPolicy(namespace, p)).Do(ctx).Error()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return described(fmt.Sprintf("create NetworkPolicy %s/%s", namespace, p.Name), err)
		}
	}
	return nil
}

// Probe implements connectivity.Cluster.
func (c *Cluster) Probe(ctx context.Context, namespace string, from connectivity.Pod, timeout time.Duration, targets []probe.Target) ([]probe.Answer, error) {
	args := []string{"dial", "--timeout=" + timeout.String()}
	for _, t := range targets {
		args = append(args, t.String())
	}
	ctx, cancel := context.WithTimeout(ctx, 3*timeout+patience)
	defer cancel()
	out, status, err := c.exec.Run(ctx, podexec.In{Namespace: namespace, Pod: from.Name, Container: container}, program(from.Node.OS, args...))
	switch {
	case err != nil && (apierrors.IsForbidden(err) || strings.Contains(err.Error(), "forbidden")):
		return nil, fmt.Errorf("%w: %w: docs/operate/connectivity.md lists the rights", err, connectivity.ErrRefused)
	case err != nil:
		return nil, err
	case status != 0:
		return nil, fmt.Errorf("pod %s/%s: isthmusctl probe ends with status %d: the image must have the version of this isthmusctl", namespace, from.Name, status)
	}
	var answers []probe.Answer
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var a probe.Answer
		if err := d.Decode(&a); err != nil {
			return nil, fmt.Errorf("pod %s/%s: read the answers of isthmusctl probe: %w", namespace, from.Name, err)
		}
		answers = append(answers, a)
	}
	return answers, nil
}
