// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/netns"
)

// takeName makes a pod to whose interface the plugin gives the name of that of an earlier pod.
func (l *lab) takeName(of string, n byte) dataplane.EndpointSpec {
	l.t.Helper()
	name := of + "-next"
	l.pods[name] = l.namespace(name)
	was := l.pods[of]
	l.pods[of] = l.pods[name] // the plugin takes the name of the interface from that of the pod
	l.must(l.node.Do(func() error { return l.plugin(l, of, n) }))
	l.pods[of] = was
	spec := l.specOf(name, n)
	l.must(l.node.Do(func() error { _, err := l.backend.AddEndpoint(context.Background(), spec); return err }))
	l.local[spec.ID] = compile.Endpoint{Pod: spec.Pod, IPs: spec.IPs}
	return spec
}

func (l *lab) specOf(name string, n byte) dataplane.EndpointSpec {
	return dataplane.EndpointSpec{ID: model.MakeEndpointID(name, "eth0"), ContainerID: name, IfName: "eth0",
		Pod: model.PodID{Namespace: "default", Name: name}, NetNS: l.pods[name].Path(), IPs: podIPs(n)}
}

// An interface keeps its programs when another process renames it, and a plugin uses the name again. That of a running pod
// keeps its policy, and that of a pod after DEL drops every packet.
func TestNameOfARenamedInterface(t *testing.T) {
	t.Parallel()
	if !hasTCX(t) {
		t.Skip("clsact hooks stay on an interface without pins")
	}
	onForeign(t, func(t *testing.T, l *lab) {
		a, b, c := l.pod("a", 11), l.pod("b", 12), l.pod("c", 13)
		l.echo(b, 90)
		l.echo(c, 90)
		policies := []*model.Policy{isolate("b", model.Ingress, accept(pods("a"), tcp(90))), isolate("b-next", model.Ingress), isolate("c-next", model.Ingress)}
		l.apply(policies...)
		l.allowed(a, "tcp", "10.1.0.12", 90)
		l.allowed(l.outside, "tcp", "10.1.0.13", 90)
		l.delete("c")
		l.must(l.node.Do(func() error { return rename("veth-b", "veth-x") }))
		l.must(l.node.Do(func() error { return rename("veth-c", "veth-y") }))
		specs := []dataplane.EndpointSpec{l.specOf("a", 11), l.specOf("b", 12), l.takeName("b", 22), l.takeName("c", 23)}
		for _, name := range []string{"b-next", "c-next"} {
			l.echo(l.pods[name], 90)
		}
		l.apply(policies...)
		check := func(when string) {
			t.Helper()
			for _, ip := range slices.Concat(podIPs(22), podIPs(23)) {
				l.denied(a, "tcp", ip.String(), 90)
			}
			for _, ip := range podIPs(12) {
				l.denied(l.outside, "tcp", ip.String(), 90)
				l.allowed(a, "tcp", ip.String(), 90)
			}
			l.denied(a, "tcp", "10.1.0.13", 90)
			l.denied(c, "tcp", outsideAddr4, 90)
			if p := l.problems(); len(p) > 0 || t.Failed() {
				t.Fatalf("%s: problems %q", when, p)
			}
		}
		check("after the names are used again")
		l.idleUntilQuiet()
		check("later")
		l.must(l.backend.Close())
		l.start()
		for _, s := range specs {
			l.must(l.node.Do(func() error { _, err := l.backend.AddEndpoint(context.Background(), s); return err }))
		}
		l.apply(policies...)
		l.idleUntilQuiet()
		check("after a restart")
		for _, step := range [][2]string{{"veth-x", "veth-z"}, {"veth-b", "veth-x"}, {"veth-z", "veth-b"}} {
			l.must(l.node.Do(func() error { return rename(step[0], step[1]) }))
		}
		l.idleUntilQuiet()
		check("after b and the next pod exchanged names")
	})
}

// A running pod keeps its policy if its interface gets the name of one that was closed after DEL, and that is gone.
func TestNameOfAClosedInterface(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		a, b := l.pod("a", 11), l.pod("b", 12)
		l.pod("c", 13)
		l.echo(b, 90)
		l.apply(isolate("b", model.Ingress, accept(pods("a"), tcp(90))))
		l.delete("c")
		l.must(l.node.Do(func() error { return netns.Remove("veth-c") }))
		l.must(l.node.Do(func() error { return rename("veth-b", "veth-c") }))
		l.idleUntilQuiet()
		for _, ip := range podIPs(12) {
			l.denied(l.outside, "tcp", ip.String(), 90)
			l.allowed(a, "tcp", ip.String(), 90)
		}
		l.sound()
	})
}

