// SPDX-License-Identifier: Apache-2.0

package query

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// crowded reports where nodes may hold fewer classes than the policies distinguish. The
// answer is what the policies mean; such a node denies the flows that do not fit.
func crowded(p *reach.Partition) []string {
	all := []string{}
	limits := compile.DefaultLimits()
	ports, peers := p.Size()
	if ports > limits.PortClasses {
		all = append(all, fmt.Sprintf("ports: the policies distinguish up to %d sets of ports, and a node holds %d: a node that needs more denies "+
			"what does not fit; isthmusctl lint names the rules", ports, limits.PortClasses))
	}
	if peers > limits.PeerClasses {
		all = append(all, fmt.Sprintf("peers: the policies distinguish up to %d sets of peers, and a node holds %d: a node that needs more denies "+
			"what does not fit; isthmusctl lint names the rules", peers, limits.PeerClasses))
	}
	return all
}

func (e env) warnCrowded(p *reach.Partition) {
	for _, c := range crowded(p) {
		fmt.Fprintf(e.Stderr, "isthmusctl: %s\n", c)
	}
}
