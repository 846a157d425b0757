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

// A number that gets another meaning counts from 0 on. The verdicts of the node keep what it has counted.
func TestCountsOfReusedCauses(t *testing.T) {
	const number, flows = bpfobj.CauseFirst + 3, 5
	b := benchWith(t, loader.Events{})
	b.under(tableOpen)
	cause := func(name string) *policymap.Writes {
		c := policymap.EncodeCause(&model.Cause{Reason: model.ReasonIsolated, Direction: out, Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "a", Name: name}}, model.Allow)
		return &policymap.Writes{Causes: []policymap.CauseWrite{{Number: number, Cause: c, Fresh: true}},
			Defaults: []bpfobj.PodTableCause{{Table: tableOpen, Causes: [2]uint32{number, number}}}}
	}
	port := uint16(1000)
	for round, name := range []string{"first", "second", "third"} {
		if err := b.path.Execute(cause(name)); err != nil {
			t.Fatal(err)
		}
		if n, err := b.path.CauseCounts([]uint32{number}); err != nil || n[number] != 0 {
			t.Errorf("%s: starts with %d flows (%v)", name, n[number], err)
		}
		for range flows {
			port++
			if _, err := b.path.Run(b.pod, out, frame(out, ip(false, out, layers.IPProtocolTCP), tcp(port, 80, "S"))); err != nil {
				t.Fatal(err)
			}
		}
		n, err := b.path.CauseCounts([]uint32{number})
		if err != nil || n[number] != flows {
			t.Errorf("%s: counted %d flows (%v), want %d", name, n[number], err, flows)
		}
		totals, err := b.path.Counters()
		if want := uint64(flows * (round + 1)); err != nil || totals[bpfobj.CountEgressAllow] != want {
			t.Errorf("%s: the node allowed %d flows (%v), want %d", name, totals[bpfobj.CountEgressAllow], err, want)
		}
		if got := b.counted(b.pod.Slot); got[model.Egress][model.Allow] != totals[bpfobj.CountEgressAllow] {
			t.Errorf("%s: the pod counted %v, the node %d", name, got, totals[bpfobj.CountEgressAllow])
		}
	}
}
