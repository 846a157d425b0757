// SPDX-License-Identifier: Apache-2.0

package policymap_test

import (
	"maps"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/test/world"
)

// Observation is a flag in the slot, besides the number of the table: verdicts stay the same, flows are decided again
// when it changes, and a new agent reads it back.
func TestObservedSlots(t *testing.T) {
	k := newKernel()
	s := world.Random(3, shapes[0])
	enforced := stateOf(t, s, nil)
	observed := *enforced
	observed.Policy.Endpoints = maps.Clone(enforced.Policy.Endpoints)
	for id, e := range observed.Policy.Endpoints {
		e.Observed = true
		observed.Policy.Endpoints[id] = e
	}
	k.apply(t, enforced)
	for round, state := range []*model.State{&observed, enforced, &observed} {
		was := k.Entries.Clone()
		k.apply(t, state)
		k.check(t, s, state)
		for id, e := range state.Policy.Endpoints {
			n, _ := k.layout.Slot(id)
			slot := k.Slots[n]
			if e.Observed != (slot.Table&bpfobj.TableObserved != 0) || policymap.TableNumber(slot.Table) != policymap.TableNumber(was.Slots[n].Table) || slot.Epoch <= was.Slots[n].Epoch {
				t.Errorf("round %d: slot %d is %+v after %+v, observed %t", round, n, slot, was.Slots[n], e.Observed)
			}
		}
		k.restart(t)
		for id, e := range state.Policy.Endpoints {
			if got := k.layout.State().Policy.Endpoints[id]; got.Observed != e.Observed {
				t.Errorf("round %d: endpoint %s is read back as observed %t", round, id, got.Observed)
			}
		}
	}
	w, err := policymap.NewLayout(roomy).AddObservedSlot("new:eth0")
	if err != nil || w.Slot.Table != policymap.DenyAll|bpfobj.TableObserved {
		t.Errorf("slot of a new endpoint: %+v, %v", w, err)
	}
}
