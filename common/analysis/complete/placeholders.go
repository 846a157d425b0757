// SPDX-License-Identifier: Apache-2.0

package complete

import (
	"fmt"
	"maps"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// AddPlaceholders adds placeholder pods to manifests that hold policies without their pods. For
// each selector of a policy, as subject or as peer, that matches no pod, it adds a pod that
// matches. In each namespace of a policy it adds a pod without labels. It returns the number
// of added pods.
func AddPlaceholders(o *model.Objects) int {
	w := &placeholders{objects: o, snapshot: o.Snapshot(), pods: make(map[model.PodID]*model.Pod)}
	w.ports = namedPortsOf(o.Policies)
	for _, p := range o.Policies {
		if p.Origin.Namespace != "" {
			w.bystander(p.Origin.Namespace)
		}
		w.selected(p.Subject)
		for _, d := range model.Directions {
			for _, r := range p.Rules[d] {
				for _, peer := range r.Peers {
					if peer.Kind == model.PeerPods {
						w.selected(peer.Pods)
					}
				}
			}
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(w.pods), model.PodID.Compare) {
		o.Pods = append(o.Pods, w.pods[id])
	}
	slices.SortFunc(o.Pods, func(a, b *model.Pod) int { return a.PodID.Compare(b.PodID) })
	return len(w.pods)
}

type placeholders struct {
	objects  *model.Objects
	snapshot *model.Snapshot // with the added namespaces
	pods     map[model.PodID]*model.Pod
	ports    []model.NamedPort
}

// namedPortsOf gives a number to every port name that a policy uses.
func namedPortsOf(policies []*model.Policy) []model.NamedPort {
	var ports []model.NamedPort
	seen := make(map[model.NamedPort]bool)
	for _, p := range policies {
		for _, d := range model.Directions {
			for _, r := range p.Rules[d] {
				for _, m := range r.Ports {
					n := model.NamedPort{Name: m.Name, Protocol: m.Protocol}
					if n.Protocol == model.AnyProtocol {
						n.Protocol = model.TCP
					}
					if n.Name == "" || seen[n] {
						continue
					}
					seen[n] = true
					n.Port = uint16(20000 + len(ports)%10000)
					ports = append(ports, n)
				}
			}
		}
	}
	return ports
}

func (w *placeholders) bystander(namespace string) {
	id := model.PodID{Namespace: namespace, Name: "assumed-bystander"}
	w.pods[id] = &model.Pod{PodID: id}
}

// selected adds a pod that the selector selects, if there is none. A selector that
// contradicts itself has none.
func (w *placeholders) selected(s model.PodSelector) {
	for _, p := range w.objects.Pods {
		if p.Policed() && w.selects(s, p) {
			return
		}
	}
	for _, p := range w.pods {
		if w.selects(s, p) {
			return
		}
	}
	namespace, ok := w.namespace(s)
	if !ok {
		return
	}
	labels, ok := satisfy(s.Pods)
	if !ok {
		return
	}
	id := model.PodID{Namespace: namespace, Name: fmt.Sprintf("assumed-%d", len(w.pods))}
	w.pods[id] = &model.Pod{PodID: id, Labels: model.MakeLabels(labels), Ports: w.ports}
}

func (w *placeholders) selects(s model.PodSelector, p *model.Pod) bool {
	return s.MatchesNamespace(w.snapshot.Namespace(p.Namespace)) && s.Pods.Matches(p.Labels)
}

// namespace finds a namespace that the selector selects, or adds one.
func (w *placeholders) namespace(s model.PodSelector) (string, bool) {
	if s.Namespace != "" {
		return s.Namespace, true
	}
	known := make(map[string]*model.Namespace)
	for name, ns := range w.snapshot.Namespaces.All() {
		known[name] = ns
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if s.MatchesNamespace(known[name]) {
			return name, true
		}
	}
	labels, ok := satisfy(s.Namespaces)
	if !ok {
		return "", false
	}
	name := labels[model.MetadataName]
	if name == "" {
		name = fmt.Sprintf("assumed-%d", len(known))
	}
	ns := model.NewNamespace(name, labels)
	if known[name] != nil || !s.MatchesNamespace(ns) {
		return "", false
	}
	w.objects.Namespaces = append(w.objects.Namespaces, ns)
	w.snapshot = w.objects.Snapshot()
	return name, true
}

// satisfy returns labels that a selector matches.
func satisfy(s model.Selector) (map[string]string, bool) {
	labels := make(map[string]string)
	for _, r := range s.Requirements() {
		candidates := r.Values
		switch r.Operator {
		case model.Exists:
			candidates = []string{"assumed"}
		case model.In:
		default:
			continue // the requirement holds without the label
		}
		if _, have := labels[r.Key]; have && r.Operator == model.Exists {
			continue
		}
		for _, v := range candidates {
			one := model.MakeLabels(map[string]string{r.Key: v})
			if !slices.ContainsFunc(s.Requirements(), func(other model.Requirement) bool { return other.Key == r.Key && !other.Matches(one) }) {
				labels[r.Key] = v
				break
			}
		}
	}
	return labels, s.Matches(model.MakeLabels(labels))
}
