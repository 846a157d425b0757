// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/model"
)

// macs finds out whose the MACs of tunnels are. A node writes its own annotation,
// and must not draw the traffic of another by naming the other's MAC. What
// follows from the name of a Linux node is that node's; what two nodes announce
// is nobody's.
func (p *planner) macs() {
	p.owners = map[model.MAC]string{VTEP(p.self.Name): p.self.Name}
	for _, peer := range p.peers {
		if peer.OS != model.Windows { // HNS chooses that of a Windows node
			p.owners[VTEP(peer.Node)] = peer.Node
		}
	}
	p.announced = make(map[model.MAC][]string)
	for _, peer := range p.peers {
		if peer.VTEP != (model.MAC{}) {
			p.announced[peer.VTEP] = append(p.announced[peer.VTEP], peer.Node)
		}
	}
}

// disputed says who else has the MAC that a node announces; empty if nobody has.
func (p *planner) disputed(peer model.Route) string {
	if owner := p.owners[peer.VTEP]; owner == peer.Node {
		return ""
	} else if owner != "" {
		return fmt.Sprintf("it is that of node %s", owner)
	}
	for _, other := range p.announced[peer.VTEP] {
		if other != peer.Node {
			return fmt.Sprintf("node %s announces it, too", other)
		}
	}
	return ""
}
