// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"maps"
	"slices"

	"github.com/isthmus-net/isthmus/common/dataplane"
)

// notePathModes records the mechanisms in use on this node, for Counters.
func (b *Backend) notePathModes() {
	older := len(b.upgrade.waiting)
	modes := counted("pods", map[string]int{"tcx": len(b.linked), "older": older, "clsact": max(0, len(b.specs)-len(b.linked)-older)})
	modes = append(modes, dataplane.PathMode{Part: "services", Mode: b.egress, Count: 1}, dataplane.PathMode{Part: "same_node", Mode: "redirect", Count: 1})
	hops := make(map[string]int)
	for _, h := range b.fabric.Hops() {
		hops[b.ways.mode(h)]++
	}
	modes = append(modes, counted("other_nodes", hops)...)
	clients := dataplane.PathMode{Part: "clients", Mode: "dropped", Count: 1}
	if b.path.Asks() {
		clients.Mode = "tracked"
	}
	outside := dataplane.PathMode{Part: "outside", Mode: "stack", Count: 1}
	if b.fabric.Masquerades() {
		outside.Mode = "stack_masquerade"
	}
	// This node cannot distinguish a client that another node masquerades from that node.
	remote := dataplane.PathMode{Part: "remote_clients", Mode: "node_address", Count: 1}
	modes = append(modes, clients, remote, outside)
	b.pathModes.Store(&modes)
}

// counted returns the modes whose count is not zero.
func counted(part string, count map[string]int) (modes []dataplane.PathMode) {
	for _, mode := range slices.Sorted(maps.Keys(count)) {
		if count[mode] > 0 {
			modes = append(modes, dataplane.PathMode{Part: part, Mode: mode, Count: count[mode]})
		}
	}
	return modes
}
