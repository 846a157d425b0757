// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"net"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// Programs start on clsact hooks and move to links. They are in force all the time, also when a
// new agent finds them on either.
func TestProgramsMoveToLinks(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.echo(b, 80)
	p := isolate("b", model.Ingress, accept(pods("a"), tcp(80)))
	l.apply(p)
	var c net.Conn
	l.must(a.Do(func() (err error) { c, err = net.Dial("tcp", "10.1.0.12:80"); return err }))
	defer c.Close()
	judge := func() {
		t.Helper()
		l.must(traffic.Exchange(c, patience))
		l.allowed(a, "tcp", "fd01::c", 80)
		l.denied(l.outside, "tcp", "10.1.0.12", 80)
	}
	judge()
	if n := l.classified("a", "b"); n != 2 {
		t.Fatalf("%d of 2 pods are on classifiers after they were added", n)
	}
	l.must(l.backend.Close())
	l.start()
	l.state = nil
	judge()
	l.must(l.add("a", 11))
	l.must(l.add("b", 12))
	l.apply(p)
	clsact := dataplane.PathMode{Part: "pods", Mode: "clsact", Count: 2}
	if !hasTCX(t) {
		for range 2 {
			l.idle()
		}
		l.pathModes(clsact)
		if n := l.classified("a", "b"); n != 2 {
			t.Errorf("%d of 2 pods are on classifiers, without tcx all stay there", n)
		}
		judge()
		return
	}
	for want, more := 1, true; more; want = max(want-1, 0) {
		more = l.idle()
		clsact.Count = want
		if linked := (dataplane.PathMode{Part: "pods", Mode: "tcx", Count: 2 - want}); want == 0 {
			l.pathModes(linked)
		} else {
			l.pathModes(clsact, linked)
		}
		if n := l.classified("a", "b"); n != want {
			t.Fatalf("%d pods are on classifiers, want %d", n, want)
		}
		judge()
		l.sound()
	}
	l.must(l.backend.Close())
	l.start()
	l.state = nil
	judge()
	if n := l.classified("a", "b"); n != 0 {
		t.Errorf("%d pods are on classifiers again after a restart", n)
	}
}

// The agent notices hooks that another process emptied, and the next AddEndpoint repairs them.
func TestLostClassifiersAreNoticed(t *testing.T) {
	l := newLab(t)
	l.pod("a", 11)
	l.sound()
	id := model.MakeEndpointID("a", "eth0")
	l.must(l.node.Do(func() error {
		index, err := link.Index(link.HostName(id))
		if err != nil {
			return err
		}
		return netlink.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}})
	}))
	if problems := l.problems(); len(problems) != 1 || problems[0] != "programs are not attached" {
		t.Errorf("problems are %q", problems)
	}
	l.must(l.add("a", 11))
	l.sound()
}

func hasTCX(t *testing.T) bool {
	t.Helper()
	path, err := loader.OpenSandbox()
	if err != nil {
		t.Fatal(err)
	}
	defer path.Close()
	return path.HasTCX()
}

// idle does one piece of the work that the agent does in the background. Work that does not end within
// 1,000 pieces fails the test.
func (l *lab) idle() (more bool) {
	l.t.Helper()
	l.must(l.node.Do(func() (err error) {
		if err := l.backend.Follow(context.Background()); err != nil {
			return err
		}
		more, err = l.backend.Idle(context.Background())
		return err
	}))
	if l.pieces++; !more {
		l.pieces = 0
	}
	if l.pieces > 1000 {
		l.t.Fatal("the work of an idle agent does not end")
	}
	return more
}

// pathModes checks the modes of the pods' hooks, and that every other part has exactly one
// mode.
func (l *lab) pathModes(pods ...dataplane.PathMode) {
	l.t.Helper()
	got := make(map[string][]dataplane.PathMode)
	for _, w := range l.status().PathModes {
		got[w.Part] = append(got[w.Part], w)
	}
	if !slices.Equal(got["pods"], pods) {
		l.t.Errorf("pods are decided by %v, want %v", got["pods"], pods)
	}
	for _, part := range []string{"services", "same_node", "uplinks", "clients", "remote_clients", "outside"} {
		if len(got[part]) != 1 || got[part][0].Mode == "" {
			l.t.Errorf("of %s it says %v", part, got[part])
		}
	}
}

// classified counts the pods whose programs are on clsact hooks.
func (l *lab) classified(names ...string) (n int) {
	l.t.Helper()
	l.must(l.node.Do(func() error {
		for _, name := range names {
			host := link.HostName(model.MakeEndpointID(name, "eth0"))
			if l.plugin != nil {
				host = "veth-" + name
			}
			index, err := link.Index(host)
			if err != nil {
				return err
			}
			has, err := link.HasClassifiers(index)
			if err != nil {
				return err
			}
			if has {
				n++
			}
		}
		return nil
	}))
	return n
}

// problems lists the problems of endpoints that the backend reports.
func (l *lab) problems() (all []string) {
	l.t.Helper()
	l.must(l.node.Do(func() error {
		installed, err := l.backend.Endpoints(context.Background())
		for _, i := range installed {
			all = append(all, i.Problems...)
		}
		return err
	}))
	return all
}

func (l *lab) sound() {
	l.t.Helper()
	if problems := l.problems(); len(problems) > 0 {
		l.t.Errorf("problems: %q", problems)
	}
}
