// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// Services are the Services of a cluster.
type Services struct {
	snapshot *model.Snapshot
	all      []*model.Service
	owners   model.Owners
	// slices are by Service, pods by namespace.
	slices map[[2]string][]*model.EndpointSlice
	pods   map[string][]*model.Pod
	// hostPorts are the pods with host ports, by node, sorted.
	hostPorts map[string][]*model.Pod
}

// New returns the Services of a cluster.
func New(s *model.Snapshot, all []*model.Service, endpoints []*model.EndpointSlice) *Services {
	t := &Services{snapshot: s, all: all, owners: s.Owners(), slices: make(map[[2]string][]*model.EndpointSlice), pods: make(map[string][]*model.Pod),
		hostPorts: make(map[string][]*model.Pod)}
	for _, e := range endpoints {
		key := [2]string{e.Namespace, e.Service}
		t.slices[key] = append(t.slices[key], e)
	}
	for id, p := range s.Pods.All() {
		t.pods[id.Namespace] = append(t.pods[id.Namespace], p)
		if len(p.HostPorts) > 0 && p.Policed() {
			t.hostPorts[p.Node] = append(t.hostPorts[p.Node], p)
		}
	}
	for _, all := range t.hostPorts {
		slices.SortFunc(all, func(a, b *model.Pod) int { return a.PodID.Compare(b.PodID) })
	}
	return t
}

// Named returns a Service by its name, or nil.
func (t *Services) Named(namespace, name string) *model.Service {
	i := slices.IndexFunc(t.all, func(s *model.Service) bool { return s.Namespace == namespace && s.Name == name })
	if i < 0 {
		return nil
	}
	return t.all[i]
}

// At returns the Services that an address belongs to. Addresses of pods and nodes belong to none, since
// a node may be an external IP of a Service.
func (t *Services) At(a netip.Addr) (all []*model.Service) {
	if t.owners.Pods[a] != nil || t.owners.Nodes[a] != nil {
		return nil
	}
	for _, s := range t.all {
		if slices.Contains(s.Addresses, a) {
			all = append(all, s)
		}
	}
	return all
}

