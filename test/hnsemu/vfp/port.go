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

// Spec describes a port.
type Spec struct {
	// ID is the endpoint's GUID, Name its name.
	ID, Name  string
	MAC       net.HardwareAddr
	Addresses []netip.Prefix
	Gateways  []netip.Addr
	// Host is the port of the node itself, which receives packets for unknown
	// destinations. It has no ACLs.
	Host bool
	// NetNS is the file of the namespace behind the port.
	NetNS string
	MTU   int
	// NAT and Mappings translate its packets.
	NAT      []NAT
	Mappings []Mapping
	// Rules are in force; equal rules have equal Revisions. If Broken is set, nothing passes, and it describes
	// the reason.
	Rules    *hns.Rules
	Revision string
	// ACLs is the list of the Rules; nil if no program reads the counters of rules.
	ACLs   []hns.ACL
	Broken error
}

// Device is the device behind a port. Write passes it a frame, which it must not keep.
type Device interface {
	Write(frame []byte) (int, error)
	Close() error
}

// port is a port of the switch.
type port struct {
	id, name string
	guid     string // VFP has GUIDs of its own
	host     bool
	mac      net.HardwareAddr
	device   Device

	mu         sync.Mutex // guards the fields below
	spec       Spec
	generation uint64
	state      state
	counters   map[string]uint64 // packets, by the rule or state that decided
	matched    matched
}

// Verdict is the decision of a port about one packet.
type Verdict struct {
	Pass bool
	// By is the rule's Id, or "flow", "default", "fragment", "icmp error", or the defect of the packet.
	By string
	// Rule is set if a rule decided: then By is its Id.
	Rule bool
}

// program replaces the rules in force.
func (p *port) program(s Spec, change ChangeReading) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.Revision != p.spec.Revision {
		p.generation++
		clear(p.matched) // HNS removes the rules of VFP and writes new ones
		if change == FlowsForgotten {
			p.state = newState()
		}
	}
	p.spec = s
}

// decide decides a packet at the port in one direction.
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
		return Verdict{Pass: true, By: "host"}
	}
	if p.spec.Broken != nil {
		return Verdict{Pass: false, By: p.spec.Broken.Error()}
	}
	now := o.Now()
	p.state.tidy(now)
	fragment := fragmentKey{in.src, in.dst, in.fragment, in.protocol}
	if in.later {
		seen, ok := p.state.fragments[fragment]
		return Verdict{Pass: ok && now.Sub(seen) <= fragmentLife, By: "fragment"}
	}
	v := p.flowVerdict(d, in, o, now)
	if v.Pass && in.first {
		p.state.fragments[fragment] = now
	}
	return v
}

// flowVerdict decides by the flow if it is known, otherwise by the rules.
func (p *port) flowVerdict(d hns.Direction, in *packet, o *Options, now time.Time) Verdict {
	key := keyOf(d, in)
	if f := p.state.find(key, now); f != nil {
		if p.keeps(f, d, key, o) {
			f.seen, f.generation = now, p.generation
			return Verdict{Pass: true, By: "flow"}
		}
		delete(p.state.flows, key)
	}
	if q := in.quoted; q != nil && !o.DropICMPErrors {
		// The quoted packet had the opposite direction.
		if f := p.state.find(keyOf(opposite(d), q), now); f != nil {
			return Verdict{Pass: true, By: "icmp error"}
		}
	}
	out := p.ask(d, key, o)
	rule := ruleOf(out, key)
	p.matched.add(rule)
	if out.Allow {
		p.state.flows[key] = &flow{opened: d, generation: p.generation, rule: rule, seen: now}
	}
	if out.Index < 0 {
		return Verdict{Pass: out.Allow, By: "default"}
	}
	return Verdict{Pass: out.Allow, By: out.ID, Rule: true}
}

// ask evaluates the rules for the first packet of a flow.
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
