// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// Snapshot is the cluster at one moment, immutable. Successive snapshots share unchanged parts. Objects are
// replaced, never edited, so that comparing pointers finds the changes.
type Snapshot struct {
	Namespaces   immutable.Map[string, *Namespace]
	Nodes        immutable.Map[string, *Node]
	Pods         immutable.Map[PodID, *Pod]
	Policies     immutable.Map[Origin, *Policy]
	DenyLists    immutable.Map[string, *DenyList]
	ServiceCIDRs immutable.Map[string, *ServiceCIDR]
}

// MakeSnapshot builds a snapshot from lists. If two objects have one name, the later one counts. Namespaces
// that pods or policies name but the list lacks are added with the default label only.
func MakeSnapshot(namespaces []*Namespace, nodes []*Node, pods []*Pod, policies []*Policy) *Snapshot {
	n := make(map[string]*Namespace)
	for _, p := range pods {
		n[p.Namespace] = nil
	}
	for _, p := range policies {
		if p.Origin.Namespace != "" {
			n[p.Origin.Namespace] = nil
		}
	}
	for _, ns := range namespaces {
		n[ns.Name] = ns
	}
	for name, ns := range n {
		if ns == nil {
			n[name] = NewNamespace(name, nil)
		}
	}
	s := &Snapshot{Namespaces: immutable.MakeMap(n)}
	no := make(map[string]*Node, len(nodes))
	for _, node := range nodes {
		no[node.Name] = node
	}
	s.Nodes = immutable.MakeMap(no)
	po := make(map[PodID]*Pod, len(pods))
	for _, p := range pods {
		po[p.PodID] = p
	}
	s.Pods = immutable.MakeMap(po)
	pol := make(map[Origin]*Policy, len(policies))
	for _, p := range policies {
		pol[p.Origin.key()] = p
	}
	s.Policies = immutable.MakeMap(pol)
	return s
}

// Objects are the objects of a cluster as lists, without repeated names. A list that has been sorted is in the
// order of its names.
type Objects struct {
	Namespaces []*Namespace
	Nodes      []*Node
	// Pods are the Pod objects and the pods of the workloads.
	Pods     []*Pod
	Policies []*Policy
	// DenyLists are without their invalid entries.
	DenyLists []*DenyList
	// ServiceCIDRs are without their invalid ranges.
	ServiceCIDRs []*ServiceCIDR
	// Services and EndpointSlices are for queries and checks only.
	Services       []*Service
	EndpointSlices []*EndpointSlice
	// NodeSelectors are the nodes that pods of workloads require; pods without requirements are not listed.
	NodeSelectors map[PodID]Selector
	// Workloads name the workload of each pod that stands for one of its pods.
	Workloads map[PodID]WorkloadID
	// Places are where manifests define the objects, by "Kind namespace/name" as Origin.String writes it.
	Places map[string]Place
}

// Place is a position in a file. Line counts from 1; 0 means the whole file.
type Place struct {
	File string `json:"file"`
	Line int    `json:"line,omitempty"`
}

// String returns "file:line", or "" for no place.
func (p Place) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Sort sorts each list by name.
func (o *Objects) Sort() {
	slices.SortFunc(o.Namespaces, func(a, b *Namespace) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(o.Nodes, func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(o.Pods, func(a, b *Pod) int { return a.PodID.Compare(b.PodID) })
	slices.SortFunc(o.Policies, func(a, b *Policy) int { return a.Origin.Key().Compare(b.Origin.Key()) })
	slices.SortFunc(o.DenyLists, func(a, b *DenyList) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(o.ServiceCIDRs, func(a, b *ServiceCIDR) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(o.Services, func(a, b *Service) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	slices.SortFunc(o.EndpointSlices, func(a, b *EndpointSlice) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
}

// Snapshot builds a snapshot of the objects.
func (o Objects) Snapshot() *Snapshot {
	s := MakeSnapshot(o.Namespaces, o.Nodes, o.Pods, o.Policies)
	lists := make(map[string]*DenyList, len(o.DenyLists))
	for _, l := range o.DenyLists {
		lists[l.Name] = l
	}
	s.DenyLists = immutable.MakeMap(lists)
	ranges := make(map[string]*ServiceCIDR, len(o.ServiceCIDRs))
	for _, c := range o.ServiceCIDRs {
		ranges[c.Name] = c
	}
	s.ServiceCIDRs = immutable.MakeMap(ranges)
	return s
}

// key omits the UID: a recreated object replaces its predecessor.
func (o Origin) key() Origin {
	o.UID = ""
	return o
}

// Key is the origin without its UID, as Snapshot.Policies is keyed.
func (o Origin) Key() Origin { return o.key() }

// MetadataName is the label that every namespace carries with its own name.
const MetadataName = "kubernetes.io/metadata.name"

// NewNamespace returns a namespace with the label that the API server adds.
func NewNamespace(name string, labels map[string]string) *Namespace {
	all := map[string]string{}
	for k, v := range labels {
		all[k] = v
	}
	all[MetadataName] = name
	return &Namespace{Name: name, Labels: MakeLabels(all)}
}

// Namespace returns the namespace, or one with only the default label if the snapshot does not (yet)
// contain it.
func (s *Snapshot) Namespace(name string) *Namespace {
	if ns, ok := s.Namespaces.Get(name); ok {
		return ns
	}
	return NewNamespace(name, nil)
}

// SortedPolicies returns the policies in the order of evaluation: by tier, priority, then origin.
func (s *Snapshot) SortedPolicies() []*Policy {
	all := make([]*Policy, 0, s.Policies.Len())
	for _, p := range s.Policies.All() {
		all = append(all, p)
	}
	slices.SortFunc(all, ComparePolicies)
	return all
}

// ComparePolicies orders by tier, priority, then origin. The API does not define the order of equal
// priorities; origins make it the same on every node.
func ComparePolicies(a, b *Policy) int {
	return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Priority, b.Priority), a.Origin.Compare(b.Origin))
}

// Owners maps addresses to their owners.
type Owners struct {
	// Pods are the policed pods by address.
	Pods map[netip.Addr]*Pod
	// Nodes are the nodes by address.
	Nodes map[netip.Addr]*Node
}

// Owners resolves addresses. If two policed pods claim one address, the younger owns it (then the one whose
// name sorts last). A pod's claim precedes a node's.
func (s *Snapshot) Owners() Owners {
	o := Owners{Pods: make(map[netip.Addr]*Pod, s.Pods.Len()), Nodes: make(map[netip.Addr]*Node)}
	for _, p := range s.Pods.All() {
		if !p.Policed() {
			continue
		}
		for _, a := range p.IPs {
			if was, ok := o.Pods[a]; !ok || younger(p, was) {
				o.Pods[a] = p
			}
		}
	}
	for _, n := range s.Nodes.All() {
		for _, a := range n.Addresses {
			if was, ok := o.Nodes[a]; !ok || n.Name > was.Name {
				o.Nodes[a] = n
			}
		}
	}
	return o
}

func younger(p, q *Pod) bool {
	return cmp.Or(cmp.Compare(p.Created, q.Created), p.PodID.Compare(q.PodID)) > 0
}

// PodRange reports whether the address is in some node's pod range.
func (s *Snapshot) PodRange(a netip.Addr) bool {
	for _, n := range s.Nodes.All() {
		for _, c := range n.PodCIDRs {
			if c.Contains(a) {
				return true
			}
		}
	}
	return false
}
