// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"cmp"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// rule is a rule in force in one version, with its matches in one address family.
type rule struct {
	tier   model.Tier
	action model.Action
	// yes are the groups that a peer certainly matches; maybe are those that it matches
	// depending on an unknown. every: all groups match.
	yes, maybe set
	every      bool
	// ports are the cells that the rule names by number. Without anyPort, named are those
	// that it names by name.
	ports   set
	anyPort bool
	named   []model.PortMatch
}

// prepare converts the matches of rules into sets of groups.
func (w *view) prepare(i int) {
	f := w.f
	project := func(ends set) set {
		groups := newSet(len(f.groups))
		for n := range ends.all() {
			groups.add(int(f.groupOf[n]))
		}
		return groups
	}
	w.unsure = project(w.unknown)
	terms := make(map[string]set, len(w.terms))
	for text, ends := range w.terms {
		terms[text] = project(ends)
	}
	w.terms, w.rules = terms, make(map[*model.Rule]*rule)
	for _, p := range w.policies {
		for _, rules := range p.rules {
			for _, r := range rules {
				w.rules[r] = w.rule(p, r)
			}
		}
	}
	w.ports, w.names = [][]model.NamedPort{nil}, make([]int32, len(f.groups))
	numbers := map[string]int32{"": 0}
	for n, e := range f.ends {
		if e.member == nil {
			continue
		}
		ports := w.egressPorts(e.pods[i])
		key := string(appendPorts(nil, ports))
		if _, ok := numbers[key]; !ok {
			numbers[key] = int32(len(w.ports))
			w.ports = append(w.ports, ports)
		}
		w.names[f.groupOf[n]] = numbers[key]
	}
}

func (w *view) rule(p *policy, r *model.Rule) *rule {
	f := w.f
	c := &rule{tier: p.Tier, action: r.Action, every: r.AnyPeer, anyPort: r.AnyPort, yes: newSet(len(f.groups)), maybe: newSet(len(f.groups)),
		ports: newSet(len(f.p.ports.cells))}
	for _, peer := range r.Peers {
		c.yes.union(w.terms[peer.String()])
		switch peer.Kind {
		case model.PeerPods:
			c.maybe.union(w.unsure)
		case model.PeerUnknown:
			c.maybe.union(f.all)
		}
	}
	for _, m := range r.Ports {
		if m.Name != "" {
			c.named = append(c.named, m)
			continue
		}
		f.p.ports.addRange(c.ports, m.Protocol, m.First, m.Last)
	}
	if r.AnyPort {
		c.ports = f.p.ports.sets[f.p.ports.all]
	}
	return c
}

// addNamed adds the cells that the port names of the rule stand for.
func (c *rule) addNamed(p *ports, to set, names []model.NamedPort) {
	for _, m := range c.named {
		for _, n := range names {
			if n.Name == m.Name && (m.Protocol == model.AnyProtocol || m.Protocol == n.Protocol) {
				p.addRange(to, n.Protocol, n.Port, n.Port)
			}
		}
	}
}

// addPossible adds the cells that a name may stand for on an unknown pod.
func (c *rule) addPossible(p *ports, to set) {
	for _, m := range c.named {
		for _, proto := range model.PortProtocols {
			if m.Protocol == proto || m.Protocol == model.AnyProtocol {
				p.addRange(to, proto, 0, 65535)
			}
		}
	}
}

// ingressPorts lists the meanings, on the pod, of the port names that ingress rules of the
// policies use; sorted, without repetition.
func (w *view) ingressPorts(policies []int32, pod *model.Pod) []model.NamedPort {
	if len(pod.Ports) == 0 {
		return nil
	}
	var found []model.NamedPort
	for _, n := range policies {
		for _, r := range w.policies[n].rules[model.Ingress] {
			for _, m := range r.Ports {
				if m.Name != "" {
					found = append(found, pod.Resolve(m.Name, m.Protocol)...)
				}
			}
		}
	}
	return sortedPorts(found)
}

// egressPorts lists the meanings, on the pod, of the port names that egress rules use;
// sorted, without repetition.
func (w *view) egressPorts(pod *model.Pod) []model.NamedPort {
	var found []model.NamedPort
	for _, n := range pod.Ports {
		if w.egressNames[n.Name] {
			found = append(found, n)
		}
	}
	return sortedPorts(found)
}

func sortedPorts(ports []model.NamedPort) []model.NamedPort {
	slices.SortFunc(ports, func(a, b model.NamedPort) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	return slices.Compact(ports)
}