// Names lists the Services of a namespace, sorted.
func (t *Services) Names(namespace string) (names []string) {
	for _, s := range t.all {
		if s.Namespace == namespace {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Backend is one destination of a Service: policy decides about it, and not about the Service.
type Backend struct {
	// Name is namespace/pod, or the address of a backend that is not a known pod.
	Name string
	// Addresses are those of the backend, at most one for each family.
	Addresses []netip.Addr
	Port      uint16
}

// Port selects ports of a Service by number or name; an empty text selects all. A protocol selects those of
// that protocol. A client of a headless Service may call any port of its pods.
func Port(s *model.Service, text string, protocol *model.Protocol) ([]model.ServicePort, error) {
	var found []model.ServicePort
	var known []string
	for _, p := range s.Ports {
		known = append(known, portText(p))
		if (text == "" || text == p.Name || text == fmt.Sprint(p.Port)) && (protocol == nil || *protocol == p.Protocol) {
			found = append(found, p)
		}
	}
	var n uint16
	if _, err := fmt.Sscan(text, &n); s.Headless && text != "" && err == nil && fmt.Sprint(n) == text {
		p := model.ServicePort{Port: n, Target: n, Protocol: model.TCP}
		if protocol != nil {
			p.Protocol = *protocol
		} else if len(found) == 1 {
			p.Protocol = found[0].Protocol
		}
		return []model.ServicePort{p}, nil // nothing translates the port
	}
	switch {
	case s.ExternalName != "":
		return nil, externalName(s)
	case len(s.Ports) == 0:
		return nil, fmt.Errorf("no ports in Service %s/%s: give the port of its pods", s.Namespace, s.Name)
	case len(found) == 0:
		return nil, fmt.Errorf("no such port of Service %s/%s: it has %s", s.Namespace, s.Name, strings.Join(known, ", "))
	}
	return found, nil
}

func portText(p model.ServicePort) string {
	text := fmt.Sprintf("%s %d", p.Protocol, p.Port)
	if p.Name != "" {
		text += " (" + p.Name + ")"
	}
	return text
}

// Backends lists where nodes send connections to a port of a Service, sorted by name. They are the ready
// endpoints of its EndpointSlices or, if there are none, those that drain. Without slices they are the pods that it selects.
func (t *Services) Backends(s *model.Service, port model.ServicePort) ([]Backend, error) {
	if s.ExternalName != "" {
		return nil, externalName(s)
	}
	found, sliced := t.sliced(s, port, false)
	if sliced && len(found) == 0 && !s.Headless { // DNS leads to ready endpoints only
		found, _ = t.sliced(s, port, true)
	}
	if !sliced {
		if !s.Selects {
			return nil, fmt.Errorf("no known backends of Service %s/%s: it has no selector and no EndpointSlice", s.Namespace, s.Name)
		}
		found = t.selected(s, port)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no backend of Service %s/%s for %s: %s", s.Namespace, s.Name, portText(port), t.without(s, port, sliced))
	}
	slices.SortFunc(found, func(a, b Backend) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

// without says why a port of a Service has no backends.
func (t *Services) without(s *model.Service, port model.ServicePort, sliced bool) string {
	matches := func(p *model.Pod) bool { return !p.Finished && s.Pods.Matches(p.Labels) }
	named := func(p *model.Pod) bool {
		return matches(p) && (port.TargetName == "" || len(p.Resolve(port.TargetName, port.Protocol)) > 0)
	}
	switch pods := t.pods[s.Namespace]; {
	case sliced:
		return "no endpoint of its EndpointSlices is ready and has this port"
	case !slices.ContainsFunc(pods, matches):
		return fmt.Sprintf("its selector (%s) matches no pod", s.Pods)
	case !slices.ContainsFunc(pods, named):
		return fmt.Sprintf("no pod that its selector matches has a %s port with the name %s, which is the targetPort", port.Protocol, port.TargetName)
	}
	return "its pods have no address yet"
}

func externalName(s *model.Service) error {
	return fmt.Errorf("no backends of Service %s/%s of type ExternalName: DNS leads to %s, give an address of that", s.Namespace, s.Name, s.ExternalName)
}

// sliced returns the backends of the EndpointSlices, ready or draining ones, and whether there are slices.
func (t *Services) sliced(s *model.Service, port model.ServicePort, draining bool) (found []Backend, ok bool) {
	at := make(map[string]int)
	for _, e := range t.slices[[2]string{s.Namespace, s.Name}] {
		ok = true
		target := port.Port
		if slices.Contains(s.Ports, port) { // not a number that a client of a headless Service calls
			i := slices.IndexFunc(e.Ports, func(p model.NamedPort) bool { return p.Name == port.Name && p.Protocol == port.Protocol })
			if i < 0 {
				continue
			}
			target = e.Ports[i].Port
		}
		addresses := e.Addresses
		if draining {
			addresses = e.Draining
		}
		for _, a := range addresses {
			name := a.String()
			if pod := t.owners.Pods[a]; pod != nil {
				name = pod.PodID.String()
			}
			if i, known := at[fmt.Sprint(name, target)]; known { // its other family
				found[i].Addresses = append(found[i].Addresses, a)
				continue
			}
			at[fmt.Sprint(name, target)] = len(found)
			found = append(found, Backend{Name: name, Addresses: []netip.Addr{a}, Port: target})
		}
	}
	return found, ok
}

// selected returns the pods that the Service selects and that have the target port.
func (t *Services) selected(s *model.Service, port model.ServicePort) (found []Backend) {
	for _, p := range t.pods[s.Namespace] {
		if p.Finished || !s.Pods.Matches(p.Labels) {
			continue
		}
		target := port.Target
		if port.TargetName != "" {
			named := p.Resolve(port.TargetName, port.Protocol)
			if len(named) == 0 {
				continue
			}
			target = named[0].Port
		}
		addresses := p.IPs
		if n, ok := t.snapshot.Nodes.Get(p.Node); ok && p.HostNetwork && len(addresses) == 0 {
			addresses = n.Addresses
		}
		if len(addresses) > 0 {
			found = append(found, Backend{Name: p.PodID.String(), Addresses: addresses, Port: target})
		}
	}
	return found
}
