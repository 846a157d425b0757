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
// with another name or the same, and with an index that is free.
func (l *lab) resandbox(pod, name string, n byte, index int) {
	l.t.Helper()
	l.must(l.node.Do(func() error { return netns.Remove("veth-" + pod) }))
	l.pods[name] = l.namespace(pod + "-later")
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
		l.pod("c", 13)
		closed := isolate("b", model.Ingress, accept(pods("a"), tcp(90)))
		l.apply(closed)
		index := 0
		l.must(l.node.Do(func() (err error) { index, err = link.Index("veth-c"); return err }))
		l.resandbox("b", "b", 22, 0)
		l.resandbox("c", "d", 23, index)
		b, d := l.pods["b"], l.pods["d"]
		for _, ns := range []*netns.NS{b, d} {
			l.echo(ns, 90)
			l.echo(ns, 91)
		}
		heard := l.hearOn(b, "[::]:9999")
		l.apply(closed, isolate("c", model.Ingress, accept(pods("a"), tcp(90))))
		for _, deleted := range []string{"none", "b", "c"} {
			l.must(l.node.Do(func() error {
				return l.backend.DeleteEndpoint(context.Background(), model.MakeEndpointID(deleted, "eth0"))
			}))
			for _, ip := range append(podIPs(22), podIPs(23)...) {
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
