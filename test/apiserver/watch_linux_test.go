// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// watchPort is the port of the servers and of the watched packets.
const watchPort = 7000

// watchmen send from one pod to others continuously, and count the packets that arrive.
type watchmen struct {
	sent    atomic.Int64
	arrived []*atomic.Int64 // by address
	stop    chan struct{}
	once    sync.Once
	running sync.WaitGroup
}

// startWatchmen sends to all addresses of pods about every millisecond, in turn from a few dozen
// source ports. The pods answer other clients.
func startWatchmen(t *testing.T, from *cluster.Pod, to ...*cluster.Pod) *watchmen {
	t.Helper()
	w := &watchmen{stop: make(chan struct{})}
	t.Cleanup(func() { w.finish() })
	for _, p := range to {
		for _, a := range p.IPs {
			n := &atomic.Int64{}
			w.arrived = append(w.arrived, n)
			listenAt(t, p, a, familyOf(from.IPs, a.Is6()), n)
		}
	}
	for _, v6 := range []bool{false, true} {
		var sockets []*net.UDPConn
		must(t, from.NS.Do(func() error {
			for range 32 {
				c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(familyOf(from.IPs, v6), 0)))
				if err != nil {
					return err
				}
				sockets = append(sockets, c)
			}
			return nil
		}))
		w.running.Go(func() { w.send(sockets, to, v6) })
	}
	return w
}

// listenAt answers requests at an address, and counts packets from the watched address.
func listenAt(t *testing.T, p *cluster.Pod, at, watched netip.Addr, n *atomic.Int64) {
	t.Helper()
	must(t, traffic.ServersFor(t).UDP(p.NS, netip.AddrPortFrom(at, watchPort), func(client netip.AddrPort, question []byte) []byte {
		if client.Addr() == watched {
			n.Add(1)
		}
		return reply(p.Name, client.Addr(), string(question))
	}))
}

// serveAt makes a pod answer requests without counting.
func serveAt(t *testing.T, p *cluster.Pod) {
	t.Helper()
	for _, a := range p.IPs {
		listenAt(t, p, a, netip.Addr{}, &atomic.Int64{})
	}
}

func (w *watchmen) send(sockets []*net.UDPConn, to []*cluster.Pod, v6 bool) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	defer func() {
		for _, c := range sockets {
			c.Close()
		}
	}()
	for i := 0; ; i++ {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		for _, p := range to {
			at := netip.AddrPortFrom(familyOf(p.IPs, v6), watchPort)
			if _, err := sockets[i%len(sockets)].WriteToUDPAddrPort([]byte("open?\n"), at); err == nil {
				w.sent.Add(1)
			}
		}
	}
}

// count returns the numbers of packets sent and received so far.
func (w *watchmen) count() (sent, arrived int64) {
	for _, n := range w.arrived {
		arrived += n.Load()
	}
	return w.sent.Load(), arrived
}

// finish stops sending and returns the number of addresses that a packet reached.
func (w *watchmen) finish() (reached int) {
	w.once.Do(func() { close(w.stop) })
	w.running.Wait()
	for _, n := range w.arrived {
		if n.Load() > 0 {
			reached++
		}
	}
	return reached
}

// steady is a sequence of exchanges that policy allows at all times.
type steady struct {
	stop            chan struct{}
	once            sync.Once
	running         sync.WaitGroup
	exchanges, lost atomic.Int64
}

// beSteady exchanges datagrams in both IP versions, alternating between one open flow and new
// flows.
func beSteady(t *testing.T, from, to *cluster.Pod) *steady {
	t.Helper()
	s := &steady{stop: make(chan struct{})}
	t.Cleanup(func() { s.finish() })
	for _, v6 := range []bool{false, true} {
		a := asker{from.NS, familyOf(from.IPs, v6)}
		at := netip.AddrPortFrom(familyOf(to.IPs, v6), watchPort)
		var c net.Conn
		var err error
		c, err = a.open(model.UDP, at, time.Second)
		must(t, err)
		s.running.Go(func() {
			defer c.Close()
			s.run(c, a, at)
		})
	}
	return s
}

func (s *steady) run(c net.Conn, a asker, at netip.AddrPort) {
	for {
		select {
		case <-s.stop:
			return
		case <-time.After(5 * time.Millisecond):
		}
		_, err := exchange(c, 3*time.Second)
		if err == nil {
			_, err = a.ask(model.UDP, at, 3*time.Second)
		}
		s.exchanges.Add(1)
		if err != nil {
			s.lost.Add(1)
		}
	}
}

// finish stops, and returns the number of exchanges and the number without an answer.
func (s *steady) finish() (exchanges, lost int64) {
	s.once.Do(func() { close(s.stop) })
	s.running.Wait()
	return s.exchanges.Load(), s.lost.Load()
}