// An agent that was killed while it moved the pins of a renamed interface left some under another name. The next one completes
// the move, and attaches nothing twice.
func TestKilledWhileNamesMove(t *testing.T) {
	t.Parallel()
	if !hasTCX(t) {
		t.Skip("clsact hooks have no pins")
	}
	onForeign(t, func(t *testing.T, l *lab) {
		a, b := l.pod("a", 11), l.pod("b", 12)
		l.echo(b, 90)
		only := isolate("b", model.Ingress, accept(pods("a"), tcp(90)))
		l.apply(only)
		l.allowed(a, "tcp", "10.1.0.12", 90)
		l.must(l.backend.Close())
		var index int
		l.must(l.node.Do(func() (err error) { index, err = link.Index("veth-b"); return err }))
		was, err := filepath.Glob(filepath.Join(l.bpffs, "*", "links", "veth-b-*"))
		if err != nil || len(was) != 2 {
			t.Fatalf("pins %q, %v", was, err)
		}
		for _, path := range was {
			l.must(os.Rename(path, strings.Replace(path, "veth-b-", fmt.Sprintf("renamed-interface-%d-", index), 1)))
		}
		l.start()
		if now, err := filepath.Glob(filepath.Join(l.bpffs, "*", "links", "*")); err != nil || !slices.Equal(onlyOf(now, "veth-b-"), was) || len(onlyOf(now, "renamed-")) > 0 {
			t.Errorf("pins after a restart %q, %v, want %q", now, err, was)
		}
		l.must(l.add("a", 11))
		l.must(l.add("b", 12))
		l.apply(only)
		l.denied(l.outside, "tcp", "10.1.0.12", 90)
		l.allowed(a, "tcp", "10.1.0.12", 90)
		l.sound()
	})
}

// onlyOf returns the paths whose file name begins with a prefix.
func onlyOf(paths []string, prefix string) (found []string) {
	for _, p := range paths {
		if strings.HasPrefix(filepath.Base(p), prefix) {
			found = append(found, p)
		}
	}
	return found
}

// An agent starts on a full disk although an interface was renamed, and DEL of its pod succeeds.
func TestRenamedOnFullDisk(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		a, b := l.pod("a", 11), l.pod("b", 12)
		l.echo(b, 90)
		only := isolate("b", model.Ingress, accept(pods("a"), tcp(90)))
		l.apply(only)
		l.allowed(a, "tcp", "10.1.0.12", 90)
		free := l.fillDisk()
		l.must(l.backend.Close())
		l.must(l.node.Do(func() error { return rename("veth-b", "veth-x") }))
		l.start()
		for _, spec := range []dataplane.EndpointSpec{l.specOf("a", 11), l.specOf("b", 12)} {
			l.must(l.node.Do(func() error { _, err := l.backend.AddEndpoint(context.Background(), spec); return err }))
		}
		l.apply(only)
		l.idleUntilQuiet()
		l.denied(l.outside, "tcp", "10.1.0.12", 90)
		l.allowed(a, "tcp", "10.1.0.12", 90)
		l.sound()
		l.must(l.node.Do(func() error { return rename("veth-x", "veth-y") }))
		l.delete("b")
		l.idleUntilQuiet()
		l.denied(a, "tcp", "10.1.0.12", 90)
		free()
		l.idleUntilQuiet()
		l.must(l.backend.Close())
		l.start()
		l.denied(a, "tcp", "10.1.0.12", 90)
	})
}

// Pods of a bridge keep their network if it gets another MAC while the disk is full.
func TestBridgeMACOnFullDisk(t *testing.T) {
	t.Parallel()
	l := newLabWith(t, func(c *linux.Config) { c.PolicyOnly, c.StateDir = true, "bridged" })
	a := l.pod("a", 11)
	l.echo(l.outside, 90)
	l.apply()
	l.allowed(a, "tcp", outsideAddr4, 90)
	l.fillDisk()
	l.must(l.node.Do(func() error { return l.setBridgeMAC("02:00:00:00:c0:02") }))
	l.must(l.node.Do(func() error { return l.backend.Follow(context.Background()) }))
	l.must(a.Do(forgetNeighbours))
	for _, to := range []string{outsideAddr4, outsideAddr6} {
		l.allowed(a, "tcp", to, 90)
	}
}
