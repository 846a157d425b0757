// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"github.com/isthmus-net/isthmus/common/model"
)

// labelIndex evaluates selectors for all pods of a version at once. It holds one set of pods
// for each key and each value that a selector names.
type labelIndex struct {
	all    set
	keys   map[string]*keyIndex
	pods   map[string]set // by text of a selector of pods
	byNS   map[string]set
	spaces map[string]set // pods by text of a selector of namespaces
	names  []*model.Namespace
}

// keyIndex holds the pods that have a label, and those by its values.
type keyIndex struct {
	has    set
	values map[string]set
}

// indexLabels indexes the pods by the labels that the selectors name.
func indexLabels(s *model.Snapshot, pods []*model.Pod, selectors []model.Selector) *labelIndex {
	x := &labelIndex{all: fullSet(len(pods)), keys: make(map[string]*keyIndex), pods: make(map[string]set),
		byNS: make(map[string]set), spaces: make(map[string]set)}
	for _, sel := range selectors {
		for _, r := range sel.Requirements() {
			k := x.keys[r.Key]
			if k == nil {
				k = &keyIndex{has: newSet(len(pods)), values: make(map[string]set)}
				x.keys[r.Key] = k
			}
			for _, v := range r.Values {
				if k.values[v] == nil {
					k.values[v] = newSet(len(pods))
				}
			}
		}
	}
	for i, p := range pods {
		for key, value := range p.Labels.All() {
			if k := x.keys[key]; k != nil {
				k.has.add(i)
				if v := k.values[value]; v != nil {
					v.add(i)
				}
			}
		}
		if x.byNS[p.Namespace] == nil {
			x.byNS[p.Namespace] = newSet(len(pods))
			x.names = append(x.names, s.Namespace(p.Namespace))
		}
		x.byNS[p.Namespace].add(i)
	}
	return x
}

// selected returns the pods that a selector selects. Callers must not modify the result.
func (x *labelIndex) selected(s model.PodSelector) set {
	found := x.matching(s.Pods)
	switch {
	case s.Namespace == "" && s.Namespaces.Everything():
		return found
	case s.Namespace != "" && x.byNS[s.Namespace] == nil:
		return make(set, len(x.all))
	}
	spaces := x.byNS[s.Namespace]
	if s.Namespace == "" {
		spaces = x.inNamespaces(s.Namespaces)
	}
	both := append(set(nil), spaces...)
	both.intersect(found)
	return both
}

// inNamespaces returns the pods of the namespaces that a selector matches.
func (x *labelIndex) inNamespaces(s model.Selector) set {
	found, ok := x.spaces[s.String()]
	if !ok {
		found = make(set, len(x.all))
		for _, ns := range x.names {
			if s.Matches(ns.Labels) {
				found.union(x.byNS[ns.Name])
			}
		}
		x.spaces[s.String()] = found
	}
	return found
}

// matching returns the pods whose labels a selector matches.
func (x *labelIndex) matching(s model.Selector) set {
	found, ok := x.pods[s.String()]
	if ok {
		return found
	}
	found = append(set(nil), x.all...)
	for _, r := range s.Requirements() {
		k := x.keys[r.Key]
		of := make(set, len(x.all))
		for _, v := range r.Values {
			of.union(k.values[v])
		}
		switch r.Operator {
		case model.In:
			found.intersect(of)
		case model.NotIn:
			found.remove(of)
		case model.Exists:
			found.intersect(k.has)
		default:
			found.remove(k.has)
		}
	}
	x.pods[s.String()] = found
	return found
}
