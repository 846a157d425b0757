// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	commonfabric "github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/fabric"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// Forwarding is the path of packets between pods of different nodes through a node.
type Forwarding string

const (
	// Direct is the fast path, for packets that netfilter and connection tracking need not see.
	Direct Forwarding = "direct"
	// Stack is the host stack, with its netfilter.
	Stack Forwarding = "stack"
)

// Programs are the programs and maps of the fast path. A loader.DataPath implements them.
type Programs interface {
	// Older returns the older layout whose programs still decide; empty if there is none.
	Older() string
	// AttachNode attaches from_node to a device by a link, DetachNode detaches it, and NodeLinks lists the
	// devices that have one.
	AttachNode(name string, ifindex int) error
	DetachNode(name string) error
	NodeLinks() ([]string, error)
	AuditNodeLink(name string, ifindex int) ([]loader.Finding, error)
	RepairNodeLink(name string, ifindex int) error
	// SetNodeRoutes writes the node routes.
	SetNodeRoutes(map[netip.Prefix]loader.NodeRoute) error
}

// Routes are the node routes of the fabric. A fabric.Fabric implements them.
type Routes interface {
	NodeRoutes() (all []fabric.NodeRoute, known bool, err error)
	Hops() []commonfabric.Hop
}

// Config configures the fast path of a node.
type Config struct {
	Forwarding Forwarding
	// ByLinks is true if programs are attached by tcx links, not as classifiers.
	ByLinks bool
	// FromNode returns the descriptor of from_node, for classifiers.
	FromNode func() int
	// Track loads programs that query connection tracking, if possible, and reports whether all programs
	// do. Without them no packet may use the fast path.
	Track func() (bool, error)
}

// FastPath keeps from_node attached to the devices that lead to other nodes, and the node routes in the
// maps. Until both are complete, packets use the host stack.
type FastPath struct {
	cfg      Config
	programs Programs
	routes   Routes
	host     dataplane.Host
	tracking bool // all programs query connection tracking
	now      wantedRoutes
	synced   bool // maps and devices match the fabric
	failed   string
	due      time.Time
}

var (
	_ dataplane.Component = (*FastPath)(nil)
	_ dataplane.Repairer  = (*FastPath)(nil)
)

// New returns the component. tracking is true if all programs query connection tracking.
func New(cfg Config, programs Programs, routes Routes, tracking bool, host dataplane.Host) *FastPath {
	return &FastPath{cfg: cfg, programs: programs, routes: routes, tracking: tracking, host: host}
}

// period is the interval between checks of the devices when no change is known.
const period = time.Second

// Apply implements dataplane.Component. The fabric must have been applied before.
func (f *FastPath) Apply(ctx context.Context, _ *model.State) ([]model.Unsupported, error) {
	return nil, f.Sync(ctx, time.Now())
}

// Sync implements dataplane.Component. It reconciles devices and node routes with the fabric. It logs
// errors and returns none, because packets then use the host stack.
func (f *FastPath) Sync(_ context.Context, now time.Time) error {
	if now.Before(f.due) {
		return nil
	}
	f.due = now.Add(period)
	err := errors.Join(f.track(), f.sync())
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != f.failed {
		f.host.Log.Warn("packets between nodes go through the host stack", "error", strings.ReplaceAll(text, "\n", "; "))
	}
	f.failed = text
	return nil
}

// track loads programs that query connection tracking, once its kernel module is loaded.
func (f *FastPath) track() (err error) {
	if !f.tracking && f.programs.Older() == "" {
		f.tracking, err = f.cfg.Track()
	}
	return err
}

// wanted returns the devices that need from_node, and the node routes. Under an older layout no
// packet uses the fast path, because the older programs do not know such flows.
func (f *FastPath) wanted() (w wantedRoutes, known bool, err error) {
	w = wantedRoutes{make(map[string]int), make(map[netip.Prefix]loader.NodeRoute)}
	may := f.cfg.Forwarding == Direct && f.tracking && f.programs.Older() == ""
	all, known, err := f.routes.NodeRoutes()
	for _, one := range all {
		w.routes[one.Prefix] = loader.NodeRoute{Index: one.Index, Direct: may && one.Bypass}
		if may && one.Bypass {
			w.devices[one.Device] = one.Index
		}
	}
	return w, known, err
}

// wantedRoutes are the devices that need the program, and the node routes.
type wantedRoutes struct {
	devices map[string]int
	routes  map[netip.Prefix]loader.NodeRoute
}

// direct counts the node routes that allow the fast path.
func (w wantedRoutes) direct() (n int) {
	for _, route := range w.routes {
		if route.Direct {
			n++
		}
	}
	return n
}

// sync attaches programs before it writes node routes, and removes node routes before it
// detaches programs. Otherwise answers of fast-path flows would reach the host stack.
func (f *FastPath) sync() error {
	w, known, err := f.wanted()
	if err != nil || !known {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(w.devices)) {
		if err := f.attach(name, w.devices[name]); err != nil {
			return err
		}
	}
	if f.synced && maps.Equal(w.devices, f.now.devices) && maps.Equal(w.routes, f.now.routes) {
		return nil
	}
	f.synced = false
	f.host.Step("write node routes")
	if err := f.programs.SetNodeRoutes(w.routes); err != nil {
		return err
	}
	f.host.Step("detach from devices")
	if err := f.detach(w.devices); err != nil {
		return err
	}
	if w.direct() != f.now.direct() {
		f.host.Log.Info("packets to pods of other nodes bypass the host stack", "ranges", w.direct(), "devices", slices.Sorted(maps.Keys(w.devices)))
	}
	f.now, f.synced = w, true
	return nil
}

func (f *FastPath) attach(name string, index int) error {
	if f.cfg.ByLinks {
		return f.programs.AttachNode(name, index)
	}
	if f.synced {
		if has, err := link.HasNodeClassifier(index); err != nil || has {
			return err
		}
	}
	return link.SetNodeClassifier(index, f.cfg.FromNode())
}

// detach detaches the program from all devices except those in keep.
func (f *FastPath) detach(keep map[string]int) error {
	if !f.cfg.ByLinks {
		indices := make(map[int]bool)
		for _, index := range keep {
			indices[index] = true
		}
		return link.DropNodeClassifiers(indices)
	}
	have, err := f.programs.NodeLinks()
	if err != nil {
		return err
	}
	for _, name := range have {
		if _, ok := keep[name]; ok {
			continue
		}
		if err := f.programs.DetachNode(name); err != nil {
			return err
		}
	}
	return nil
}

// Problems returns nil: without the fast path packets use the host stack.
func (f *FastPath) Problems() []string { return nil }

// PathModes counts the pod ranges of other nodes by the path of their packets.
func (f *FastPath) PathModes() []dataplane.PathMode {
	modes := make(map[string]int)
	for _, h := range f.routes.Hops() {
		mode := Stack
		if f.now.routes[h.Prefix].Direct {
			mode = Direct
		}
		modes[string(mode)+"_"+string(h.Via)]++
	}
	return dataplane.CountModes("other_nodes", modes)
}

// Close does nothing: programs and node routes stay.
func (f *FastPath) Close() error { return nil }
