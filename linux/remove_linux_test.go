// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// TestRemove expects the node's interfaces and routes to be those from before,
// and nothing to be pinned.
func TestRemove(t *testing.T) {
	l := newLab(t)
	before := l.traces()
	a := l.pod("a", 11)
	l.pod("b", 12)
	l.apply(isolate("b", model.Ingress, accept(pods("a"), tcp(80))))
	if slices.Equal(l.traces(), before) {
		t.Fatal("the pods have left no traces to be removed")
	}
	l.must(l.backend.Close())
	cfg := linux.Defaults()
	cfg.BPFFS = l.bpffs
	for range 2 {
		l.must(l.node.Do(func() error { return linux.Remove(context.Background(), cfg) }))
		if got := l.traces(); !slices.Equal(got, before) {
			t.Errorf("left after removal: %v, want %v", got, before)
		}
		if _, err := os.Stat(filepath.Join(l.bpffs, loader.LayoutVersion)); !os.IsNotExist(err) {
			t.Errorf("something is still pinned: %v", err)
		}
	}
	l.must(a.Do(func() error {
		if _, err := netlink.LinkByName("eth0"); err == nil {
			t.Error("the pod's end is left")
		}
		return nil
	}))
	l.start() // a node can be taken into service again
}

// traces names the node's interfaces and routes.
func (l *lab) traces() []string {
	l.t.Helper()
	var all []string
	l.must(l.node.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, k := range links {
			all = append(all, k.Attrs().Name)
		}
		routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
		for _, r := range routes {
			if r.Protocol != 2 || r.Dst == nil || !r.Dst.IP.IsLinkLocalUnicast() { // the kernel's own come with the family
				all = append(all, fmt.Sprint(r.Dst, r.Gw, r.LinkIndex))
			}
		}
		return err
	}))
	slices.Sort(all)
	return all
}
