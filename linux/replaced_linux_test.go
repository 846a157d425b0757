// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/netns"
)

// resandbox replaces the sandbox of a pod. The DEL of the earlier one is still to come. The plugin makes an interface
// with another name or the same, and with an index that is free. With other, the pod's end has another index, too.
func (l *lab) resandbox(pod, name string, n byte, index int, other bool) {
	l.t.Helper()
	l.must(l.node.Do(func() error { return netns.Remove("veth-" + pod) }))
	l.pods[name] = l.namespace(pod + "-later")
	if other {
		l.must(l.pods[name].Do(func() error { return netns.Bridge("br0") }))
	}
	was, id := model.MakeEndpointID(pod, "eth0"), model.MakeEndpointID(pod+"-later", "eth0")
	l.index = index
	l.must(l.node.Do(func() error {
		if err := l.plugin(l, name, n); err != nil {
			return err
		}
		_, err := l.backend.AddEndpoint(context.Background(), dataplane.EndpointSpec{ID: id, ContainerID: pod + "-later", IfName: "eth0",
			Pod: model.PodID{Namespace: "default", Name: pod}, NetNS: l.pods[name].Path(), IPs: podIPs(n)})
		return err
	}))
	e := l.local[was]
	e.IPs = podIPs(n)
	l.local[id] = e
	delete(l.local, was)
}

// The DEL of a sandbox may come after the ADD of the next one of that pod. Their interfaces have one name, because a plugin
// derives it from the pod, or one index, because a plugin moves it from the namespace of the pod. Policy stays on the
// interface that exists.
func TestLateDelete(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		a := l.pod("a", 11)
		l.pod("b", 12)
		closed := []*model.Policy{isolate("b", model.Ingress, accept(pods("a"), tcp(90)))}
		index := make(map[string]int)
		for i, name := range []string{"c", "d"} {
			l.pod(name, byte(13+i))
			closed = append(closed, isolate(name, model.Ingress, accept(pods("a"), tcp(90))))
			l.must(l.node.Do(func() (err error) { index[name], err = link.Index("veth-" + name); return err }))
		}
		l.apply(closed...)
		l.resandbox("b", "b", 22, 0, false)
		l.resandbox("c", "e", 23, index["c"], false)
		l.resandbox("d", "f", 24, index["d"], true)
		var addrs []netip.Addr
		for i, name := range []string{"b", "e", "f"} {
			l.echo(l.pods[name], 90)
			l.echo(l.pods[name], 91)
			addrs = append(addrs, podIPs(byte(22+i))...)
		}
		heard := l.hearOn(l.pods["b"], "[::]:9999")
		l.apply(closed...)
		for _, deleted := range []string{"none", "b", "c", "d"} {
			l.must(l.node.Do(func() error {
				return l.backend.DeleteEndpoint(context.Background(), model.MakeEndpointID(deleted, "eth0"))
			}))
			for _, ip := range addrs {
				l.sends(l.outside, 3, netip.AddrPortFrom(ip, 9999).String())
				l.denied(a, "tcp", ip.String(), 91)
				l.allowed(a, "tcp", ip.String(), 90)
			}
			if heard() {
				t.Errorf("after DEL of the earlier sandbox of %s, pod b hears the outside", deleted)
			}
		}
		l.sound()
	})
}

// DEL closes the interface of a pod until its CNI plugin removes it. The interface of the next pod may get its name and its index. That
// one is open: it is not taken for the closed one, neither at once nor by the next agent, and can be closed.
func TestClosedInterfaceIsReplaced(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		for i, pod := range []struct{ name, next string }{{"a", "a"}, {"b", "c"}} {
			n, name, next, id := byte(11+i), pod.name, pod.next, model.MakeEndpointID(pod.name, "eth0")
			l.pod(name, n)
			l.apply()
			l.must(l.node.Do(func() (err error) {
				if l.index, err = link.Index("veth-" + name); err != nil {
					return err
				}
				return l.backend.DeleteEndpoint(context.Background(), id)
			}))
			delete(l.local, id)
			l.wantClosed("after DEL", n, true)
			l.must(l.node.Do(func() error { return netns.Remove("veth-" + name) }))
			l.pods[next] = l.namespace(name + "-later")
			l.must(l.node.Do(func() error { return l.plugin(l, next, n) }))
			l.index = 0
			l.wantClosed("the next one", n, false)
			l.must(l.node.Do(func() error { return l.backend.Follow(context.Background()) }))
			l.wantClosed("the next one, later", n, false)
			l.must(l.backend.Close())
			l.start()
			l.wantClosed("the next one, after a restart", n, false)
			l.must(l.node.Do(func() error { return l.backend.CloseInterface(context.Background(), l.having(n)[0].Handle, "claim") }))
			l.wantClosed("once it is closed", n, true)
			l.echo(l.pods[next], 90)
			l.denied(l.outside, "tcp", podIPs(n)[0].String(), 90)
		}
	})
}

// wantClosed compares whether the interface of pod n is closed.
func (l *lab) wantClosed(when string, n byte, want bool) {
	l.t.Helper()
	if found := l.having(n); len(found) != 1 || found[0].Closed != want {
		l.t.Errorf("%s: interfaces %+v, want one, closed: %t", when, found, want)
	}
}
