// SPDX-License-Identifier: Apache-2.0

package complete

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
)

// MaxAssumed bounds the pods that Assume adds.
const MaxAssumed = 10_000

// Assumed is the result of Assume.
type Assumed struct {
	// Pods are the names of the added pods, in order. Policies is the number of policies
	// that they are for.
	Pods     []string
	Policies int
	// Cut is set if there would be more than MaxAssumed.
	Cut bool
}

// Assume adds placeholder pods to two versions of a cluster, for policies that differ and
// that select no pod. A directory that holds only policies has no pod on which a verdict
// could differ. If namespaces differ, Assume considers all policies that select no pod. Both
// versions get the same pods.
//
// For every selector of such a policy, as subject or as peer, Assume adds pods that it
// selects, also with each value that it names. It adds pods that violate exactly one of its
// requirements, and in each namespace pods without labels. So selectors that differ in one
// requirement select different pods.
func Assume(was, is *model.Objects) Assumed {
	sets := []*model.Objects{was, is}
	differ := make(map[string]bool)
	for _, name := range reach.Differing(was.Policies, is.Policies) {
		differ[name] = true
	}
	all := !reflect.DeepEqual(was.Namespaces, is.Namespaces)
	a := &assuming{sets: sets, pods: make(map[model.PodID]*model.Pod), namespaces: make(map[string][]*model.Namespace)}
	var selectors []model.PodSelector
	var policies []*model.Policy
	concerned := make(map[model.Origin]bool)
	for _, o := range sets {
		snapshot := o.Snapshot()
		for name, ns := range snapshot.Namespaces.All() {
			a.namespaces[name] = append(a.namespaces[name], ns)
		}
		policies = append(policies, o.Policies...)
		for _, p := range Unselecting(snapshot, o.Policies) {
			if !all && !differ[p.Origin.String()] {
				continue
			}
			concerned[p.Origin.Key()] = true
			selectors = append(selectors, selectorsOf(p)...)
		}
	}
	if a.Policies = len(concerned); a.Policies == 0 {
		return a.Assumed
	}
	a.ports = namedPortsOf(policies)
	// Namespaces come first: selectors of pods in any namespace then match in all of them.
	places := make([][]string, len(selectors))
	for i, s := range selectors {
		places[i] = a.places(s)
	}
	for i, s := range selectors {
		for _, labels := range alternatives(s.Pods) {
			for _, ns := range places[i] {
				a.pod(ns, labels)
			}
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(a.pods), model.PodID.Compare) {
		a.Pods = append(a.Pods, id.String())
		for _, o := range sets {
			o.Pods = append(o.Pods, a.pods[id])
		}
	}
	return a.Assumed
}

type assuming struct {
	Assumed
	sets       []*model.Objects
	namespaces map[string][]*model.Namespace // existing and added namespaces, each in its versions
	pods       map[model.PodID]*model.Pod
	ports      []model.NamedPort
}

// Unselecting returns the policies that select no pod of the snapshot.
func Unselecting(s *model.Snapshot, policies []*model.Policy) []*model.Policy {
	in := make(map[string]map[model.Labels]bool) // sets of labels of pods, by namespace
	for _, pod := range s.Pods.All() {
		if !pod.Policed() {
			continue
		}
		if in[pod.Namespace] == nil {
			in[pod.Namespace] = make(map[model.Labels]bool)
		}
		in[pod.Namespace][pod.Labels] = true
	}
	some := func(p *model.Policy, namespace string) bool {
		for labels := range in[namespace] {
			if p.Subject.Pods.Matches(labels) {
				return true
			}
		}
		return false
	}
	return slices.DeleteFunc(slices.Clone(policies), func(p *model.Policy) bool {
		if p.Subject.Namespace != "" {
			return some(p, p.Subject.Namespace)
		}
		for namespace := range in {
			if p.Subject.MatchesNamespace(s.Namespace(namespace)) && some(p, namespace) {
				return true
			}
		}
		return false
	})
}

// selectorsOf lists the selectors of pods of a policy.
func selectorsOf(p *model.Policy) []model.PodSelector {
	all := []model.PodSelector{p.Subject}
	for _, rules := range p.Rules {
		for _, r := range rules {
			for _, peer := range r.Peers {
				if peer.Kind == model.PeerPods {
					all = append(all, peer.Pods)
				}
			}
		}
	}
	return all
}

// places are the namespaces in which pods are added for a selector.
func (a *assuming) places(s model.PodSelector) []string {
	if s.Namespace != "" {
		a.pod(s.Namespace, nil)
		return []string{s.Namespace}
	}
	var all []string
	for _, labels := range alternatives(s.Namespaces) {
		name := a.namespace(s.Namespaces, labels)
		a.pod(name, nil)
		all = append(all, name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// namespace returns a namespace with the labels and without the other labels that the
// selector names: an existing one, or a new one.
func (a *assuming) namespace(s model.Selector, labels map[string]string) string {
	has := func(ns *model.Namespace) bool {
		return !slices.ContainsFunc(s.Requirements(), func(r model.Requirement) bool {
			value, ok := ns.Labels.Get(r.Key)
			want, wanted := labels[r.Key]
			return ok != wanted || value != want
		})
	}
	for _, name := range slices.Sorted(maps.Keys(a.namespaces)) {
		// Without a requirement a namespace of a policy would do. Another one distinguishes
		// "all namespaces" from "this namespace".
		if (len(labels) > 0 || strings.HasPrefix(name, assumedPrefix)) && slices.ContainsFunc(a.namespaces[name], has) {
			return name
		}
	}
	name := labels[model.MetadataName]
	if name == "" {
		name = assumedPrefix + labelText(labels)
	}
	if a.namespaces[name] == nil {
		ns := model.NewNamespace(name, labels)
		a.namespaces[name] = []*model.Namespace{ns}
		for _, o := range a.sets {
			o.Namespaces = append(o.Namespaces, ns)
		}
	}
	return name
}

// assumedPrefix begins the names of added objects; no API object can have such a name.
const assumedPrefix = "assumed:"

// labelText names labels in order.
func labelText(labels map[string]string) string {
	if len(labels) == 0 {
		return "no-labels"
	}
	return model.MakeLabels(labels).String()
}

// pod adds two pods with the labels, because they may also communicate with each other.
func (a *assuming) pod(namespace string, labels map[string]string) {
	for _, suffix := range []string{"", "(2)"} {
		if len(a.pods) >= MaxAssumed {
			a.Cut = true
			return
		}
		id := model.PodID{Namespace: namespace, Name: assumedPrefix + labelText(labels) + suffix}
		a.pods[id] = &model.Pod{PodID: id, Labels: model.MakeLabels(labels), Ports: a.ports}
	}
}

// alternatives lists sets of labels that distinguish a selector from others. The first is
// one that it selects; the others have each value that a requirement names, or lack the
// label.
func alternatives(s model.Selector) []map[string]string {
	base, ok := satisfy(s)
	if !ok {
		base = nil // the selector contradicts itself
	}
	all := []map[string]string{base}
	with := func(key, value string) {
		labels := maps.Clone(base)
		if labels == nil {
			labels = make(map[string]string)
		}
		labels[key] = value
		all = append(all, labels)
	}
	for _, r := range s.Requirements() {
		for _, v := range r.Values {
			with(r.Key, v)
		}
		switch r.Operator {
		case model.DoesNotExist, model.NotIn:
			with(r.Key, "assumed")
		default:
			labels := maps.Clone(base)
			delete(labels, r.Key)
			all = append(all, labels)
		}
	}
	return all
}
