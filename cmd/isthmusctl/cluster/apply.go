// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"maps"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Reader returns a source that reads manifests as objects to apply, with the same flags but --stored.
func (s *Source) Reader() Source {
	return Source{SkipBad: s.SkipBad, AllowEmpty: s.AllowEmpty, applied: true, stdin: s.stdin, quiet: s.quiet, command: s.command}
}

// Skipped adds the documents that another source has skipped.
func (s *Source) Skipped(other *Source) { s.leftOut += other.leftOut }

// ObjectsOf lists the objects of a snapshot.
func ObjectsOf(s *model.Snapshot) model.Objects {
	o := model.Objects{
		Namespaces: slices.Collect(maps.Values(maps.Collect(s.Namespaces.All()))),
		Nodes:      slices.Collect(maps.Values(maps.Collect(s.Nodes.All()))),
		Pods:       slices.Collect(maps.Values(maps.Collect(s.Pods.All()))),
		Policies:   slices.Collect(maps.Values(maps.Collect(s.Policies.All()))),
		DenyLists:  slices.Collect(maps.Values(maps.Collect(s.DenyLists.All()))),
	}
	o.Sort()
	return o
}

// Apply returns a cluster after kubectl apply of more objects. Nodes of the applied objects are
// left out: the cluster has its own. Labels and annotations that the cluster has and the applied objects do
// not name stay. Pods of an applied workload that runs already get the labels and ports of its
// template. prune removes the policies that the applied objects do not have. Deny lists stay.
func Apply(live, applied model.Objects, prune bool) model.Objects {
	o := live
	o.Places, o.Workloads, o.NodeSelectors = applied.Places, applied.Workloads, applied.NodeSelectors
	o.Namespaces = replace(live.Namespaces, applied.Namespaces, func(n *model.Namespace) string { return n.Name },
		func(was, is *model.Namespace) *model.Namespace {
			n := *is
			n.Labels, n.Enforcement = over(was.Labels, is.Labels), cmp.Or(is.Enforcement, was.Enforcement)
			return &n
		})
	o.Policies = replace(live.Policies, applied.Policies, func(p *model.Policy) model.Origin { return p.Origin.Key() }, second[*model.Policy])
	o.DenyLists = replace(live.DenyLists, applied.DenyLists, func(l *model.DenyList) string { return l.Name }, second[*model.DenyList])
	if prune {
		o.Policies = slices.Clone(applied.Policies)
	}
	o.Services = replace(live.Services, applied.Services, func(s *model.Service) [2]string { return [2]string{s.Namespace, s.Name} },
		func(was, is *model.Service) *model.Service {
			s := *is
			s.Addresses, s.ClusterIPs = was.Addresses, was.ClusterIPs // the API server has assigned them
			return &s
		})
	o.Pods = applyPods(live.Pods, applied)
	o.Sort()
	return o
}

func second[T any](_, is T) T { return is }

// replace returns a list in which objects of another list replace those with the same key.
func replace[T any, K comparable](was, is []T, key func(T) K, merge func(was, is T) T) []T {
	all := slices.Clone(was)
	at := make(map[K]int, len(was))
	for i, o := range was {
		at[key(o)] = i
	}
	for _, o := range is {
		if i, ok := at[key(o)]; ok {
			all[i] = merge(all[i], o)
		} else {
			at[key(o)] = len(all)
			all = append(all, o)
		}
	}
	return all
}

// over returns labels with those of another set on top.
func over(was, is model.Labels) model.Labels {
	all := maps.Collect(was.All())
	maps.Insert(all, is.All())
	return model.MakeLabels(all)
}

// applyPods replaces pods, and the labels and ports of the pods of workloads.
func applyPods(live []*model.Pod, applied model.Objects) []*model.Pod {
	templates := make(map[model.WorkloadID]*model.Pod)
	for _, p := range applied.Pods {
		if w, ok := applied.Workloads[p.PodID]; ok {
			if w.Kind == "ReplicaSet" {
				w.Kind = "Deployment"
			}
			templates[w] = p
		}
	}
	running := make(map[model.WorkloadID]bool)
	pods := slices.Clone(live)
	at := make(map[model.PodID]int)
	for i, p := range pods {
		at[p.PodID] = i
		w, ok := p.Workload()
		if t := templates[w]; ok && t != nil {
			running[w] = true
			pod := *p
			pod.Labels, pod.Ports, pod.HostPorts = fromTemplate(p.Labels, t.Labels), t.Ports, t.HostPorts
			if pod.HostNetwork != t.HostNetwork { // a new pod has other addresses
				pod.HostNetwork, pod.IPs = t.HostNetwork, nil
			}
			pods[i] = &pod
		}
	}
	for _, p := range applied.Pods {
		w, ofWorkload := applied.Workloads[p.PodID]
		if w.Kind == "ReplicaSet" {
			w.Kind = "Deployment"
		}
		i, known := at[p.PodID]
		switch {
		case ofWorkload && running[w]:
		case known:
			pod := *pods[i]
			pod.Labels = over(pod.Labels, p.Labels)
			pods[i] = &pod
		default:
			pods = append(pods, p)
		}
	}
	return pods
}

// fromTemplate returns the labels of a template, with those that controllers gave to a pod.
func fromTemplate(pod, template model.Labels) model.Labels {
	all := maps.Collect(template.All())
	for _, key := range model.ControllerLabels() {
		if value, ok := pod.Get(key); ok {
			all[key] = value
		}
	}
	return model.MakeLabels(all)
}
