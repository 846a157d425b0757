// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// counted returns the verdicts of a slot.
func (b *bench) counted(slot uint32) [2][2]uint64 {
	b.t.Helper()
	n, err := b.path.VerdictCounts(slot)
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// Verdicts are counted for the slot of the pod, whether or not they cause events, and for no other
// slot.
func TestVerdictsAreCountedBySlot(t *testing.T) {
	const slot, flows = bpfobj.Slots - 1, 30
	for name, events := range map[string]loader.Events{"events": {Rate: loader.MaxEventRate, Burst: loader.MaxEventBurst, Allowed: true}, "few events": {Rate: 1, Burst: 2}, "no events": {}} {
		t.Run(name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, v6 bool) {
				b := benchWith(t, events)
				b.pod.Slot, b.slot.Index = slot, slot
				var want [2][2]uint64
				port := uint16(1000)
				for _, verdict := range []model.Verdict{model.Deny, model.Allow} {
					b.under([]uint32{model.Deny: policymap.DenyAll, model.Allow: tableOpen}[verdict])
					for _, d := range model.Directions {
						for range flows {
							port++
							if _, err := b.path.Run(b.pod, d, frame(d, ip(v6, d, layers.IPProtocolTCP), tcp(port, 80, "S"))); err != nil {
								t.Fatal(err)
							}
						}
						want[d][verdict] += flows
						if got := b.counted(slot); got != want {
							t.Errorf("after %d flows, %s, %s: counted %v, want %v", flows, d, verdict, got, want)
						}
					}
				}
				// Packets of a known flow decide nothing.
				if _, err := b.path.Run(b.pod, out, frame(out, ip(v6, out, layers.IPProtocolTCP), tcp(port, 80, "A"))); err != nil {
					t.Fatal(err)
				}
				if got := b.counted(slot); got != want {
					t.Errorf("after a packet of a known flow: counted %v, want %v", got, want)
				}
				// Nor do those of a flow that policy revokes after DNAT.
				b.under(policymap.DenyAll)
				if pass, err := b.path.Run(b.pod, out, frame(out, ip(v6, out, layers.IPProtocolTCP), tcp(port, 80, "A"))); err != nil || pass {
					t.Fatalf("a packet of a revoked flow passes: %t, %v", pass, err)
				}
				if got := b.counted(slot); got != want {
					t.Errorf("after a packet of a revoked flow: counted %v, want %v", got, want)
				}
				for other := range slot {
					if got := b.counted(other); got != ([2][2]uint64{}) {
						t.Fatalf("slot %d counted %v", other, got)
					}
				}
				if err := b.path.ResetVerdictCounts(slot); err != nil {
					t.Fatal(err)
				}
				if got := b.counted(slot); got != ([2][2]uint64{}) {
					t.Errorf("after the reset: %v", got)
				}
			})
		})
	}
}
