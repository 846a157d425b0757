// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// progressEvery is the interval between two progress lines of a long run.
const progressEvery = 5 * time.Second

// progress returns a function that reports the progress of a long run on stderr, at most
// every progressEvery. It belongs to one goroutine.
func (e env) progress(command, what string) func(done, total int) {
	started := time.Now()
	said := started
	return func(done, total int) {
		now := time.Now()
		if now.Sub(said) < progressEvery {
			return
		}
		said = now
		fmt.Fprintf(e.stderr, "%s: %d of %d %s after %s\n", command, done, total, what, now.Sub(started).Round(time.Second))
	}
}

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
		fmt.Fprintf(e.stderr, "isthmusctl: %s\n", c)
	}
}
