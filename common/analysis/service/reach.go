// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// Route is a port of a Service, and where nodes send connections of one address family to it.
type Route struct {
	Service *model.Service
	Port    model.ServicePort
	// Targets are the backends, sorted by name.
	Targets []Target
	// Missing is the reason why there are no Targets.
	Missing string
}

// Target is a backend with its address of the family.
type Target struct {
	Name string
	Addr netip.Addr
	Port uint16
}

// String returns "shop/db TCP 5432 (pg)".
func (r *Route) String() string {
	return fmt.Sprintf("%s/%s %s", r.Service.Namespace, r.Service.Name, portText(r.Port))
}

// Route finds the backends of a port for clients of one address family.
func (t *Services) Route(s *model.Service, port model.ServicePort, v6 bool) *Route {
	r := &Route{Service: s, Port: port}
	family := map[bool]string{false: "IPv4", true: "IPv6"}[v6]
	if !s.Serves(v6) {
		r.Missing = fmt.Sprintf("no %s in the IP families of Service %s/%s", family, s.Namespace, s.Name)
		return r
	}
	if !s.Headless && len(s.Addresses) > 0 && !slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return a.Is6() == v6 }) {
		r.Missing = fmt.Sprintf("no %s address of Service %s/%s", family, s.Namespace, s.Name)
		return r
	}
	backends, err := t.Backends(s, port)
	if err != nil {
		r.Missing = err.Error()
		return r
	}
	for _, b := range backends {
		if i := slices.IndexFunc(b.Addresses, func(a netip.Addr) bool { return a.Is6() == v6 }); i >= 0 {
			r.Targets = append(r.Targets, Target{b.Name, b.Addresses[i], b.Port})
		}
	}
	if len(r.Targets) == 0 {
		r.Missing = fmt.Sprintf("no backend of Service %s/%s with an %s address", s.Namespace, s.Name, family)
	}
	return r
}

// Reach computes which backends each source reaches. It calls row for each source in order; allowed holds, by
// route and target, whether connections are allowed. It reuses the slices. A pod reaches itself. Other pods of a group
// that contains a target have the verdict of the group.
func (t *Services) Reach(p *reach.Partition, from []*reach.Group, routes []*Route, row func(i int, allowed [][]bool) error) error {
	var to []*reach.Group
	place := make(map[*reach.Group]int)
	groups, allowed := make([][]*reach.Group, len(routes)), make([][]bool, len(routes))
	for i, r := range routes {
		allowed[i] = make([]bool, len(r.Targets))
		for _, target := range r.Targets {
			g := p.At(target.Addr)
			groups[i] = append(groups[i], g)
			if _, known := place[g]; g != nil && !known {
				place[g] = len(to)
				to = append(to, g)
			}
		}
	}
	reference := policy.NewEvaluator(t.snapshot)
	fill := func(i int, ports []reach.PortsID) error {
		for n, r := range routes {
			for k, target := range r.Targets {
				g := groups[n][k]
				switch {
				case g == nil:
					allowed[n][k] = allows(reference, p.Client(from[i], target.Addr), target.Addr, r.Port.Protocol, target.Port)
				case g == from[i] && g.Single():
					allowed[n][k] = true
				default:
					allowed[n][k] = p.Has(ports[place[g]], p.Cell(r.Port.Protocol, target.Port))
				}
			}
		}
		return row(i, allowed)
	}
	if len(to) > 0 {
		return p.Reach(from, to, fill)
	}
	for i := range from {
		if err := fill(i, nil); err != nil {
			return err
		}
	}
	return nil
}

// allows returns the verdict of the reference evaluator on one member of a group.
func allows(e *policy.Evaluator, from, to netip.Addr, protocol model.Protocol, port uint16) bool {
	egress, ingress := e.Flow(model.Flow{Src: from, Dst: to, Protocol: protocol, Port: port})
	return egress.Verdict == model.Allow && ingress.Verdict == model.Allow
}
