// SPDX-License-Identifier: Apache-2.0

package vfp

import (
	"net/netip"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// flowKey names a flow as the port sees it, whichever way a packet goes.
type flowKey struct {
	local, remote         netip.Addr
	localPort, remotePort uint16
	protocol              uint8
}

// flow is one that the rules have let pass.
type flow struct {
	opened     hns.Direction // the direction of its first packet
	generation uint64        // of the rules that let it pass
	seen       time.Time
}

// idle is how long HNS keeps a flow without packets.
const idle = 240 * time.Second

// maxFlows bounds the flows of a port before idle ones are looked for.
const maxFlows = 1 << 16

// keyOf returns the name of a packet's flow.
func keyOf(d hns.Direction, p *packet) flowKey {
	if d == hns.Out {
		return flowKey{p.src, p.dst, p.srcPort, p.dstPort, p.protocol}
	}
	return flowKey{p.dst, p.src, p.dstPort, p.srcPort, p.protocol}
}

// fragmentKey names the fragments of one packet in one direction.
type fragmentKey struct {
	src, dst netip.Addr
	id       uint32
	protocol uint8
}

// state is the memory of a port.
type state struct {
	flows     map[flowKey]*flow
	fragments map[fragmentKey]time.Time // of packets that were let pass
}

func newState() state {
	return state{flows: make(map[flowKey]*flow), fragments: make(map[fragmentKey]time.Time)}
}

// find returns the flow if it is still known.
func (s *state) find(k flowKey, now time.Time) *flow {
	f := s.flows[k]
	if f == nil {
		return nil
	}
	if now.Sub(f.seen) > idle {
		delete(s.flows, k)
		return nil
	}
	return f
}

// tidy forgets what is idle once there is much of it.
func (s *state) tidy(now time.Time) {
	if len(s.flows) >= maxFlows {
		for k, f := range s.flows {
			if now.Sub(f.seen) > idle {
				delete(s.flows, k)
			}
		}
	}
	if len(s.fragments) >= maxFlows {
		for k, seen := range s.fragments {
			if now.Sub(seen) > fragmentLife {
				delete(s.fragments, k)
			}
		}
	}
}

// fragmentLife is how long the fragments of a packet may be on their way.
const fragmentLife = 30 * time.Second
