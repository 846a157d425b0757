// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/test/world"
)

// Form is the API of the cluster-wide policies in a random cluster.
type Form int

// The forms.
const (
	// Plain clusters have NetworkPolicies only.
	Plain Form = iota
	// Cluster policies are ClusterNetworkPolicies v1alpha2.
	Cluster
	// Admin policies are AdminNetworkPolicies and the one
	// BaselineAdminNetworkPolicy, v1alpha1.
	Admin
)

// Random makes a random cluster with n random flows. The flows cover every class of addresses and
// ports.
func Random(seed uint64, form Form, n int) (*Case, error) {
	shape := world.Shape{Pods: 6 + int(seed%5), Policies: 1 + int(seed%7), IPv6: seed%3 == 0, Tiers: form != Plain}
	s := world.Random(seed, shape)
	objects, err := render(s, form)
	if err != nil {
		return nil, err
	}
	c, err := NewCase(fmt.Sprintf("random %d in form %d", seed, form), objects)
	if err != nil {
		return nil, err
	}
	c.Flows = randomFlows(seed, c.Snapshot, n)
	return c, nil
}

// randomFlows returns flows within one IP version of which at least one end is the address of a
// pod.
func randomFlows(seed uint64, s *model.Snapshot, n int) []model.Flow {
	addrs, ports := world.Probes(s)
	var pods []netip.Addr
	for _, p := range s.Pods.All() {
		pods = append(pods, p.IPs...)
	}
	if len(pods) == 0 {
		return nil
	}
	slices.SortFunc(pods, netip.Addr.Compare)
	r := rand.New(rand.NewPCG(seed, 3))
	var flows []model.Flow
	for len(flows) < n {
		pod := pods[r.IntN(len(pods))]
		other := addrs[r.IntN(len(addrs))]
		if r.IntN(2) == 0 {
			other = pods[r.IntN(len(pods))]
		}
		if pod.Is6() != other.Is6() {
			continue
		}
		at := ports[r.IntN(len(ports))]
		f := model.Flow{Src: pod, Dst: other, Protocol: at.Protocol, Port: at.Port}
		if f.Protocol == model.ICMP && pod.Is6() {
			f.Protocol = model.ICMPv6
		}
		if r.IntN(2) == 0 {
			f.Src, f.Dst = f.Dst, f.Src
		}
		flows = append(flows, f)
	}
	return flows
}

// render returns a snapshot as API objects. It leaves out what the API cannot express.
func render(s *model.Snapshot, form Form) ([]json.RawMessage, error) {
	w := &writer{form: form, taken: make(map[int]bool)}
	for _, n := range sorted(s.Namespaces, cmp.Compare[string]) {
		w.namespace(n)
	}
	for _, n := range sorted(s.Nodes, cmp.Compare[string]) {
		w.node(n)
	}
	for _, p := range sorted(s.Pods, model.PodID.Compare) {
		w.pod(p, s)
	}
	for _, p := range s.SortedPolicies() {
		w.policy(p)
	}
	return w.objects, w.err
}

// writer collects objects as JSON. After an error it ignores further objects.
type writer struct {
	form    Form
	objects []json.RawMessage
	err     error
	// taken are the used priorities of the Admin tier: the order of policies with equal priorities
	// is undefined.
	taken map[int]bool
	// baseline is true if there is a BaselineAdminNetworkPolicy. A cluster has at most one.
	baseline bool
}

func (w *writer) add(object any) {
	if w.err != nil {
		return
	}
	b, err := json.Marshal(object)
	w.objects, w.err = append(w.objects, b), err
}

func sorted[K, V comparable](m immutable.Map[K, V], compare func(a, b K) int) []V {
	all := maps.Collect(m.All())
	var out []V
	for _, k := range slices.SortedFunc(maps.Keys(all), compare) {
		out = append(out, all[k])
	}
	return out
}

func labelsOf(l model.Labels) map[string]string { return maps.Collect(l.All()) }

func (w *writer) namespace(n *model.Namespace) {
	w.add(corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labelsOf(n.Labels)}})
}

func (w *writer) node(n *model.Node) {
	o := corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labelsOf(n.Labels)}}
	for _, a := range n.Addresses {
		o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	for _, c := range n.PodCIDRs {
		o.Spec.PodCIDRs = append(o.Spec.PodCIDRs, c.String())
	}
	o.Spec.PodCIDR = o.Spec.PodCIDRs[0]
	w.add(o)
}

func (w *writer) pod(p *model.Pod, s *model.Snapshot) {
	o := corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, Labels: labelsOf(p.Labels),
			CreationTimestamp: metav1.Time{Time: time.Unix(p.Created, 0).UTC()}}}
	o.Spec.NodeName, o.Spec.HostNetwork = p.Node, p.HostNetwork
	c := corev1.Container{Name: "main", Image: "none"}
	for _, n := range p.Ports {
		c.Ports = append(c.Ports, corev1.ContainerPort{Name: n.Name, Protocol: corev1.Protocol(n.Protocol.String()), ContainerPort: int32(n.Port)})
	}
	if n := len(c.Ports); n > 0 && len(p.Name)%2 == int(p.Created)%2 { // some have a sidecar
		always := corev1.ContainerRestartPolicyAlways
		o.Spec.InitContainers = []corev1.Container{{Name: "sidecar", Image: "none", RestartPolicy: &always, Ports: c.Ports[n-1:]}}
		c.Ports = c.Ports[:n-1]
	}
	o.Spec.Containers = []corev1.Container{c}
	o.Status.Phase = corev1.PodRunning
	if p.Finished {
		o.Status.Phase = corev1.PodSucceeded
	}
	if n, ok := s.Nodes.Get(p.Node); ok {
		o.Status.HostIP = n.Addresses[0].String()
	}
	for _, a := range p.IPs {
		o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	o.Status.PodIP = p.IPs[0].String()
	w.add(o)
}

// selector returns a selector. Requirements with one value become labels, the others expressions.
func selector(s model.Selector) metav1.LabelSelector {
	var out metav1.LabelSelector
	for _, r := range s.Requirements() {
		if _, taken := out.MatchLabels[r.Key]; r.Operator == model.In && len(r.Values) == 1 && !taken {
			if out.MatchLabels == nil {
				out.MatchLabels = make(map[string]string)
			}
			out.MatchLabels[r.Key] = r.Values[0]
			continue
		}
		out.MatchExpressions = append(out.MatchExpressions, metav1.LabelSelectorRequirement{Key: r.Key,
			Operator: metav1.LabelSelectorOperator(r.Operator.String()), Values: r.Values})
	}
	return out
}

// namespaces returns the namespace selector that a PodSelector means.
func namespaces(s model.PodSelector) metav1.LabelSelector {
	if s.Namespace != "" {
		return metav1.LabelSelector{MatchLabels: map[string]string{model.MetadataName: s.Namespace}}
	}
	return selector(s.Namespaces)
}
