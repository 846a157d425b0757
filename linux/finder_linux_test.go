// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// running makes a pod by the other plugin alone.
func (l *lab) running(name string, n byte) *netns.NS {
	l.t.Helper()
	ns := l.namespace(name)
	l.pods[name] = ns
	l.must(l.node.Do(func() error { return l.plugin(l, name, n) }))
	return ns
}

// having returns the interfaces that have the addresses of pod n.
func (l *lab) having(n byte) (found []dataplane.Interface) {
	l.t.Helper()
	var all []dataplane.Interface
	l.must(l.node.Do(func() (err error) { all, err = l.backend.Interfaces(context.Background()); return err }))
	for _, i := range all {
		has := 0
		for _, ip := range podIPs(n) {
			for _, a := range i.Addresses {
				if a == ip {
					has++
				}
			}
		}
		if has == len(podIPs(n)) {
			found = append(found, i)
		}
	}
	return found
}

// adopt attaches a running pod by the handle of its interface, under default deny.
func (l *lab) adopt(name, handle string, n byte) error { return l.adoptAs(name, handle, n, false) }

func (l *lab) adoptAs(name, handle string, n byte, observed bool) error {
	spec := dataplane.EndpointSpec{ID: model.MakeEndpointID("adopted-"+name, "eth0"), ContainerID: "adopted-" + name, IfName: "eth0",
		Pod: model.PodID{Namespace: "default", Name: name}, NetNS: handle, IPs: podIPs(n), Observed: observed}
	return l.node.Do(func() error {
		_, err := l.backend.AddEndpoint(context.Background(), spec)
		if err == nil {
			l.local[spec.ID] = compile.Endpoint{Pod: spec.Pod, IPs: spec.IPs}
		}
		return err
	})
}

// Running pods come under policy without the loss of a packet, if their packets pass until then and the data path knew
// their addresses before it saw a packet.
func TestAdoptedUnderTraffic(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		all := map[string]byte{"a": 11, "b": 12}
		for name, n := range all {
			l.running(name, n)
			l.known = append(l.known, compile.Endpoint{Pod: model.PodID{Namespace: "default", Name: name}, IPs: podIPs(n)})
		}
		a, b := l.pods["a"], l.pods["b"]
		var targets []traffic.Target
		for i, to := range podIPs(12) {
			targets = append(targets, traffic.Target{NS: b, From: podIPs(11)[i], To: netip.AddrPortFrom(to, 90)})
		}
		open, err := traffic.Connect(a, targets, 20)
		l.must(err)
		stream, err := traffic.NewStream(a, targets, 1000)
		l.must(err)
		l.apply()
		for name, n := range all {
			l.must(l.adoptAs(name, l.having(n)[0].Handle, n, true))
			for more, began := stream.Received()+500, time.Now(); stream.Received() < more && time.Since(began) < patience; {
				time.Sleep(time.Millisecond)
			}
		}
		l.known = nil
		l.apply(isolate("a", model.Egress, accept(pods("b"))), isolate("b", model.Ingress, accept(pods("a"))))
		for more, began := open.Exchanges()+200, time.Now(); open.Exchanges() < more && time.Since(began) < patience; {
			time.Sleep(time.Millisecond)
		}
		got, err := stream.Finish()
		l.must(err)
		if broken, exchanges, _ := open.Finish(); len(broken) > 0 || exchanges == 0 || got.Lost() > got.Overflowed {
			t.Errorf("%d of %d packets are lost, after %d exchanges %d connections are broken: %v", got.Lost(), got.Sent, exchanges, len(broken), errors.Join(broken...))
		}
		l.denied(l.outside, "tcp", "10.1.0.12", 90)
	})
}

