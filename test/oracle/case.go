// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"encoding/json"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
)

// Case is a cluster, as API objects with defaults applied, and the flows to compare.
type Case struct {
	Name string
	Objects
	// Snapshot is the cluster as Isthmus reads it from the same objects.
	Snapshot *model.Snapshot
	Flows    []model.Flow

	owners map[netip.Addr]*corev1.Pod
}

// Objects are the objects that affect policy.
type Objects struct {
	Namespaces       map[string]*corev1.Namespace
	Nodes            []*corev1.Node
	Pods             []*corev1.Pod
	NetworkPolicies  []*networkingv1.NetworkPolicy
	ClusterPolicies  []*v1alpha2.ClusterNetworkPolicy
	AdminPolicies    []*v1alpha1.AdminNetworkPolicy
	BaselinePolicies []*v1alpha1.BaselineAdminNetworkPolicy
}

// NewCase decodes the objects twice: into Kubernetes types for the oracles, and through
// common/kube/manifests for Isthmus.
func NewCase(name string, objects []json.RawMessage) (*Case, error) {
	c := &Case{Name: name, Objects: Objects{Namespaces: make(map[string]*corev1.Namespace)}}
	for i, raw := range objects {
		if err := c.add(raw); err != nil {
			return nil, fmt.Errorf("case %s: object %d: %w", name, i, err)
		}
	}
	list, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
	if err != nil {
		return nil, fmt.Errorf("case %s: %w", name, err)
	}
	read, _, errs := manifests.Parse("case.json", list, manifests.DefaultLimits())
	if len(errs) > 0 {
		return nil, fmt.Errorf("case %s: %w", name, errs[0])
	}
	c.Snapshot = read.Snapshot()
	c.setDefaults()
	c.findOwners()
	return c, nil
}

// add decodes one object by its kind.
func (c *Case) add(raw json.RawMessage) error {
	var meta struct{ APIVersion, Kind string }
	if err := json.Unmarshal(raw, &meta); err != nil {
		return err
	}
	switch meta.APIVersion + "/" + meta.Kind {
	case "v1/Namespace":
		ns, err := decode[corev1.Namespace](raw)
		if err == nil {
			c.Namespaces[ns.Name] = ns
		}
		return err
	case "v1/Node":
		return appendTo(&c.Nodes, raw)
	case "v1/Pod":
		return appendTo(&c.Pods, raw)
	case "networking.k8s.io/v1/NetworkPolicy":
		return appendTo(&c.NetworkPolicies, raw)
	case v1alpha2.GroupVersion.String() + "/ClusterNetworkPolicy":
		return appendTo(&c.ClusterPolicies, raw)
	case v1alpha1.GroupVersion.String() + "/AdminNetworkPolicy":
		return appendTo(&c.AdminPolicies, raw)
	case v1alpha1.GroupVersion.String() + "/BaselineAdminNetworkPolicy":
		return appendTo(&c.BaselinePolicies, raw)
	}
	return fmt.Errorf("kind %s of %s is not known here", meta.Kind, meta.APIVersion)
}

func decode[T any](raw json.RawMessage) (*T, error) {
	v := new(T)
	return v, json.Unmarshal(raw, v)
}

// appendTo adds an object to a list. It replaces an earlier object with the same name.
func appendTo[T any, P interface {
	*T
	metav1.Object
}](list *[]*T, raw json.RawMessage) error {
	v, err := decode[T](raw)
	if err != nil {
		return err
	}
	for i, was := range *list {
		if P(was).GetNamespace() == P(v).GetNamespace() && P(was).GetName() == P(v).GetName() {
			(*list)[i] = v
			return nil
		}
	}
	*list = append(*list, v)
	return nil
}

// findOwners assigns addresses to pods. It skips pods of the host network, which have the address
// of their node, and finished pods, whose addresses are free again. If two pods claim an address,
// the younger one has it.
func (c *Case) findOwners() {
	c.owners = make(map[netip.Addr]*corev1.Pod)
	for _, p := range c.Pods {
		if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, ip := range p.Status.PodIPs {
			a, err := netip.ParseAddr(ip.IP)
			if err != nil {
				continue
			}
			if was := c.owners[a]; was == nil || younger(p, was) {
				c.owners[a] = p
			}
		}
	}
}

func younger(p, q *corev1.Pod) bool {
	if !p.CreationTimestamp.Time.Equal(q.CreationTimestamp.Time) {
		return p.CreationTimestamp.After(q.CreationTimestamp.Time)
	}
	if p.Namespace != q.Namespace {
		return p.Namespace > q.Namespace
	}
	return p.Name > q.Name
}

// Owner returns the pod that has an address, or nil.
func (c *Case) Owner(a netip.Addr) *corev1.Pod { return c.owners[a] }

// with returns the case with other objects, to evaluate a restated case. The owners of addresses
// stay.
func (c *Case) with(o Objects) *Case {
	n := *c
	n.Objects = o
	return &n
}
