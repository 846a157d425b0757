// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"slices"

	"github.com/isthmus-net/isthmus/common/analysis/complete"
	"github.com/isthmus-net/isthmus/common/model"
)

// Cluster is the input of the checks.
type Cluster struct {
	// Snapshot has nodes and addresses for all pods.
	Snapshot *model.Snapshot
	// Services are those of the cluster, if they are known.
	Services []*model.Service

	declared *model.Snapshot // contains only the content of the manifests
	// namespaces are those that an object describes; nil if there are none.
	namespaces map[string]bool
	policies   []*model.Policy
	// pods: each stands for all pods with one namespace, one set of labels, port names and
	// operating system, and has the addresses of all of them.
	pods []*model.Pod
	// hosts are the pods on the host network, sorted. No policy selects them, as subject or as peer.
	hosts []*model.Pod
	// os is the operating system that each of the pods runs on.
	os map[*model.Pod]model.OS
}

// NewCluster prepares a cluster. declared contains only the content of the manifests,
// without added objects. namespaces are those that an object describes; nil if that is not
// known.
func NewCluster(snapshot, declared *model.Snapshot, namespaces []*model.Namespace) *Cluster {
	l := &Cluster{Snapshot: snapshot, declared: declared, policies: snapshot.SortedPolicies()}
	for _, ns := range namespaces {
		if l.namespaces == nil {
			l.namespaces = make(map[string]bool)
		}
		l.namespaces[ns.Name] = true
	}
	l.join()
	return l
}

// join replaces pods that selectors cannot distinguish by one pod.
func (l *Cluster) join() {
	type kind struct {
		namespace string
		labels    model.Labels
		ports     string
		os        model.OS
	}
	found := make(map[kind]*model.Pod)
	l.os = make(map[*model.Pod]model.OS)
	for _, p := range l.Snapshot.Pods.All() {
		if p.HostNetwork && !p.Finished {
			l.hosts = append(l.hosts, p)
		}
		if !p.Policed() {
			continue
		}
		k := kind{p.Namespace, p.Labels, fmt.Sprint(p.Ports), complete.OSOf(l.Snapshot, p)}
		if found[k] == nil {
			one := *p
			one.IPs = nil
			found[k] = &one
			l.pods = append(l.pods, &one)
			l.os[&one] = k.os
		}
		found[k].IPs = append(found[k].IPs, p.IPs...)
		if p.PodID.Compare(found[k].PodID) < 0 {
			found[k].PodID = p.PodID
		}
	}
	byName := func(a, b *model.Pod) int { return a.PodID.Compare(b.PodID) }
	slices.SortFunc(l.pods, byName)
	slices.SortFunc(l.hosts, byName)
}

// Unselecting returns the policies that select no pod.
func (l *Cluster) Unselecting() []*model.Policy { return complete.Unselecting(l.Snapshot, l.policies) }

// onHost names one of the pods on the host network that a selector matches, and counts the others; "" if it matches none.
func (l *Cluster) onHost(s model.PodSelector) string {
	first, more := "", -1
	for _, pod := range l.hosts {
		if !l.matches(model.Peer{Kind: model.PeerPods, Pods: s}, pod) {
			continue
		}
		if more++; first == "" {
			first = pod.PodID.String()
		}
	}
	if more > 0 {
		return fmt.Sprintf("%s and %d more", first, more)
	}
	return first
}
