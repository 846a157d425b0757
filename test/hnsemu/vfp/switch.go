// SPDX-License-Identifier: Apache-2.0

package vfp

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// Trace records the decision of one port about one packet.
type Trace struct {
	Time             time.Time
	Port             string // name of the endpoint
	Direction        hns.Direction
	Src, Dst         netip.Addr
	Protocol         uint8
	SrcPort, DstPort uint16
	Verdict
}

// String is one line.
func (t Trace) String() string {
	action := hns.Block
	if t.Pass {
		action = hns.Allow
	}
	return fmt.Sprintf("%s %s %s proto=%d %s -> %s %s by %q", t.Port, t.Direction, action, t.Protocol,
		netip.AddrPortFrom(t.Src, t.SrcPort), netip.AddrPortFrom(t.Dst, t.DstPort), t.Time.Format("15:04:05.000"), t.By)
}

// Config configures a Switch.
type Config struct {
	Options
	// Node are the node's addresses, at most one per family, that translated
	// packets get.
	Node []netip.Addr
	// Open makes the device of a new port. Frames from it go to Switch.Frame.
	Open func(Spec) (Device, error)
	// Underlay opens the connection to other nodes if there is a Tunnel.
	Underlay func() (Underlay, error)
	// Trace, if set, is called for every packet, from any goroutine.
	Trace func(Trace)
	// Count, if set, is called for every packet of an endpoint, like Trace.
	Count func(id string, d hns.Direction, passed bool)
}

// Switch forwards between ports. Its methods may be called from several goroutines. It learns nothing from
// packets: the Specs define the addresses of ports.
type Switch struct {
	config Config
	set    sync.Mutex // one Set at a time

	mu       sync.RWMutex // guards the fields below
	ports    map[string]*port
	owners   map[netip.Addr]*port
	host     *port
	tunnel   *Tunnel  // nil if there is none
	underlay Underlay // while there is a tunnel
	// balancers are in order; the first that matches applies.
	balancers  []Balancer
	translator translator
	packets    atomic.Uint64
	opened     atomic.Uint32 // number of ports that were opened
}

// New returns a switch without ports.
func New(c Config) *Switch {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Switch{config: c, ports: make(map[string]*port), owners: make(map[netip.Addr]*port), translator: newTranslator()}
}

// Set replaces the ports. It makes all changes that are possible, joins the errors of the others, and may be
// called again.
func (s *Switch) Set(specs []Spec) error {
	s.set.Lock()
	defer s.set.Unlock()
	var errs []error
	wanted := make(map[string]bool)
	ports := make(map[string]*port)
	for _, spec := range specs {
		wanted[spec.ID] = true
		p := s.port(spec.ID)
		if p == nil {
			device, err := s.config.Open(spec)
			if err != nil {
				errs = append(errs, fmt.Errorf("open port %s: %w", spec.Name, err))
				continue
			}
			p = &port{id: spec.ID, name: spec.Name, host: spec.Host, mac: spec.MAC, device: device, spec: spec, state: newState(),
				guid: portGUID(s.opened.Add(1)), counters: make(map[string]uint64), matched: make(matched)}
		}
		p.program(spec, s.config.Change)
		ports[spec.ID] = p
	}
	s.mu.Lock()
	before := s.ports
	s.ports, s.owners, s.host = ports, make(map[netip.Addr]*port), nil
	for id, p := range ports {
		for _, a := range p.spec.Addresses {
			s.owners[a.Addr()] = p
		}
		if p.host {
			s.host = ports[id]
		}
	}
	s.mu.Unlock()
	for id, p := range before {
		if !wanted[id] {
			errs = append(errs, p.device.Close())
		}
	}
	return errors.Join(errs...)
}

func (s *Switch) port(id string) *port {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.ports[id]
}

// Close removes all ports, and the tunnel.
func (s *Switch) Close() error { return errors.Join(s.SetTunnel(nil), s.Set(nil)) }

// Packets returns the number of received IP packets.
func (s *Switch) Packets() uint64 { return s.packets.Load() }

// Counters returns the packets of an endpoint by the rule or state that decided, as lines of text.
func (s *Switch) Counters(id string) []string {
	p := s.port(id)
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(p.counters)) {
		lines = append(lines, fmt.Sprintf("%8d %s", p.counters[name], name))
	}
	return lines
}

// Frame receives a frame from the device of a port. It may change the addresses of the frame, and does not keep
// it.
func (s *Switch) Frame(id string, frame []byte) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	from := s.ports[id]
	if from == nil {
		return // the port was removed in the meantime
	}
	if answer := s.neighbour(from, frame); answer != nil {
		s.write(from, answer)
		return
	}
	in, err := parseFrame(frame)
	if errors.Is(err, errNotIP) || err == nil && in.dst.IsMulticast() {
		return // neither forwarded nor policed: no test needs it
	}
	s.packets.Add(1)
	if err != nil {
		s.note(from, hns.Out, &in, Verdict{Pass: false, By: err.Error()})
		return
	}
	in.cut = (in.protocol == protoTCP || in.protocol == protoUDP) && !in.later && !whole(frame, &in)
	if !s.outward(from, &in, frame) {
		return
	}
	to := s.owners[in.dst]
	if to == nil && s.leave(frame, &in) {
		return
	}
	if to == nil {
		to = s.host
	}
	if to == nil || to == from {
		s.note(from, hns.Out, &in, Verdict{Pass: false, By: "no port has the destination"})
		return
	}
	s.deliver(to, &in, frame)
}

// outward passes a packet through the layers of the sender's port.
func (s *Switch) outward(from *port, in *packet, frame []byte) bool {
	if !s.config.ACLSeesVIP {
		s.balance(from, in, frame)
	}
	v := from.decide(hns.Out, in, &s.config.Options)
	s.note(from, hns.Out, in, v)
	if !v.Pass {
		return false
	}
	if s.config.ACLSeesVIP {
		s.balance(from, in, frame)
	}
	if v = s.translate(from, in, frame); !v.Pass {
		s.note(from, hns.Out, in, v)
	}
	return v.Pass
}

// SetBalancers replaces the load balancers. Existing flows continue.
func (s *Switch) SetBalancers(all []Balancer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.balancers = slices.Clone(all)
}

// deliver sends a frame to a port if its rules allow it.
func (s *Switch) deliver(to *port, in *packet, frame []byte) {
	if s.config.ACLSeesVIP {
		s.answer(to, in, frame)
	}
	v := to.decide(hns.In, in, &s.config.Options)
	s.note(to, hns.In, in, v)
	if !v.Pass {
		return
	}
	if !s.config.ACLSeesVIP {
		s.answer(to, in, frame)
	}
	copy(frame, to.mac)
	s.write(to, frame)
}

func (s *Switch) write(to *port, frame []byte) {
	// A device that does not accept a packet loses it, as a wire does.
	_, _ = to.device.Write(frame)
}

func (s *Switch) note(at *port, d hns.Direction, in *packet, v Verdict) {
	if at.host {
		return
	}
	if s.config.Count != nil {
		s.config.Count(at.id, d, v.Pass)
	}
	if s.config.Trace != nil {
		s.config.Trace(Trace{Time: s.config.Now(), Port: at.name, Direction: d, Src: in.src, Dst: in.dst,
			Protocol: in.protocol, SrcPort: in.srcPort, DstPort: in.dstPort, Verdict: v})
	}
}
