// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// PlaceholderPod returns a placeholder pod that the subject of a policy selects, with the port
// names of the rules. With it a policy can be compiled in a cluster that has no such pod.
// The namespace is one of the snapshot, or a new one. PlaceholderPod reports false if the subject
// cannot select any pod.
func PlaceholderPod(s *model.Snapshot, p *model.Policy) (*model.Pod, *model.Namespace, bool) {
	labels, ok := satisfy(p.Subject.Pods)
	if !ok {
		return nil, nil, false
	}
	ns, ok := placeholderNamespace(s, p.Subject)
	if !ok {
		return nil, nil, false
	}
	pod := &model.Pod{PodID: model.PodID{Namespace: ns.Name, Name: "placeholder-" + strings.ToLower(p.Origin.Kind) + "-" + p.Origin.Name}, Labels: labels}
	for _, r := range p.Rules[model.Ingress] {
		for _, m := range r.Ports {
			known := slices.ContainsFunc(pod.Ports, func(n model.NamedPort) bool { return n.Name == m.Name })
			if m.Name == "" || known {
				continue
			}
			port := model.NamedPort{Name: m.Name, Protocol: m.Protocol, Port: uint16(20000 + len(pod.Ports))}
			if port.Protocol == model.AnyProtocol {
				port.Protocol = model.TCP
			}
			pod.Ports = append(pod.Ports, port)
		}
	}
	return pod, ns, true
}

// placeholderNamespace returns the first namespace by name that the selector matches, or
// creates one.
func placeholderNamespace(s *model.Snapshot, subject model.PodSelector) (*model.Namespace, bool) {
	if subject.Namespace != "" {
		return s.Namespace(subject.Namespace), true
	}
	var found *model.Namespace
	for _, ns := range s.Namespaces.All() {
		if subject.Namespaces.Matches(ns.Labels) && (found == nil || ns.Name < found.Name) {
			found = ns
		}
	}
	if found != nil {
		return found, true
	}
	labels, ok := satisfy(subject.Namespaces)
	if !ok {
		return nil, false
	}
	name, named := labels.Get(model.MetadataName)
	if !named {
		for name = "placeholder"; ; name += "-" {
			if _, taken := s.Namespaces.Get(name); !taken {
				break
			}
		}
	}
	all := make(map[string]string)
	for k, v := range labels.All() {
		all[k] = v
	}
	ns := model.NewNamespace(name, all)
	return ns, subject.Namespaces.Matches(ns.Labels)
}

// satisfy returns labels that a selector matches: as few as possible, each with the first
// value that all conditions on the key allow.
func satisfy(s model.Selector) (model.Labels, bool) {
	m := make(map[string]string)
	for _, r := range s.Requirements() {
		switch r.Operator {
		case model.In:
			for _, v := range r.Values {
				if allowed(s, r.Key, v) {
					m[r.Key] = v
					break
				}
			}
		case model.Exists:
			for i := 0; m[r.Key] == "" && i <= len(s.Requirements())+1; i++ {
				if v := fmt.Sprintf("placeholder-%d", i); allowed(s, r.Key, v) {
					m[r.Key] = v
				}
			}
		}
	}
	labels := model.MakeLabels(m)
	return labels, s.Matches(labels)
}

// allowed reports whether a value of a key meets all conditions on the key.
func allowed(s model.Selector, key, value string) bool {
	labels := model.MakeLabels(map[string]string{key: value})
	return !slices.ContainsFunc(s.Requirements(), func(r model.Requirement) bool { return r.Key == key && !r.Matches(labels) })
}
