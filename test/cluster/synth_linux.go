// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/model"
)

// Populate adds pods to a set of manifests whose policies select (nearly) none of
// its pods. Each pod selector of a policy gets a pod that it selects, in a namespace
// that fits. Each namespace gets a pod without labels. All of them have the named
// ports that policies use. There are at most limit pods in the end.
func Populate(o *model.Objects, limit int) int {
	p := &population{objects: o, limit: limit, have: make(map[string]bool)}
	for _, pod := range o.Pods {
		p.have[pod.Namespace+" "+pod.Labels.String()] = true
	}
	p.ports = []model.NamedPort{{Name: "http", Protocol: model.TCP, Port: 80}}
	for _, policy := range o.Policies {
		for _, rules := range policy.Rules {
			for _, r := range rules {
				p.addPorts(r)
			}
		}
	}
	before := len(o.Pods)
	for _, policy := range o.Policies {
		p.add(policy.Subject)
		for _, rules := range policy.Rules {
			for _, r := range rules {
				for _, peer := range r.Peers {
					if peer.Kind == model.PeerPods {
						p.add(peer.Pods)
					}
				}
			}
		}
	}
	for _, ns := range o.Snapshot().Namespaces.All() {
		p.addPod(ns.Name, model.Labels{})
	}
	return len(o.Pods) - before
}

type population struct {
	objects *model.Objects
	limit   int
	have    map[string]bool // namespace and labels
	ports   []model.NamedPort
}

// addPorts adds the first port of each match, up to a maximum per pod.
func (p *population) addPorts(r model.Rule) {
	for _, m := range r.Ports {
		port := model.NamedPort{Name: m.Name, Protocol: m.Protocol, Port: max(m.First, 1)}
		if m.Name == "" {
			port.Name = fmt.Sprintf("p%d", port.Port)
		} else {
			port.Port = uint16(7000 + len(p.ports))
		}
		if port.Protocol == model.AnyProtocol {
			port.Protocol = model.TCP
		}
		known := false
		for _, q := range p.ports {
			known = known || q.Port == port.Port && q.Protocol == port.Protocol || q.Name == port.Name && q.Protocol == port.Protocol
		}
		if !known && len(p.ports) < 5 {
			p.ports = append(p.ports, port)
		}
	}
}

// add makes a pod that a selector matches.
func (p *population) add(s model.PodSelector) {
	labels, ok := satisfy(s.Pods)
	if !ok {
		return
	}
	for _, ns := range p.objects.Snapshot().Namespaces.All() {
		if s.MatchesNamespace(ns) {
			p.addPod(ns.Name, labels)
			return
		}
	}
	if wanted, ok := satisfy(s.Namespaces); ok && s.Namespace == "" {
		name := fmt.Sprintf("made-%d", len(p.objects.Namespaces))
		all := make(map[string]string)
		for k, v := range wanted.All() {
			all[k] = v
		}
		if named, ok := wanted.Get(model.MetadataName); ok {
			name = named
		}
		p.objects.Namespaces = append(p.objects.Namespaces, model.NewNamespace(name, all))
		p.addPod(name, labels)
	}
}

func (p *population) addPod(namespace string, labels model.Labels) {
	key := namespace + " " + labels.String()
	if p.have[key] || len(p.objects.Pods) >= p.limit {
		return
	}
	p.have[key] = true
	id := model.PodID{Namespace: namespace, Name: fmt.Sprintf("made-%d", len(p.objects.Pods))}
	p.objects.Pods = append(p.objects.Pods, &model.Pod{PodID: id, Labels: labels, Ports: p.ports})
	if len(p.objects.Pods)%5 == 0 { // some pods are on Windows
		if p.objects.NodeSelectors == nil {
			p.objects.NodeSelectors = make(map[model.PodID]model.Selector)
		}
		p.objects.NodeSelectors[id] = model.MakeSelector(model.Requirement{Key: "kubernetes.io/os", Operator: model.In, Values: []string{"windows"}})
	}
}

// satisfy returns labels that a selector matches.
func satisfy(s model.Selector) (model.Labels, bool) {
	m := make(map[string]string)
	for _, r := range s.Requirements() {
		switch r.Operator {
		case model.In:
			m[r.Key] = r.Values[0]
		case model.Exists:
			if _, ok := m[r.Key]; !ok {
				m[r.Key] = "made"
			}
		}
	}
	labels := model.MakeLabels(m)
	return labels, s.Matches(labels)
}
