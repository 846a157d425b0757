// SPDX-License-Identifier: Apache-2.0

package compile_test

import (
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
