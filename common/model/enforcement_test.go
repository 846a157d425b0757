// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

// Only a node in policy mode observes pods, and an unknown value enforces.
func TestObserves(t *testing.T) {
	for asked, want := range map[string][4]bool{ // by Observation
		"":            {false, false, true, false},
		model.Observe: {false, true, true, false},
		model.Enforce: {false, false, false, false},
		"Observe":     {false, false, false, false},
	} {
		if bad := model.EnforcementProblem(asked) != ""; bad != (asked == "Observe") {
			t.Errorf("annotation %q: wrong: %t", asked, bad)
		}
		for _, o := range []model.Observation{model.ObserveNone, model.ObserveSome, model.ObserveAll, model.ObserveRefused} {
			bad := asked == "Observe" && o != model.ObserveNone || asked == model.Observe && o == model.ObserveRefused
			if got := o.Problem(asked); (got != "") != bad {
				t.Errorf("mode %d, annotation %q: reported as %q, want a report: %t", o, asked, got, bad)
			}
			if got := o.Observes(&model.Namespace{Enforcement: asked}); got != want[o] {
				t.Errorf("mode %d, annotation %q: observes %t, want %t", o, asked, got, want[o])
			}
		}
	}
	if model.ObserveSome.Observes(nil) || !model.ObserveAll.Observes(nil) {
		t.Error("a namespace that is not known counts as one with an annotation")
	}
}
