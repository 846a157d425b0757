// SPDX-License-Identifier: Apache-2.0

package linux

import "github.com/isthmus-net/isthmus/common/dataplane"

// notePathModes records the mechanisms in use on this node, for Counters.
func (b *Backend) notePathModes() {
	older := len(b.upgrade.waiting)
	modes := dataplane.CountModes("pods", map[string]int{"tcx": len(b.linked), "older": older, "clsact": max(0, len(b.specs)-len(b.linked)-older)})
	clients := dataplane.PathMode{Part: "clients", Mode: "dropped", Count: 1}
	if b.path.QueriesConntrack() {
		clients.Mode = "tracked"
	}
	modes = append(modes, dataplane.PathMode{Part: "same_node", Mode: "redirect", Count: 1}, clients,
		// This node cannot distinguish a client that another node masquerades from that node.
		dataplane.PathMode{Part: "remote_clients", Mode: "node_address", Count: 1})
	modes = append(modes, b.components.PathModes()...)
	b.pathModes.Store(&modes)
}