// Running pods are found by their addresses and come under policy, which stays across restarts. A new interface
// with the address of an earlier one can be closed, and is not the earlier one.
func TestAdoptedInterfaces(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		a, b := l.running("a", 11), l.running("b", 12)
		l.echo(b, 90)
		l.allowed(a, "tcp", "10.1.0.12", 90) // no policy yet
		for name, n := range map[string]byte{"a": 11, "b": 12} {
			found := l.having(n)
			if len(found) != 1 || found[0].Name != "veth-"+name || found[0].IfName != "eth0" || found[0].Owner != "" || found[0].Closed || found[0].Problem != "" {
				t.Fatalf("interfaces of pod %s: %+v", name, found)
			}
			l.must(l.adopt(name, found[0].Handle, n))
		}
		l.denied(a, "tcp", "10.1.0.12", 90) // no State names them
		only90 := isolate("b", model.Ingress, accept(pods("a"), tcp(90)))
		l.apply(only90)
		l.allowed(a, "tcp", "10.1.0.12", 90)
		l.allowed(a, "tcp", "fd01::c", 90)
		l.denied(l.outside, "tcp", "10.1.0.12", 90)
		l.sound()
		handle := l.having(12)[0].Handle
		l.must(l.backend.Close())
		l.start()
		if found := l.having(12); len(found) != 1 || found[0].Owner != model.MakeEndpointID("adopted-b", "eth0") || found[0].Handle != handle {
			t.Fatalf("after a restart: %+v", found)
		}
		l.must(l.adopt("a", l.having(11)[0].Handle, 11))
		l.must(l.adopt("b", handle, 12))
		l.apply(only90)
		l.denied(l.outside, "tcp", "10.1.0.12", 90)
		// The next pod gets the address.
		l.must(l.node.Do(func() error { return netns.Remove("veth-b") }))
		l.echo(l.running("c", 12), 90)
		next := l.having(12)
		if len(next) != 1 || next[0].Handle == handle || next[0].Owner != "" {
			t.Fatalf("the next interface is %+v", next)
		}
		if err := l.adopt("b", handle, 12); !errors.Is(err, dataplane.ErrNoNetNS) {
			t.Errorf("the earlier interface: %v", err)
		}
		for range 2 {
			l.must(l.node.Do(func() error {
				return l.backend.CloseInterface(context.Background(), next[0].Handle, "default/b/1")
			}))
		}
		l.must(a.Do(forgetNeighbours))
		l.denied(a, "tcp", "10.1.0.12", 90)
		l.denied(l.pods["c"], "tcp", outsideAddr4, 90)
		l.must(l.backend.Close())
		l.start()
		if found := l.having(12); len(found) != 1 || !found[0].Closed || found[0].ClosedFor != "default/b/1" {
			t.Fatalf("after a restart the closed interface is %+v", found)
		}
		l.must(l.adopt("a", l.having(11)[0].Handle, 11))
		l.must(l.node.Do(forgetNeighbours)) // else the node may report an unreachable host
		l.denied(l.outside, "tcp", "10.1.0.12", 90)
		delete(l.local, model.MakeEndpointID("adopted-b", "eth0"))
		l.must(l.adopt("c", next[0].Handle, 12))
		if found := l.having(12); found[0].Closed || found[0].ClosedFor != "" {
			t.Errorf("an adopted interface is %+v", found)
		}
		l.apply()
		// Address resolution that began before may fail later, and with it the packets that wait for it.
		l.must(errors.Join(a.Do(forgetNeighbours), l.node.Do(forgetNeighbours)))
		l.allowed(a, "tcp", "10.1.0.12", 90)
	})
}

// An interface stays closed across a restart, for the claim for which it was closed, until another claim has it.
func TestClosedByClassifiers(t *testing.T) {
	t.Parallel()
	onForeignHooks(t, true, func(t *testing.T, l *lab) {
		l.echo(l.running("c", 12), 90)
		l.apply()
		l.allowed(l.outside, "tcp", "10.1.0.12", 90)
		handle := l.having(12)[0].Handle
		l.must(l.node.Do(func() error { return l.backend.CloseInterface(context.Background(), handle, "default/b/1") }))
		for range 2 {
			l.must(l.backend.Close())
			l.start()
			if found := l.having(12); len(found) != 1 || !found[0].Closed || found[0].ClosedFor != "default/b/1" {
				t.Fatalf("after a restart the closed interface is %+v", found)
			}
			l.denied(l.outside, "tcp", "10.1.0.12", 90)
			l.idleUntilQuiet()
		}
		l.must(l.adopt("c", handle, 12))
		l.apply()
		l.allowed(l.outside, "tcp", "10.1.0.12", 90)
		l.must(l.backend.Close())
		l.start()
		if found := l.having(12); len(found) != 1 || found[0].Closed || found[0].Owner == "" {
			t.Errorf("after a restart the adopted interface is %+v", found)
		}
	})
}

