// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

// Only a node in policy mode observes pods, and an unknown value enforces.
func TestObserves(t *testing.T) {
	for asked, want := range map[string][3]bool{ // by Observation
		"":            {false, false, true},
		model.Observe: {false, true, true},
		model.Enforce: {false, false, false},
		"Observe":     {false, false, false},
	} {
		for _, o := range []model.Observation{model.ObserveNone, model.ObserveSome, model.ObserveAll} {
			if bad := model.EnforcementProblem(asked) != ""; bad != (asked == "Observe") {
				t.Errorf("annotation %q: reported as wrong: %t", asked, bad)
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
