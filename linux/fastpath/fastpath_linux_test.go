// SPDX-License-Identifier: Apache-2.0

package fastpath_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	commonfabric "github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/linux/fabric"
	"github.com/isthmus-net/isthmus/linux/fastpath"
	"github.com/isthmus-net/isthmus/linux/loader"
)

var (
	rangeB = netip.MustParsePrefix("10.1.2.0/24")
	rangeC = netip.MustParsePrefix("10.1.3.0/24")
)

// kernel stands for the fabric, and for the programs on devices. It records every change.
type kernel struct {
	older    string
	attached map[string]bool
	routes   []fabric.NodeRoute
	done     []string
	fails    string // the change that fails
}

func (k *kernel) change(what string) error {
	if what == k.fails {
		return errors.New("cannot " + what)
	}
	k.done = append(k.done, what)
	return nil
}

func (k *kernel) Older() string { return k.older }
func (k *kernel) AttachNode(name string, _ int) error {
	if k.attached[name] {
		return nil
	}
	err := k.change("attach " + name)
	k.attached[name] = err == nil
	return err
}
func (k *kernel) DetachNode(name string) error {
	k.attached[name] = false
	return k.change("detach " + name)
}
func (k *kernel) NodeLinks() (names []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(k.attached)) {
		if k.attached[name] {
			names = append(names, name)
		}
	}
	return names, nil
}
func (k *kernel) AuditNodeLink(name string, _ int) ([]loader.Finding, error) {
	if k.attached[name] {
		return nil, nil
	}
	return []loader.Finding{{Object: "link", Interface: name, Detail: "from_node is missing"}}, nil
}
func (k *kernel) RepairNodeLink(name string, i int) error { return k.AttachNode(name, i) }
func (k *kernel) SetNodeRoutes(routes map[netip.Prefix]loader.NodeRoute) error {
	var list []string
	for p, w := range routes {
		list = append(list, fmt.Sprintf("%s:%t", p, w.Direct))
	}
	slices.Sort(list)
	return k.change("route " + strings.Join(list, " "))
}
func (k *kernel) NodeRoutes() ([]fabric.NodeRoute, bool, error) {
	return k.routes, k.routes != nil, nil
}
func (k *kernel) Hops() (hops []commonfabric.Hop) {
	for _, r := range k.routes {
		hops = append(hops, commonfabric.Hop{Prefix: r.Prefix, Via: commonfabric.VXLAN})
	}
	return hops
}

// path returns a fast path on a kernel whose connection tracking the programs can query once tracks is set.
func path(k *kernel, tracks *bool) *fastpath.FastPath {
	k.attached = make(map[string]bool)
	cfg := fastpath.Config{Forwarding: fastpath.Direct, ByLinks: true, Track: func() (bool, error) { return *tracks, nil }}
	return fastpath.New(cfg, k, k, *tracks, dataplane.Host{Log: slog.New(slog.DiscardHandler), Step: func(string) {}, Repaired: func(string) {}})
}

// expect syncs after the period, and compares what was done since the last call.
func (k *kernel) expect(t *testing.T, f *fastpath.FastPath, now *time.Time, want ...string) {
	t.Helper()
	*now = now.Add(2 * time.Second)
	if err := f.Sync(context.Background(), *now); err != nil {
		t.Error(err)
	}
	if !slices.Equal(k.done, want) {
		t.Errorf("done %q, want %q", k.done, want)
	}
	k.done = nil
}

// Programs come before the routes that need them, and go after those routes.
func TestOrderOfChanges(t *testing.T) {
	k, tracks, now := &kernel{}, true, time.Now()
	f := path(k, &tracks)
	k.expect(t, f, &now) // no plan yet
	k.routes = []fabric.NodeRoute{{Prefix: rangeB, Device: "eth0", Index: 2, Bypass: true}, {Prefix: rangeC, Device: "eth1", Index: 3, Bypass: true}}
	k.expect(t, f, &now, "attach eth0", "attach eth1", "route 10.1.2.0/24:true 10.1.3.0/24:true")
	k.expect(t, f, &now)
	k.routes = k.routes[:1]
	k.expect(t, f, &now, "route 10.1.2.0/24:true", "detach eth1")
	k.routes[0].Bypass = false
	k.expect(t, f, &now, "route 10.1.2.0/24:false", "detach eth0")
	if modes := f.PathModes(); !slices.Equal(modes, []dataplane.PathMode{{Part: "other_nodes", Mode: "stack_vxlan", Count: 1}}) {
		t.Errorf("modes %v", modes)
	}
}

// Without a query of connection tracking, or beside older programs, packets use the host stack.
func TestHostStackUntilReady(t *testing.T) {
	k, tracks, now := &kernel{older: "v1"}, false, time.Now()
	f := path(k, &tracks)
	k.routes = []fabric.NodeRoute{{Prefix: rangeB, Device: "eth0", Index: 2, Bypass: true}}
	k.expect(t, f, &now, "route 10.1.2.0/24:false")
	tracks = true
	k.expect(t, f, &now) // the older programs still decide
	other := path(&kernel{older: "v1", routes: k.routes}, &tracks)
	if err := other.Sync(context.Background(), now); err != nil || other.PathModes()[0].Mode != "stack_vxlan" {
		t.Errorf("beside older programs: %v, %v", other.PathModes(), err)
	}
	k.older = ""
	k.expect(t, f, &now, "attach eth0", "route 10.1.2.0/24:true")
	if modes := f.PathModes(); !slices.Equal(modes, []dataplane.PathMode{{Part: "other_nodes", Mode: "direct_vxlan", Count: 1}}) {
		t.Errorf("modes %v", modes)
	}
}

// A failed write is repeated; a program that another process removed is attached again.
func TestRetryAndRepair(t *testing.T) {
	k, tracks, now := &kernel{}, true, time.Now()
	f := path(k, &tracks)
	k.routes = []fabric.NodeRoute{{Prefix: rangeB, Device: "eth0", Index: 2, Bypass: true}}
	k.fails = "route 10.1.2.0/24:true"
	k.expect(t, f, &now, "attach eth0")
	if found, err := f.Audit(context.Background(), nil); len(found) > 0 || err != nil {
		t.Errorf("the audit finds %v, %v before the routes are written", found, err)
	}
	k.fails = ""
	k.expect(t, f, &now, "route 10.1.2.0/24:true")
	k.attached["eth0"] = false
	found, err := f.Audit(context.Background(), nil)
	if err != nil || len(found) != 1 || found[0].Object != "link" {
		t.Errorf("the audit finds %v, %v", found, err)
	}
	if err := f.Repair(context.Background()); err != nil || !k.attached["eth0"] {
		t.Errorf("repair: %v, attached %v", err, k.attached)
	}
}