// A handle that is not one of this boot, or is damaged, names nothing.
func TestHandles(t *testing.T) {
	onForeign(t, func(t *testing.T, l *lab) {
		l.running("a", 11)
		for _, handle := range []string{"interface:", "interface:x:1:2", "interface:x:0:2", "interface::-1:2", "interface:x:1:2:3"} {
			if err := l.adopt("a", handle, 11); err == nil {
				t.Errorf("handle %q is accepted", handle)
			}
		}
		if err := l.adopt("a", l.having(11)[0].Handle, 12); !errors.Is(err, dataplane.ErrInterfaceKind) {
			t.Errorf("the interface of another pod: %v", err)
		}
	})
}

// crowd gives a pod many addresses, and changes them until the test ends.
func (l *lab) crowd(name string, n int) {
	l.t.Helper()
	l.must(l.pods[name].Do(func() error {
		var all []netip.Prefix
		for i := range n {
			low := []byte{byte(i >> 8), byte(i)}
			all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, low[0], low[1]}), 32),
				netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 2, 14: low[0], 15: low[1]}), 128))
		}
		return netns.AddAddresses("eth0", all...)
	}))
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		done <- l.pods[name].Do(func() error {
			for {
				select {
				case <-stop:
					return nil
				default:
				}
				changed := prefixes([]string{"10.201.0.1/32", "fd03::1/128"})
				if err := errors.Join(netns.AddAddresses("eth0", changed...), netns.RemoveAddresses("eth0", changed...)); err != nil {
					return err
				}
			}
		})
	}()
	l.t.Cleanup(func() {
		close(stop)
		if err := <-done; err != nil {
			l.t.Error(err)
		}
	})
}

// A pod that has thousands of addresses, and changes them while they are read, is reported, and is not another pod.
// The other pods of the node are found and adopted, and a pod that changes few addresses is one of them.
func TestAdoptionBesideManyAddresses(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		l.echo(l.running("a", 11), 90)
		l.running("many", 12)
		l.running("some", 13)
		l.must(l.add("many", 12)) // an ADD named it
		l.crowd("many", 3000)
		l.crowd("some", 100)
		for range 20 {
			for name, n := range map[string]byte{"a": 11, "some": 13} {
				if found := l.having(n); len(found) != 1 || found[0].Name != "veth-"+name || found[0].Problem != "" {
					t.Fatalf("interfaces of pod %s: %+v", name, found)
				}
			}
			if found := l.having(12); len(found) != 0 {
				t.Fatalf("interfaces of the pod with many addresses: %+v", found)
			}
			l.wantUnreadable("veth-many")
		}
		for name, n := range map[string]byte{"a": 11, "some": 13} {
			l.must(l.adopt(name, l.having(n)[0].Handle, n))
		}
		if err := l.adopt("many", l.wantUnreadable("veth-many").Handle, 12); !errors.Is(err, dataplane.ErrInterfaceKind) {
			t.Errorf("an interface with thousands of addresses: %v", err)
		}
		if err := l.add("many", 12); !errors.Is(err, dataplane.ErrInterfaceKind) || !strings.Contains(err.Error(), "more than 256 addresses") {
			t.Errorf("an ADD for an interface with thousands of addresses: %v", err)
		}
		l.apply(isolate("a", model.Ingress), isolate("many", model.Egress))
		l.denied(l.outside, "tcp", "10.1.0.11", 90)
		l.denied(l.pods["many"], "tcp", outsideAddr4, 90) // its policy stays
	})
}

// wantUnreadable returns an interface, whose addresses must be unknown.
func (l *lab) wantUnreadable(name string) (found dataplane.Interface) {
	l.t.Helper()
	var all []dataplane.Interface
	l.must(l.node.Do(func() (err error) { all, err = l.backend.Interfaces(context.Background()); return err }))
	for _, i := range all {
		if i.Name == name {
			found = i
		}
	}
	if len(found.Addresses) != 0 || !strings.Contains(found.Problem, name+": it has more than 256 addresses") {
		l.t.Fatalf("interface %s: %+v", name, found)
	}
	return found
}
