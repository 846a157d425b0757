// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// Outcome is what a client reaches of a port of a Service.
type Outcome int

// The outcomes, from the least to the most.
const (
	Nowhere   Outcome = iota // no backends are known
	NoBackend                // policy denies all of them
	SomeBackends
	EveryBackend
)

func (o Outcome) String() string {
	return [...]string{"nowhere", "no backend", "some backends", "every backend"}[o]
}

// Change is a port of a Service that leads somewhere else in the second version of a cluster, and pods for
// which the Outcome differs because of that.
type Change struct {
	From    []*reach.Group
	Was, Is Side
}

// Side is a Change in one version.
type Side struct {
	Route   *Route
	Outcome Outcome
	// Allowed holds the verdict for each target of the route.
	Allowed []bool
}

// key is a text that equal sides share.
func (s Side) key() string { return fmt.Sprint(s.Route, s.Route.Targets, s.Outcome, s.Allowed) }

// Changes compares the Services that two versions of a cluster have, for the groups of pods of a partition of both.
// Backends of Services with a selector are the pods that it selects, whether they are ready or not. With internalTrafficPolicy
// Local they are those on the node of the client. Services with the same backends in both versions are left out: only edits of
// policies can change what reaches these.
func Changes(p *reach.Partition, was, is *Services) []Change {
	var all []Change
	before, after := was.withoutSlices(), is.withoutSlices()
	verdicts := [2]*policy.Evaluator{policy.NewEvaluator(was.snapshot), policy.NewEvaluator(is.snapshot)}
	for _, s := range is.sorted() {
		old := was.Named(s.Namespace, s.Name)
		if old == nil {
			continue
		}
		for _, port := range s.Ports {
			i := slices.IndexFunc(old.Ports, func(o model.ServicePort) bool { return o.Port == port.Port && o.Protocol == port.Protocol })
			if i < 0 {
				continue // clients cannot call it in the first version
			}
			for _, v6 := range []bool{false, true} {
				routes := [2]*Route{before.Route(old, old.Ports[i], v6), after.Route(s, port, v6)}
				own := [2]bool{near(old), near(s)}
				if !sameTargets(routes[0], routes[1]) || own[0] != own[1] {
					all = append(all, changesOf(p.Groups(v6), compared{[2]*Services{before, after}, routes, own, verdicts})...)
				}
			}
		}
	}
	return all
}

// withoutSlices returns the Services without the EndpointSlices of those that have a selector: slices of a cluster
// do not show what an edit will make of them.
func (t *Services) withoutSlices() *Services {
	c := *t
	c.slices = make(map[[2]string][]*model.EndpointSlice)
	for key, list := range t.slices {
		if s := t.Named(key[0], key[1]); s != nil && !s.Selects {
			c.slices[key] = list
		}
	}
	return &c
}

func (t *Services) sorted() []*model.Service {
	return slices.SortedFunc(slices.Values(t.all), func(a, b *model.Service) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
}

func sameTargets(a, b *Route) bool {
	return slices.EqualFunc(a.Targets, b.Targets, func(a, b Target) bool { return a.Name == b.Name && a.Port == b.Port })
}

// near reports whether clients in the cluster that call a cluster IP reach backends on their own node only.
func near(s *model.Service) bool { return s.OwnNode && !s.Headless }

// compared is a port of a Service in both versions.
type compared struct {
	services [2]*Services
	routes   [2]*Route
	own      [2]bool // as near
	verdicts [2]*policy.Evaluator
}

// changesOf lists the changes of one port, those of groups with equal results joined.
func changesOf(from []*reach.Group, c compared) []Change {
	var all []Change
	at := make(map[string]int)
	for _, g := range from {
		for _, g := range c.split(g) {
			var sides [2]Side
			for v := range sides {
				sides[v] = c.side(g, v)
			}
			if sides[0].Outcome == sides[1].Outcome {
				continue
			}
			key := sides[0].key() + sides[1].key()
			if i, ok := at[key]; ok {
				all[i].From = append(all[i].From, g)
				continue
			}
			at[key] = len(all)
			all = append(all, Change{From: []*reach.Group{g}, Was: sides[0], Is: sides[1]})
		}
	}
	return all
}

// split returns the pods of a group, by their nodes if these matter.
func (c compared) split(g *reach.Group) (parts []*reach.Group) {
	if len(g.Pods) == 0 {
		return nil
	}
	if !c.own[0] && !c.own[1] {
		return []*reach.Group{g}
	}
	at := make(map[string]*reach.Group)
	for _, m := range g.Pods {
		key := fmt.Sprint(m.Nodes)
		if at[key] == nil {
			at[key] = g.Part(nil)
			parts = append(parts, at[key])
		}
		at[key].Pods = append(at[key].Pods, m)
	}
	return parts
}

// side evaluates what a group reaches in the version with the given index.
func (c compared) side(g *reach.Group, version int) Side {
	r := *c.routes[version]
	if c.own[version] {
		r.Targets = slices.DeleteFunc(slices.Clone(r.Targets), func(t Target) bool { return c.services[version].nodeOf(t.Addr) != g.Pods[0].Nodes[version] })
	}
	s := Side{Route: &r, Allowed: make([]bool, len(r.Targets))}
	n := 0
	for i, to := range r.Targets {
		src := g.Pods[0].Addrs[version]
		if len(g.Pods) > 1 && g.Pods[0].ID.String() == to.Name {
			src = g.Pods[1].Addrs[version]
		}
		if s.Allowed[i] = allows(c.verdicts[version], src, to.Addr, r.Port.Protocol, to.Port); s.Allowed[i] {
			n++
		}
	}
	switch {
	case len(r.Targets) == 0:
		s.Outcome = Nowhere
	case n == len(r.Targets):
		s.Outcome = EveryBackend
	case n > 0:
		s.Outcome = SomeBackends
	default:
		s.Outcome = NoBackend
	}
	return s
}
