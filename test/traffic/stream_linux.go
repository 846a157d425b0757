// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/test/netns"
)

// Target is a destination of traffic: the namespace of the server, and the addresses of client and server.
type Target struct {
	NS   *netns.NS
	From netip.Addr
	To   netip.AddrPort
}

// batch is the number of packets per system call, messageSize their size in bytes.
const (
	batch       = 25
	messageSize = 64
)

// mmsghdr is struct mmsghdr of sendmmsg(2).
type mmsghdr struct {
	hdr    unix.Msghdr
	length uint32
	_      [4]byte
}

// packets is a batch of buffers for sendmmsg and recvmmsg.
type packets struct {
	headers [batch]mmsghdr
	vectors [batch]unix.Iovec
	buffers [batch][messageSize]byte
}

func newPackets() *packets {
	p := &packets{}
	for i := range p.headers {
		p.vectors[i] = unix.Iovec{Base: &p.buffers[i][0], Len: messageSize}
		p.headers[i].hdr.Iov = &p.vectors[i]
		p.headers[i].hdr.Iovlen = 1
	}
	return p
}

// call is sendmmsg or recvmmsg over the first n packets.
func (p *packets) call(trap uintptr, fd, n, flags int) (int, error) {
	done, _, errno := unix.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&p.headers[0])), uintptr(n), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(done), nil
}

// receiver counts the packets of one target by their numbers.
type receiver struct {
	fd    int
	count atomic.Uint64 // distinct numbers
	seen  []uint64      // one bit per number
	twice int
	err   error
	stop  atomic.Bool
	done  chan struct{}
}

func (r *receiver) run() {
	defer close(r.done)
	p := newPackets()
	for !r.stop.Load() {
		n, err := p.call(unix.SYS_RECVMMSG, r.fd, batch, unix.MSG_WAITFORONE)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			r.err = err
			return
		}
		for i := range n {
			number := binary.LittleEndian.Uint64(p.buffers[i][:])
			for uint64(len(r.seen)) <= number/64 {
				r.seen = append(r.seen, make([]uint64, 1024)...)
			}
			if bit := uint64(1) << (number % 64); r.seen[number/64]&bit == 0 {
				r.seen[number/64] |= bit
				r.count.Add(1)
			} else {
				r.twice++
			}
		}
	}
}

// overflowed returns the number of packets that did not fit into the buffer of the socket.
func (r *receiver) overflowed() (uint64, error) {
	const drops = 8 // SK_MEMINFO_DROPS
	var info [drops + 1]uint32
	length := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(r.fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return 0, errno
	}
	return uint64(info[drops]), nil
}

// Stream is a stream of datagrams to some targets in turn.
type Stream struct {
	senders   []int
	receivers []*receiver
	sent      []uint64 // by target
	stop      atomic.Bool
	done      chan error
}

