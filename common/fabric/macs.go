// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"fmt"
	"net/netip"
	"slices"

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
	p.addresses, p.published = make(map[netip.Addr]string), make(map[netip.Addr][]string)
	for _, peer := range p.peers {
		for _, a := range peer.Addresses {
			p.addresses[a] = peer.Node
		}
		if peer.Tunnel.IsValid() {
			p.published[peer.Tunnel] = append(p.published[peer.Tunnel], peer.Node)
		}
	}
	for _, u := range p.self.Underlay {
		p.addresses[u.Addr()] = p.self.Name
	}
	for _, a := range p.self.Addresses {
		p.addresses[a] = p.self.Name
	}
}

// claimed returns which other node has the tunnel address that a node publishes, or "".
func (p *planner) claimed(peer model.Route) string {
	if slices.Contains(peer.Addresses, peer.Tunnel) {
		return ""
	}
	if owner := p.addresses[peer.Tunnel]; owner != "" {
		return fmt.Sprintf("it belongs to node %s", owner)
	}
	for _, other := range p.published[peer.Tunnel] {
		if other != peer.Node {
			return fmt.Sprintf("node %s publishes it, too", other)
		}
	}
	return ""
}
