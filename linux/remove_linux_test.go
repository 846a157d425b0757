// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/denylist"
	"github.com/isthmus-net/isthmus/linux/link"
)

// TestRemove expects the same interfaces, routes, nftables tables and XDP programs as before,
// and no pins.
func TestRemove(t *testing.T) {
	l := newLab(t)
	// If rules decide egress, the lab already has them.
	before := slices.DeleteFunc(l.traces(), func(t string) bool { return strings.HasPrefix(t, "table isthmus-egress ") })
	l.xdp, l.byRule = denylist.Devices{Names: []string{"eth0"}}, true
	l.again()
	a := l.pod("a", 11)
	l.pod("b", 12)
	l.apply(isolate("b", model.Ingress, accept(pods("a"), tcp(80))))
	for _, trace := range []string{"xdp on eth0", "table isthmus of family 1", "table isthmus-egress of family 2", "table isthmus-egress of family 10"} {
		if !slices.Contains(l.traces(), trace) {
			t.Errorf("there is no %s to be removed in %q", trace, l.traces())
		}
	}
	l.must(l.backend.Close())
	cfg := linux.Defaults()
	cfg.BPFFS = l.bpffs
	for range 2 {
		l.must(l.node.Do(func() error { return linux.Remove(context.Background(), cfg) }))
		if got := l.traces(); !slices.Equal(got, before) {
			t.Errorf("left after removal: %v, want %v", got, before)
		}
		pins, err := os.ReadDir(l.bpffs)
		l.must(err)
		for _, p := range pins {
			if !strings.HasSuffix(p.Name(), ".debug") { // every bpffs has them
				t.Errorf("something is still pinned: %s", p)
			}
		}
	}
	l.must(a.Do(func() error {
		if _, err := netlink.LinkByName("eth0"); err == nil {
			t.Error("the pod's end is left")
		}
		return nil
	}))
	l.start() // the node can be used again
}

// traces lists the node's interfaces, routes, tables and XDP programs.
func (l *lab) traces() []string {
	l.t.Helper()
	var all []string
	l.must(l.node.Do(func() error {
		links, err := link.Whole(netlink.LinkList)
		if err != nil {
			return err
		}
		for _, k := range links {
			all = append(all, k.Attrs().Name)
			if x := k.Attrs().Xdp; x != nil && x.Attached {
				all = append(all, "xdp on "+k.Attrs().Name)
			}
		}
		tables, err := (&nftables.Conn{}).ListTables()
		if err != nil {
			return err
		}
		for _, table := range tables {
			all = append(all, fmt.Sprintf("table %s of family %d", table.Name, table.Family))
		}
		routes, err := link.Whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_ALL) })
		for _, r := range routes {
			if r.Protocol != 2 || r.Dst == nil || !r.Dst.IP.IsLinkLocalUnicast() { // the kernel adds its own routes with IPv6
				all = append(all, fmt.Sprint(r.Dst, r.Gw, r.LinkIndex))
			}
		}
		return err
	}))
	slices.Sort(all)
	return all
}