// NewStream sends packets at a rate per second until Finish.
func NewStream(from *netns.NS, targets []Target, rate int) (*Stream, error) {
	s := &Stream{sent: make([]uint64, len(targets)), done: make(chan error, 1)}
	for _, to := range targets {
		if err := s.open(from, to); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	for _, r := range s.receivers {
		go r.run()
	}
	go func() { s.done <- s.send(rate) }()
	return s, nil
}

// open makes the two sockets for a target.
func (s *Stream) open(from *netns.NS, to Target) error {
	r := &receiver{fd: -1, done: make(chan struct{})}
	s.receivers = append(s.receivers, r)
	s.senders = append(s.senders, -1)
	var err error
	if err = to.NS.Do(func() error { r.fd, err = listenUDP(to.To); return err }); err != nil {
		return fmt.Errorf("listen at %s: %w", to.To, err)
	}
	fd := -1
	if err = from.Do(func() error { fd, err = dialUDP(to); return err }); err != nil {
		return fmt.Errorf("connect to %s: %w", to.To, err)
	}
	s.senders[len(s.senders)-1] = fd
	return nil
}

// close closes all sockets.
func (s *Stream) close() error {
	var errs []error
	for i, r := range s.receivers {
		for _, fd := range []int{r.fd, s.senders[i]} {
			if fd >= 0 {
				errs = append(errs, unix.Close(fd))
			}
		}
	}
	return errors.Join(errs...)
}

// onTheWay is the maximum number of packets in flight, or those of 50 ms at high rates: the kernel's queue of a
// CPU holds 1000. patience is the time without arrivals after which packets in flight count as lost.
const (
	onTheWay = 400
	patience = time.Second
)

// send keeps the rate on average: after a delay it sends faster, in batches that fit into every queue on the
// path. On a machine that is too slow for the rate it waits for the receivers, so that the stream does not fill
// the queues.
func (s *Stream) send(rate int) error {
	runtime.LockOSThread()
	// If permitted, this thread gets real-time priority, so that starting agents do not delay the stream.
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}, 0)
	p := newPackets()
	began := time.Now()
	total, window := uint64(0), max(onTheWay, uint64(rate)/20)
	arrived, moved, gone := uint64(0), began, uint64(0)
	for !s.stop.Load() {
		if n := s.Received(); n != arrived {
			arrived, moved = n, time.Now()
		}
		if total > arrived+gone+window {
			if time.Since(moved) < patience {
				time.Sleep(200 * time.Microsecond)
				continue
			}
			gone = total - arrived
		}
		due := uint64(time.Since(began).Seconds() * float64(rate))
		if total+uint64(batch*len(s.senders)) > due {
			time.Sleep(200 * time.Microsecond)
			continue
		}
		for i, fd := range s.senders {
			for k := range batch {
				binary.LittleEndian.PutUint64(p.buffers[k][:], s.sent[i]+uint64(k))
			}
			n, err := p.call(unix.SYS_SENDMMSG, fd, batch, 0)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			s.sent[i] += uint64(n)
			total += uint64(n)
		}
	}
	return nil
}

// Outcome is the result of a stream. Overflowed packets are lost packets that did not fit into the buffers of the
// receivers.
type Outcome struct {
	Sent, Received, Overflowed uint64
	Twice                      int
}

// Lost returns the number of packets that did not arrive.
func (o Outcome) Lost() uint64 { return o.Sent - o.Received }

// Finish stops sending, waits for packets in flight, and counts.
func (s *Stream) Finish() (Outcome, error) {
	s.stop.Store(true)
	errs := []error{<-s.done}
	var o Outcome
	for _, n := range s.sent {
		o.Sent += n
	}
	// On a busy machine the receivers may be far behind. They are done when nothing arrives.
	for moved := time.Now(); time.Since(moved) < 2*patience; time.Sleep(10 * time.Millisecond) {
		n := s.Received()
		if n == o.Sent {
			break
		}
		if n != o.Received {
			o.Received, moved = n, time.Now()
		}
	}
	for _, r := range s.receivers {
		r.stop.Store(true)
		<-r.done
		n, err := r.overflowed()
		errs = append(errs, r.err, err)
		o.Overflowed += n
		o.Twice += r.twice
	}
	o.Received = s.Received()
	return o, errors.Join(append(errs, s.close())...)
}

// Received returns the number of packets received so far.
func (s *Stream) Received() (n uint64) {
	for _, r := range s.receivers {
		n += r.count.Load()
	}
	return n
}

func sockaddr(a netip.AddrPort) (int, unix.Sockaddr) {
	if a.Addr().Is6() {
		return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	}
	return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}

// listenUDP makes a socket with a buffer for a second of the stream, whose reads
// return after a while.
func listenUDP(at netip.AddrPort) (int, error) {
	family, sa := sockaddr(at)
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 128<<20),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
		unix.Bind(fd, sa))
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func dialUDP(to Target) (int, error) {
	family, local := sockaddr(netip.AddrPortFrom(to.From, 0))
	_, remote := sockaddr(to.To)
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := errors.Join(unix.Bind(fd, local), unix.Connect(fd, remote)); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
