// SPDX-License-Identifier: Apache-2.0

package vfp

import (
	"hash/fnv"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// NAT replaces the source of TCP and UDP packets of a port by the address of the node, in one family. It applies
// to destinations outside of Exceptions; with Destinations to these only.
type NAT struct {
	V6                       bool
	Exceptions, Destinations []netip.Prefix
}

// Mapping redirects a port of VIP, or of the node without a VIP, to a port of an endpoint.
type Mapping struct {
	Protocol           uint8
	VIP                netip.Addr
	V6                 bool
	External, Internal uint16
}

// Balancer redirects a port of VIP, or of the node without a VIP, to one of several pods. With DSR the port of
// the sender translates, and the pod sees the sender. Without DSR, and for senders that are not pods of this
// node, the pod sees the node.
type Balancer struct {
	VIP                netip.Addr
	Protocol           uint8
	External, Internal uint16
	Backends           []netip.Addr
	DSR                bool
}

// The ports of the node for translated flows.
const (
	FirstNATPort = 40000
	LastNATPort  = 44095
)

// tuple names the packets of one direction of a flow.
type tuple struct {
	protocol uint8
	src, dst netip.AddrPort
}

func (t tuple) back() tuple { return tuple{t.protocol, t.dst, t.src} }

// tupleOf returns the tuple of a packet. ok is false for packets that are not translated: other protocols,
// fragments, and truncated headers.
func tupleOf(in *packet) (t tuple, ok bool) {
	if in.protocol != protoTCP && in.protocol != protoUDP || in.first || in.later || in.cut {
		return t, false
	}
	return tuple{in.protocol, netip.AddrPortFrom(in.src, in.srcPort), netip.AddrPortFrom(in.dst, in.dstPort)}, true
}

// session is one direction of a translated flow; both expire together.
type session struct {
	to   tuple
	life *life
}

type life struct{ seen time.Time }

// place is the point of translation: a port, or the switch itself.
type place struct {
	port string
	tuple
}

// nodePort is a port of the node that a flow uses.
type nodePort struct {
	protocol uint8
	at       netip.AddrPort
}

// translator holds the translated flows.
type translator struct {
	mu       sync.Mutex
	sessions map[place]session
	taken    map[nodePort]*life
	next     uint16
}

func newTranslator() translator {
	return translator{sessions: make(map[place]session), taken: make(map[nodePort]*life)}
}

// find returns the translation of a packet if its flow is known.
func (x *translator) find(port string, t tuple, now time.Time) (tuple, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, ok := x.sessions[place{port, t}]
	if !ok || now.Sub(s.life.seen) > idle {
		return tuple{}, false
	}
	s.life.seen = now
	return s.to, true
}

// add stores a flow, so that its answers are translated back.
func (x *translator) add(port string, from, to tuple, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := &life{now}
	x.sessions[place{port, from}] = session{to, l}
	x.sessions[place{port, to.back()}] = session{from.back(), l}
	if at := (nodePort{to.protocol, to.src}); x.taken[at] != nil {
		x.taken[at] = l
	}
	if len(x.sessions) < maxFlows {
		return
	}
	for k, s := range x.sessions {
		if now.Sub(s.life.seen) > idle {
			delete(x.sessions, k)
		}
	}
}

// source allocates a free port of an address of the node; ok is false if there is none.
func (x *translator) source(protocol uint8, a netip.Addr, now time.Time) (_ netip.AddrPort, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for range LastNATPort - FirstNATPort + 1 {
		at := netip.AddrPortFrom(a, FirstNATPort+x.next)
		x.next = (x.next + 1) % (LastNATPort - FirstNATPort + 1)
		if k := (nodePort{protocol, at}); x.taken[k] == nil || now.Sub(x.taken[k].seen) > idle {
			x.taken[k] = &life{now}
			return at, true
		}
	}
	return netip.AddrPort{}, false
}

// address returns the address of the node in a family.
func (s *Switch) address(v6 bool) (netip.Addr, bool) {
	for _, a := range s.config.Node {
		if a.Is6() == v6 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// isFor reports whether an address is the VIP, or an address of the node if there is no VIP.
func (s *Switch) isFor(a, vip netip.Addr) bool {
	return a == vip || !vip.IsValid() && slices.Contains(s.config.Node, a)
}

// balance translates a packet of a pod to a DSR service to one of the service's pods.
func (s *Switch) balance(from *port, in *packet, frame []byte) {
	t, ok := tupleOf(in)
	if !ok || from.host {
		return
	}
	now := s.config.Now()
	to, known := s.translator.find(from.id, t, now)
	if !known {
		b := s.balancer(t)
		if b == nil || !b.DSR {
			return
		}
		to = tuple{t.protocol, t.src, b.choose(t)}
		s.translator.add(from.id, t, to, now)
	}
	rewrite(frame, in, to)
}

// balancer returns the load balancer of a packet's destination, if it has pods of that family.
func (s *Switch) balancer(t tuple) *Balancer {
	for i := range s.balancers {
		b := &s.balancers[i]
		if b.Protocol == t.protocol && b.External == t.dst.Port() && s.isFor(t.dst.Addr(), b.VIP) && len(b.of(t)) > 0 {
			return b
		}
	}
	return nil
}

// of returns the backends in the family of a packet: pods have addresses of both.
func (b *Balancer) of(t tuple) (all []netip.Addr) {
	for _, a := range b.Backends {
		if a.Is6() == t.dst.Addr().Is6() {
			all = append(all, a)
		}
	}
	return all
}

// choose picks a pod by the flow, so that every packet would get the same.
func (b *Balancer) choose(t tuple) netip.AddrPort {
	backends := b.of(t)
	h := fnv.New32a()
	text, _ := t.src.MarshalBinary()
	h.Write(text)
	return netip.AddrPortFrom(backends[h.Sum32()%uint32(len(backends))], b.Internal)
}

// answer replaces the source of an answer by the address of the service.
func (s *Switch) answer(to *port, in *packet, frame []byte) {
	t, ok := tupleOf(in)
	if !ok || to.host {
		return
	}
	if was, ok := s.translator.find(to.id, t, s.config.Now()); ok {
		rewrite(frame, in, was)
	}
}

// translate is the translation between ports: port mappings, services without DSR or for senders that are not
// pods, and the address of the node for packets that leave.
func (s *Switch) translate(from *port, in *packet, frame []byte) Verdict {
	t, ok := tupleOf(in)
	if !ok {
		return Verdict{Pass: true, By: ""}
	}
	now := s.config.Now()
	if to, ok := s.translator.find("", t, now); ok {
		rewrite(frame, in, to)
		return Verdict{Pass: true, By: ""}
	}
	dst, source := s.mapped(t), false
	if b := s.balancer(t); !dst.IsValid() && b != nil {
		dst, source = b.choose(t), true
	}
	if !dst.IsValid() {
		if !s.hides(from, in) {
			return Verdict{Pass: true, By: ""}
		}
		dst, source = t.dst, true
	}
	to := tuple{t.protocol, t.src, dst}
	if source {
		a, ok := s.address(in.src.Is6())
		if !ok {
			return Verdict{Pass: false, By: "the node has no address to translate to"}
		}
		if to.src, ok = s.translator.source(t.protocol, a, now); !ok {
			return Verdict{Pass: false, By: "no port of the node is free"}
		}
	}
	s.translator.add("", t, to, now)
	rewrite(frame, in, to)
	return Verdict{Pass: true, By: ""}
}

// mapped returns the target of a port mapping; invalid if there is none.
func (s *Switch) mapped(t tuple) netip.AddrPort {
	for _, p := range s.ports {
		for _, m := range p.spec.Mappings {
			if m.Protocol != t.protocol || m.External != t.dst.Port() || m.V6 != t.dst.Addr().Is6() || !s.isFor(t.dst.Addr(), m.VIP) {
				continue
			}
			for _, a := range p.spec.Addresses {
				if a.Addr().Is6() == m.V6 {
					return netip.AddrPortFrom(a.Addr(), m.Internal)
				}
			}
		}
	}
	return netip.AddrPort{}
}

// hides reports whether the source of a packet becomes the address of the node.
func (s *Switch) hides(from *port, in *packet) bool {
	holds := func(all []netip.Prefix) bool {
		return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(in.dst) })
	}
	for _, n := range from.spec.NAT {
		if n.V6 != in.dst.Is6() || holds(n.Exceptions) || len(n.Destinations) > 0 && !holds(n.Destinations) || in.dst == in.src {
			continue
		}
		return s.config.NATAnswers || !from.answers(in, s.config.Now())
	}
	return false
}

// answers reports whether a packet belongs to an inbound flow.
func (p *port) answers(in *packet, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.state.find(keyOf(hns.Out, in), now)
	return f != nil && f.opened == hns.In
}
