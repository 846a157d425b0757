// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/test/netns"
)

// onNewPair runs a function in the namespace of a node that has one pair, not configured yet.
func onNewPair(t *testing.T, f func(PairSpec, Pair) error) {
	t.Helper()
	err := inNamespace(t, func() error {
		pod, err := netns.New(filepath.Join(t.TempDir(), "pod"))
		if err != nil {
			return err
		}
		defer pod.Close()
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		s := PairSpec{ID: "first/eth0", NetNS: pod.Path(), IfName: "eth0", MTU: 1500}
		for _, a := range []struct{ node, pod string }{{"192.0.2.1/32", "10.1.0.11"}, {"2001:db8::1/128", "fd01::b"}} {
			node := netip.MustParsePrefix(a.node)
			if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: netipx.PrefixIPNet(node), Flags: unix.IFA_F_NODAD}); err != nil {
				return err
			}
			s.Sources, s.IPs = append(s.Sources, node.Addr()), append(s.IPs, netip.MustParseAddr(a.pod))
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		p, _, err := CreatePair(s)
		if err != nil {
			return err
		}
		return f(s, p)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The first packet of the node reaches a pod that has just been configured: the port is closed, and the refusal returns. The
// workers of the kernel do not run meanwhile, as on a busy node.
func TestFirstPacketToPod(t *testing.T) {
	onNewPair(t, func(s PairSpec, p Pair) error {
		s.IPs = s.IPs[:1] // Configure lets workers run for IPv6
		resume, err := occupy()
		if err != nil {
			return err
		}
		c, err := configureAndSend(s, p)
		if err := errors.Join(err, resume()); err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Read(make([]byte, 8)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("got %v, want %v", err, unix.ECONNREFUSED)
		}
		return nil
	})
}

func configureAndSend(s PairSpec, p Pair) (net.Conn, error) {
	if err := Configure(s, p); err != nil {
		return nil, err
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.IPs[0], 9)))
	if err == nil {
		_, err = c.Write([]byte("hello?"))
	}
	return c, err
}

// occupy gives the current thread the real-time policy, and a thread that waits on each of the other processors. Until
// resume nothing else runs there.
func occupy() (resume func() error, err error) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, err
	}
	var done atomic.Bool
	var waiting errgroup.Group
	var own *unix.CPUSet
	for n := range 8 * int(unsafe.Sizeof(all)) {
		if !all.IsSet(n) {
			continue
		}
		var one unix.CPUSet
		one.Set(n)
		if own == nil {
			own = &one
			continue
		}
		started := make(chan struct{})
		waiting.Go(func() error {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			err := realTime(&one)
			close(started)
			for began := time.Now(); err == nil && !done.Load() && time.Since(began) < 200*time.Millisecond; {
			}
			return err
		})
		<-started
	}
	resume = func() error {
		done.Store(true)
		return errors.Join(unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr}, 0), unix.SchedSetaffinity(0, &all), waiting.Wait())
	}
	if err := realTime(own); err != nil {
		return nil, errors.Join(err, resume())
	}
	return resume, nil
}

// realTime binds the current thread to processors, and runs it before all threads of other policies.
func realTime(processors *unix.CPUSet) error {
	err := unix.SchedSetaffinity(0, processors)
	return errors.Join(err, unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0))
}

// The node sends nothing to a pod whose end is down. The error names the interface.
func TestHostEndWithoutCarrier(t *testing.T) {
	onNewPair(t, func(s PairSpec, p Pair) error {
		if err := ConfigureHost(s, p); err != nil {
			return err
		}
		if err := awaitHost(p); !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), p.Name) {
			t.Errorf("got %v, want %v with the name %s", err, os.ErrDeadlineExceeded, p.Name)
		}
		return nil
	})
}
