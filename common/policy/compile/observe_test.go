// SPDX-License-Identifier: Apache-2.0

package compile_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/world"
)

// The endpoints of a namespace are observed as soon as its annotation says so, and no longer. Tables stay as they are.
func TestObservedEndpoints(t *testing.T) {
	was := world.Random(7, world.Shapes[0])
	in := func(s *model.Snapshot, o model.Observation) compile.Input {
		return compile.Input{Snapshot: s, Node: "node1", Endpoints: world.Endpoints(s, "node1"), Observe: o}
	}
	c := compile.New()
	check := func(s *model.Snapshot, o model.Observation, what string) {
		t.Helper()
		state, _ := c.Compile(in(s, o))
		if len(state.Policy.Endpoints) == 0 {
			t.Fatal("no endpoints")
		}
		for id, e := range state.Policy.Endpoints {
			ns, _ := s.Namespaces.Get(e.Pod.Namespace)
			if want := o.Observes(ns); e.Observed != want {
				t.Errorf("%s: endpoint %s: observed %t, want %t", what, id, e.Observed, want)
			}
		}
		plain, _ := compile.Once(in(s, model.ObserveNone))
		if len(plain.Policy.Tables) != len(state.Policy.Tables) {
			t.Errorf("%s: %d tables, without observation %d", what, len(state.Policy.Tables), len(plain.Policy.Tables))
		}
	}
	check(was, model.ObserveNone, "never")
	check(was, model.ObserveSome, "on demand")
	for name, ns := range was.Namespaces.All() {
		asks := *ns
		asks.Enforcement = model.Observe
		s := *was
		s.Namespaces = was.Namespaces.With(name, &asks)
		check(&s, model.ObserveSome, "namespace "+name+" asks")
		check(was, model.ObserveSome, "namespace "+name+" no longer asks")
	}
	check(was, model.ObserveAll, "all")
}

// A value of the annotation that means nothing is reported where a pod is concerned and could be observed.
func TestEnforcementReports(t *testing.T) {
	was := world.Random(7, world.Shapes[0])
	endpoints := world.Endpoints(was, "node1")
	used := make(map[string]bool)
	for _, e := range endpoints {
		used[e.Pod.Namespace] = true
	}
	c := compile.New()
	for name, ns := range was.Namespaces.All() {
		typo, asks := *ns, *ns
		typo.Enforcement, asks.Enforcement = "obsreve", model.Observe
		s, refused := *was, *was
		s.Namespaces, refused.Namespaces = was.Namespaces.With(name, &typo), was.Namespaces.With(name, &asks)
		for o, reports := range map[model.Observation]bool{model.ObserveNone: false, model.ObserveSome: false, model.ObserveRefused: true} {
			_, all := c.Compile(compile.Input{Snapshot: &refused, Node: "node1", Endpoints: endpoints, Observe: o})
			got := slices.ContainsFunc(all, func(u model.Unsupported) bool {
				return u.Policy == model.Origin{Kind: "Namespace", Name: name} && strings.Contains(u.String(), "this node cannot report what policy would drop")
			})
			if want := reports && used[name]; got != want {
				t.Errorf("namespace %s asks for observation, mode %d: reported %t, want %t: %v", name, o, got, want, all)
			}
		}
		for _, in := range []*model.Snapshot{was, &s} {
			for o, observing := range map[model.Observation]bool{model.ObserveNone: false, model.ObserveSome: true, model.ObserveAll: true, model.ObserveRefused: true} {
				_, all := c.Compile(compile.Input{Snapshot: in, Node: "node1", Endpoints: endpoints, Observe: o})
				got := slices.ContainsFunc(all, func(u model.Unsupported) bool {
					return u.Policy == model.Origin{Kind: "Namespace", Name: name} && strings.Contains(u.String(), `isthmus.dev/enforcement on  (): refused: "obsreve" is neither`)
				})
				if want := in == &s && observing && used[name]; got != want {
					t.Errorf("namespace %s, observation %d: reported %t, want %t: %v", name, o, got, want, all)
				}
			}
		}
	}
	if len(used) == 0 {
		t.Fatal("no endpoints")
	}
}
