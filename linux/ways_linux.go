// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"maps"
	"slices"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/fabric"
)

// noteWays notes how the work is done on this node, for Counters.
func (b *Backend) noteWays() {
	older := len(b.upgrade.waiting)
	ways := counted("pods", map[string]int{"tcx": len(b.linked), "older": older, "clsact": max(0, len(b.specs)-len(b.linked)-older)})
	ways = append(ways, dataplane.Way{Part: "services", Mode: b.egress, Count: 1}, dataplane.Way{Part: "same_node", Mode: "redirect", Count: 1})
	hops := b.fabric.Hops()
	ways = append(ways, counted("other_nodes", map[string]int{"stack_routes": hops[fabric.Routes], "stack_vxlan": hops[fabric.VXLAN]})...)
	outside := dataplane.Way{Part: "outside", Mode: "stack", Count: 1}
	if b.fabric.Masquerades() {
		outside.Mode = "stack_masquerade"
	}
	ways = append(ways, outside)
	b.ways.Store(&ways)
}

// counted are the ways in which anything is done, by mode.
func counted(part string, modes map[string]int) (ways []dataplane.Way) {
	for _, mode := range slices.Sorted(maps.Keys(modes)) {
		if modes[mode] > 0 {
			ways = append(ways, dataplane.Way{Part: part, Mode: mode, Count: modes[mode]})
		}
	}
	return ways
}
