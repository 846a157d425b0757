// SPDX-License-Identifier: Apache-2.0

package vfp

import (
	"net/netip"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// flowKey names a flow from the perspective of the port. It is the same for both directions.
type flowKey struct {
	local, remote         netip.Addr
	localPort, remotePort uint16
	protocol              uint8
}

// flow is a flow that the rules allowed.
type flow struct {
	opened     hns.Direction // the direction of its first packet
	generation uint64        // of the rules that allowed it
	rule       ruleKey       // of these rules
	seen       time.Time
}

// idle is the time after which HNS removes a flow without packets.
const idle = 240 * time.Second

// maxFlows is the number of flows of a port at which the switch starts to remove idle ones.
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

// state holds the flows and fragments of a port.
type state struct {
	flows     map[flowKey]*flow
	fragments map[fragmentKey]time.Time // of allowed packets
}

func newState() state {
	return state{flows: make(map[flowKey]*flow), fragments: make(map[fragmentKey]time.Time)}
}

// find returns the flow if it has not expired.
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

// tidy removes idle entries once there are many.
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

// fragmentLife bounds the time between the fragments of a packet.
const fragmentLife = 30 * time.Second
