// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// probes send datagrams continuously, of allowed and of denied flows. Each contains the phase
// in which it was sent. Odd phases last from a damage to the end of its repair.
type probes struct {
	lab     *auditLab
	allowed []*stream
	denied  []*stream
	held    net.Conn // TCP, from a to b

	sending sync.RWMutex // held for writing while the phase changes
	phase   uint64
	kind    kind
	stop    atomic.Bool
	running sync.WaitGroup
}

// stream is one flow of datagrams.
type stream struct {
	name     string
	conn     net.Conn
	sink     net.PacketConn
	mu       sync.Mutex
	sent     map[uint64]int // by phase
	received map[uint64]int
}

func (a *auditLab) startTraffic() *probes {
	a.t.Helper()
	p := &probes{lab: a}
	b, c := a.pods["b"], a.pods["c"]
	p.allowed = []*stream{a.stream("a to b port 80", a.pods["a"], "", b, "10.1.0.12", 80), a.stream("outside to b port 8080", a.outside, friend4, b, "10.1.0.12", 8080),
		a.stream("a to b port 80, IPv6", a.pods["a"], "", b, "fd01::c", 80)}
	p.denied = []*stream{a.stream("outside to b port 9000", a.outside, friend4, b, "10.1.0.12", 9000), a.stream("a to c port 81", a.pods["a"], "", c, "10.1.0.13", 81),
		a.stream("outside to d port 53", a.outside, friend4, a.pods["d"], "10.1.0.14", 53)}
	a.must(traffic.ServersFor(a.t).Echo(b, netip.MustParseAddrPort("10.1.0.12:80"), model.TCP))
	a.must(a.pods["a"].Do(func() (err error) { p.held, err = net.Dial("tcp", "10.1.0.12:80"); return err }))
	a.t.Cleanup(func() { p.held.Close() })
	for _, s := range append(p.allowed, p.denied...) {
		p.running.Go(s.receive)
	}
	p.running.Go(p.send)
	return p
}

func (a *auditLab) stream(name string, from *netns.NS, source string, to *netns.NS, address string, port int) *stream {
	a.t.Helper()
	s := &stream{name: name, sent: make(map[uint64]int), received: make(map[uint64]int)}
	at := net.JoinHostPort(address, fmt.Sprint(port))
	a.must(to.Do(func() (err error) { s.sink, err = net.ListenPacket("udp", at); return err }))
	a.must(from.Do(func() (err error) {
		d := net.Dialer{}
		if source != "" {
			d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(source)}
		}
		s.conn, err = d.Dial("udp", at)
		return err
	}))
	return s
}

func (s *stream) receive() {
	for buf := make([]byte, 64); ; {
		n, _, err := s.sink.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && n == 8 {
			s.mu.Lock()
			s.received[binary.LittleEndian.Uint64(buf)]++
			s.mu.Unlock()
		}
	}
}

func (p *probes) send() {
	var message [8]byte
	for !p.stop.Load() {
		for _, s := range append(p.allowed[:len(p.allowed):len(p.allowed)], p.denied...) {
			p.sending.RLock()
			binary.LittleEndian.PutUint64(message[:], p.phase)
			_, err := s.conn.Write(message[:])
			if err == nil { // while an interface is missing there may be no route
				s.mu.Lock()
				s.sent[p.phase]++
				s.mu.Unlock()
			}
			p.sending.RUnlock()
		}
		time.Sleep(time.Millisecond)
	}
}

// enter begins the phase of a damage, leave ends it.
func (p *probes) enter(k kind) {
	p.sending.Lock()
	p.arrive(p.phase) // the damage must not meet datagrams of the phase before
	p.phase, p.kind = p.phase+1, k
	p.sending.Unlock()
}

func (p *probes) leave() {
	p.sending.Lock()
	p.phase++
	p.sending.Unlock()
}

// arrive waits until all allowed datagrams of a phase have been received. If they never are,
// check reports it.
func (p *probes) arrive(phase uint64) {
	for began := time.Now(); time.Since(began) < patience; time.Sleep(100 * time.Microsecond) {
		complete := true
		for _, s := range p.allowed {
			sent, n := s.count(phase)
			complete = complete && n >= sent
		}
		if complete {
			return
		}
	}
}

// check requires that the connection continues. In the phase of the repaired damage and the one
// before, allowed datagrams must arrive and denied ones must not, except for direct effects of
// the damage.
func (p *probes) check() error {
	if err := traffic.Exchange(p.held, patience); err != nil {
		return fmt.Errorf("the connection does not go on: %w", err)
	}
	p.sending.RLock()
	now, k := p.phase, p.kind
	p.sending.RUnlock()
	var errs []error
	for _, phase := range []uint64{now - 2, now - 1} {
		damaged := phase%2 == 1
		if !(damaged && k.cuts) {
			p.arrive(phase)
		}
		for _, s := range p.denied {
			if _, n := s.count(phase); n > 0 && !(damaged && k.opens) {
				errs = append(errs, fmt.Errorf("%s: %d denied datagrams of phase %d arrived", s.name, n, phase%2))
			}
		}
		for _, s := range p.allowed {
			if sent, n := s.count(phase); n < sent && !(damaged && k.cuts) {
				errs = append(errs, fmt.Errorf("%s: %d of %d allowed datagrams of phase %d arrived", s.name, n, sent, phase%2))
			}
		}
	}
	// After the repair both must work again, which the next datagram shows.
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		flow := true
		for _, s := range p.allowed {
			_, n := s.count(now)
			flow = flow && n > 0
		}
		if flow {
			break
		}
		if time.Since(began) > patience {
			return errors.Join(append(errs, errors.New("an allowed flow does not go on"))...)
		}
	}
	for _, s := range p.denied {
		if _, n := s.count(now); n > 0 {
			errs = append(errs, fmt.Errorf("%s: %d denied datagrams arrived after the repair", s.name, n))
		}
	}
	return errors.Join(errs...)
}

func (s *stream) count(phase uint64) (sent, received int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent[phase], s.received[phase]
}

// finish ends all flows.
func (p *probes) finish() {
	p.stop.Store(true)
	for _, s := range append(p.allowed, p.denied...) {
		s.sink.Close()
	}
	p.running.Wait()
	for _, s := range append(p.allowed, p.denied...) {
		s.conn.Close()
	}
}
