// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/netns"
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

// adopt attaches a running pod by the handle of its interface.
func (l *lab) adopt(name, handle string, n byte) error {
	spec := dataplane.EndpointSpec{ID: model.MakeEndpointID("adopted-"+name, "eth0"), ContainerID: "adopted-" + name, IfName: "eth0",
		Pod: model.PodID{Namespace: "default", Name: name}, NetNS: handle, IPs: podIPs(n)}
	return l.node.Do(func() error {
		_, err := l.backend.AddEndpoint(context.Background(), spec)
		if err == nil {
			l.local[spec.ID] = compile.Endpoint{Pod: spec.Pod, IPs: spec.IPs}
		}
		return err
	})
}

// Running pods are found by their addresses and come under policy, which stays across restarts. A new interface
// with the address of an earlier one can be closed, and is not the earlier one.
func TestAdoptedInterfaces(t *testing.T) {
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
