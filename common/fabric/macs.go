// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// macs finds the owner of each tunnel MAC. A node writes its own annotation. It must not attract another
// node's traffic by publishing that node's MAC. A MAC that is derived from the name of a Linux node belongs
// to that node. A MAC that two nodes publish belongs to neither, except to one of Isthmus if the other is foreign.
func (p *planner) macs() {
	p.owners = map[model.MAC]string{VTEP(p.self.Name): p.self.Name}
	for _, peer := range p.peers {
		if peer.OS != model.Windows { // HNS chooses the MAC of a Windows node
			p.owners[VTEP(peer.Node)] = peer.Node
		}
	}
	p.announced = make(map[model.MAC][]model.Route)
	for _, peer := range p.peers {
		if peer.VTEP != (model.MAC{}) {
			p.announced[peer.VTEP] = append(p.announced[peer.VTEP], peer)
		}
	}
}

// disputed returns which other node has the MAC that a node publishes, or "".
func (p *planner) disputed(peer model.Route) string {
	if owner := p.owners[peer.VTEP]; owner == peer.Node {
		return ""
	} else if owner != "" {
		return fmt.Sprintf("it belongs to node %s", owner)
	}
	for _, other := range p.announced[peer.VTEP] {
		if other.Node != peer.Node && (peer.Foreign || !other.Foreign) {
			return fmt.Sprintf("node %s publishes it, too", other.Node)
		}
	}
	return ""
}

// endpoints finds the owner of each tunnel address, as macs does for MACs. An address of a Node object or of this node's uplinks
// belongs to that node, and packets from it are compared with that node's sources.
func (p *planner) endpoints() {
	p.listed, p.published = make(map[netip.Addr][]string), make(map[netip.Addr][]string)
	list := func(node string, a netip.Addr) {
		if !slices.Contains(p.listed[a], node) {
			p.listed[a] = append(p.listed[a], node)
		}
	}
	for _, u := range p.self.Underlay {
		list(p.self.Name, u.Addr())
	}
	for _, a := range p.self.Addresses {
		list(p.self.Name, a)
	}
	for _, peer := range p.peers {
		for _, a := range peer.Addresses {
			list(peer.Node, a)
		}
		if peer.Tunnel.IsValid() {
			p.published[peer.Tunnel] = append(p.published[peer.Tunnel], peer.Node)
		}
	}
	for a, nodes := range p.listed {
		if p.shared(a) {
			p.problem("nodes %s have the same address %s, so it and pods of these nodes may be unreachable: delete the Node that no longer exists, or correct status.addresses; if all are right, the credentials of a node may be stolen",
				strings.Join(nodes, ", "), a)
		}
	}
}

// shared reports whether several nodes have an address. Whose packets come from it, or go there, is unknown.
func (p *planner) shared(a netip.Addr) bool { return len(p.listed[a]) > 1 }

// claimed returns which other node has the tunnel address that a node publishes, or "".
func (p *planner) claimed(peer model.Route) string {
	if slices.Contains(peer.Addresses, peer.Tunnel) {
		return ""
	}
	if owners := p.listed[peer.Tunnel]; len(owners) > 0 {
		return fmt.Sprintf("it belongs to node %s", owners[0])
	}
	for _, other := range p.published[peer.Tunnel] {
		if other != peer.Node {
			return fmt.Sprintf("node %s publishes it, too", other)
		}
	}
	return ""
}
