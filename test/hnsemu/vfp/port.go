// SPDX-License-Identifier: Apache-2.0

package vfp

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// Spec says what a port should be.
type Spec struct {
	// ID is the endpoint's GUID, Name its name.
	ID, Name  string
	MAC       net.HardwareAddr
	Addresses []netip.Prefix
	Gateways  []netip.Addr
	// Host is the port of the node itself, which receives packets for unknown
	// destinations. It has no ACLs.
	Host bool
	// NetNS is the file of the namespace that the port leads to.
	NetNS string
	MTU   int
	// NAT and Mappings are what of its packets is translated.
	NAT      []NAT
	Mappings []Mapping
	// Rules are in force; Revision is equal for equal rules. With Broken nothing
	// passes, and it says why.
	Rules    *hns.Rules
	Revision string
	Broken   error
}

// Device is what is behind a port. Write gives it a frame, which it must not
// keep.
type Device interface {
	Write(frame []byte) (int, error)
	Close() error
}

// port is a port of the switch.
type port struct {
	id, name string
	host     bool
	mac      net.HardwareAddr
	device   Device

	mu         sync.Mutex // guards what follows
	spec       Spec
	generation uint64
	state      state
	counters   map[string]uint64 // packets, by what decided
}

// Verdict is what a port does with one packet.
type Verdict struct {
	Pass bool
	// By is the rule's Id, or "flow", "default", "fragment", "icmp error", or
	// what is wrong with the packet.
	By string
}

// program puts rules in force.
func (p *port) program(s Spec, change ChangeReading) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.Revision != p.spec.Revision {
		p.generation++
		if change == FlowsForgotten {
			p.state = newState()
		}
	}
	p.spec = s
}

// decide decides a packet that passes the port in a direction.
func (p *port) decide(d hns.Direction, in *packet, o *Options) Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.verdict(d, in, o)
	p.counters[counterName(d, v)]++
	return v
}

func counterName(d hns.Direction, v Verdict) string {
	action := hns.Block
	if v.Pass {
		action = hns.Allow
	}
	return fmt.Sprintf("%s %s: %s", d, action, v.By)
}

func (p *port) verdict(d hns.Direction, in *packet, o *Options) Verdict {
	if p.host {
		return Verdict{true, "host"}
	}
	if p.spec.Broken != nil {
		return Verdict{false, p.spec.Broken.Error()}
	}
	now := o.Now()
	p.state.tidy(now)
	fragment := fragmentKey{in.src, in.dst, in.fragment, in.protocol}
	if in.later {
		seen, ok := p.state.fragments[fragment]
		return Verdict{ok && now.Sub(seen) <= fragmentLife, "fragment"}
	}
	v := p.flowVerdict(d, in, o, now)
	if v.Pass && in.first {
		p.state.fragments[fragment] = now
	}
	return v
}

// flowVerdict goes by the flow if it is known, and by the rules if not.
func (p *port) flowVerdict(d hns.Direction, in *packet, o *Options, now time.Time) Verdict {
	key := keyOf(d, in)
	if f := p.state.find(key, now); f != nil {
		if f.generation == p.generation || o.Change != FlowsDecidedAgain || p.ask(f.opened, key, o).Allow {
			f.seen, f.generation = now, p.generation
			return Verdict{true, "flow"}
		}
		delete(p.state.flows, key)
	}
	if q := in.quoted; q != nil && !o.DropICMPErrors {
		// The quoted packet went the other way.
		if f := p.state.find(keyOf(opposite(d), q), now); f != nil {
			return Verdict{true, "icmp error"}
		}
	}
	out := p.ask(d, key, o)
	if out.Allow {
		p.state.flows[key] = &flow{opened: d, generation: p.generation, seen: now}
	}
	if out.Index < 0 {
		return Verdict{out.Allow, "default"}
	}
	return Verdict{out.Allow, out.ID}
}

// ask decides the first packet of a flow.
func (p *port) ask(d hns.Direction, k flowKey, o *Options) hns.Outcome {
	in := hns.Packet{Direction: d, Local: k.local, Remote: k.remote, Protocol: k.protocol, Port: k.localPort, SourcePort: k.remotePort}
	if d == hns.Out {
		in.Port, in.SourcePort = k.remotePort, k.localPort
	}
	if k.protocol == protoICMP || k.protocol == protoICMPv6 {
		in.Port, in.SourcePort = 0, 0
	}
	return p.spec.Rules.Decide(in, o.Rules)
}

func opposite(d hns.Direction) hns.Direction {
	if d == hns.In {
		return hns.Out
	}
	return hns.In
}
