// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	ebpflink "github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/link"
)

// No packet of a pod leaves its interface before policy applies to it, whatever the pod does while its ADD runs. At every step,
// the host's end of the interface is down or has both programs.
func TestAttackDuringAttachment(t *testing.T) {
	t.Parallel()
	onOwnHooks(t, func(t *testing.T, change func(*linux.Config)) {
		var l *lab
		var early *earlySender
		var steps []string
		step := func(name string) {
			host := link.HostName(model.MakeEndpointID("a", "eth0"))
			if l == nil || l.pods["a"] == nil {
				return
			}
			steps = append(steps, name)
			if why := unguarded(host); why != "" {
				t.Errorf("step %q: %s", name, why)
			}
			if early == nil && name == "write slot" { // the pair exists
				early = l.sendEarly(host)
			}
			if early != nil {
				time.Sleep(20 * time.Millisecond)
			}
		}
		l = newLabWith(t, func(c *linux.Config) { change(c); c.Step = step })
		heard := []func() bool{l.hearOn(l.node, "[::]:9999"), l.hearOn(l.outside, "[::]:9999")}
		wo := l.wire(l.outside, "eth0")
		l.pod("a", 11)
		if early == nil {
			t.Fatal("the ADD has no step \"write slot\"")
		}
		for began := time.Now(); early.sent.Load() < 200; time.Sleep(time.Millisecond) {
			if time.Since(began) > patience {
				t.Fatalf("the pod sent %d packets only", early.sent.Load())
			}
		}
		attacks.tried.Add(1)
		for _, heard := range heard {
			if heard() {
				attacks.through.Add(1)
				t.Error("got through: a packet of a pod without a policy")
			}
		}
		if wo.saw(earlyWord) {
			t.Error("got through: a frame of a pod without a policy, to outside")
		}
		l.apply() // no policy: everything is allowed
		for began := time.Now(); !heard[0]() || !heard[1](); {
			if time.Since(began) > patience {
				t.Fatal("the same packets do not arrive under a policy that allows them: the test shows nothing")
			}
		}
		if len(steps) < 6 {
			t.Errorf("only the steps %q", steps)
		}
	})
}

// unguarded says why packets may pass an interface without a program. It returns "" if they cannot.
func unguarded(name string) string {
	l, err := netlink.LinkByName(name)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return ""
	}
	if err != nil {
		return err.Error()
	}
	if l.Attrs().Flags&net.FlagUp == 0 {
		return ""
	}
	for hook, parent := range map[ebpf.AttachType]uint32{ebpf.AttachTCXIngress: netlink.HANDLE_MIN_INGRESS, ebpf.AttachTCXEgress: netlink.HANDLE_MIN_EGRESS} {
		programs, err := ebpflink.QueryPrograms(ebpflink.QueryOptions{Target: l.Attrs().Index, Attach: hook})
		if err == nil && len(programs.Programs) > 0 {
			continue
		}
		if filters, err := link.Whole(func() ([]netlink.Filter, error) { return netlink.FilterList(l, parent) }); err != nil || len(filters) == 0 {
			return fmt.Sprintf("the interface is up without a program at %v", hook)
		}
	}
	return ""
}

// earlyWord is in every frame of an earlySender.
const earlyWord = "before-any-policy"

// earlySender is a pod that sends frames all the time, and enables its interface itself.
type earlySender struct{ sent atomic.Int64 }

// sendEarly starts to send from pod a, to the node and to outside. It runs in the namespace of the node.
func (l *lab) sendEarly(host string) *earlySender {
	at, err := net.InterfaceByName(host)
	if err != nil {
		l.t.Error(err)
		return nil
	}
	e, stop, done := &earlySender{}, make(chan struct{}), make(chan struct{})
	l.t.Cleanup(func() { close(stop); <-done })
	pod := l.pods["a"]
	go func() {
		defer close(done)
		if err := pod.Do(func() error { return e.run(at.HardwareAddr, stop) }); err != nil {
			l.t.Error(err)
		}
	}()
	return e
}

// run sends until stop is closed. The kernel rejects frames while the interface is down.
func (e *earlySender) run(host net.HardwareAddr, stop chan struct{}) error {
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	w := &wire{mac: eth0.Attrs().HardwareAddr}
	for {
		select {
		case <-stop:
			return nil
		case <-time.After(200 * time.Microsecond):
		}
		if err := netlink.LinkSetUp(eth0); err != nil {
			return err
		}
		for _, f := range addressSets {
			for _, to := range []string{f.node, f.out} {
				if unix.Sendto(fd, udpFrame(w, host, f.a, to, 1234, 9999, earlyWord), 0, &unix.SockaddrLinklayer{Ifindex: eth0.Attrs().Index}) == nil {
					e.sent.Add(1)
				}
			}
		}
	}
}
