// SPDX-License-Identifier: Apache-2.0

package hostfabric

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hostroute"
)

// Metric is the metric of the routes of this package. No other program is known to use it.
const Metric = 7300

// Config describes the host's part of a network.
type Config struct {
	// Mode is Auto, Routes or None. Auto reports nodes beyond the segment, because an L2Bridge network has
	// no tunnels. Routes leaves them to the routers of the network. None removes what another mode
	// installed.
	Mode fabric.Mode
	// Overlay is true for an overlay network, for which only the MTU is checked.
	Overlay bool
	// PodCIDRs are the pod ranges of the node, Gateways the host's addresses in them, the next hops of pods.
	PodCIDRs []netip.Prefix
	Gateways []netip.Addr
	// File remembers which forwarding flags were turned on.
	File string
	// Stack is that of the host.
	Stack hostroute.Stack
}

// HostFabric keeps the routes and the forwarding of a host. It is used from one goroutine, except for
// Count.
type HostFabric struct {
	cfg   Config
	host  dataplane.Host
	input fabric.Input // of the next plan

	// last is the intent of the last comparison.
	last     *intent
	compared fabric.Comparison
	failed   bool // the last attempt, at least in part
	// damaged says that File was not readable once; "" if it always was.
	damaged string

	facts   []string
	repairs atomic.Uint64
}

var (
	_ dataplane.Component = (*HostFabric)(nil)
	_ dataplane.Auditor   = (*HostFabric)(nil)
	_ dataplane.Counter   = (*HostFabric)(nil)
	_ dataplane.Describer = (*HostFabric)(nil)
)

// New returns the component. It changes nothing.
func New(cfg Config, host dataplane.Host) *HostFabric { return &HostFabric{cfg: cfg, host: host} }

// Apply implements dataplane.Component. It reconciles the host with the State, unless the section equals
// that of the last call. A failure is a problem, never an error: pods of this node reach each other without
// the host.
func (f *HostFabric) Apply(_ context.Context, s *model.State) ([]model.Unsupported, error) {
	self := fabric.Self{Name: s.Node, PodCIDRs: f.cfg.PodCIDRs, Addresses: s.Fabric.NodeAddresses}
	if f.input.Set(self, s.Fabric.Routes) {
		f.sync(time.Now(), false)
	}
	return nil, nil
}

// Sync implements dataplane.Component. It periodically compares the host with the plan and repairs it.
func (f *HostFabric) Sync(_ context.Context, now time.Time) error {
	if f.input.Known && !now.Before(f.compared.Due) {
		f.sync(now, true)
	}
	return nil
}

// Audit implements dataplane.Auditor. The next Sync repairs what it finds.
func (f *HostFabric) Audit(context.Context, *model.State) (found []dataplane.Drift, _ error) {
	if !f.input.Known || f.failed {
		return nil, nil // Problems reports the reason
	}
	now, err := read(f.cfg.Stack)
	if err != nil {
		return nil, err
	}
	want := f.intent(now)
	todo := now.compare(want)
	for _, r := range todo.add {
		found = append(found, dataplane.Drift{Object: "host route", Detail: "missing: " + text(r)})
	}
	for _, r := range todo.remove {
		found = append(found, dataplane.Drift{Object: "host route", Detail: "stray: " + text(r)})
	}
	for _, k := range todo.turnOn {
		found = append(found, dataplane.Drift{Object: "forwarding", Detail: fmt.Sprintf("%s forwarding of interface %q is off", k.Family, k.Interface)})
	}
	if len(found) > 0 {
		f.compared.Due = time.Time{}
	}
	return found, nil
}

// Problems implements dataplane.Component.
func (f *HostFabric) Problems() []string { return f.compared.Problems }

// Facts implements dataplane.Describer.
func (f *HostFabric) Facts() []string { return f.facts }

// MTU returns the smallest MTU of the interfaces with the node's addresses, in bytes; 0 before they are known. Windows gives
// it to pods of an L2Bridge network.
func (f *HostFabric) MTU() (mtu int) {
	if f.last == nil {
		return 0
	}
	for _, i := range f.last.uplinks {
		if mtu == 0 || i.MTU < mtu {
			mtu = i.MTU
		}
	}
	return mtu
}

// PathModes returns nil: Facts has the details.
func (f *HostFabric) PathModes() []dataplane.PathMode { return nil }

// Count implements dataplane.Counter.
func (f *HostFabric) Count(c *dataplane.Counters) error {
	c.Repairs += f.repairs.Load()
	return nil
}

// Close does nothing: routes and forwarding stay.
func (f *HostFabric) Close() error { return nil }

// sync compares the host with a new plan and changes what differs. In an audit the plan is unchanged, so
// every change repairs what another process did.
func (f *HostFabric) sync(now time.Time, audit bool) {
	have, err := read(f.cfg.Stack)
	if err != nil {
		f.failed = true
		f.report(now, []string{err.Error()})
		return // the installed routes stay
	}
	want := f.intent(have)
	c := &changes{stack: f.cfg.Stack, step: f.host.Step, file: f.cfg.File}
	have = c.apply(have, want)
	f.host.Log.Debug("host fabric compared", "audit", audit, "changes", len(c.done))
	if audit && !f.failed && f.last.same(want) {
		for _, done := range c.done {
			f.repairs.Add(1)
			f.host.Log.Warn("repaired what another process changed", "change", done)
		}
	} else if len(c.done) > 0 {
		f.host.Log.Info("host fabric", "mode", f.cfg.Mode, "routes", len(want.routes), "changes", strings.Join(c.done, "; "))
	}
	f.last, f.failed = want, len(c.errs) > 0
	problems := append(slices.Clone(want.problems), c.errs...)
	if f.damaged = cmp.Or(c.damaged, f.damaged); f.damaged != "" {
		problems = append(problems, f.damaged)
	}
	f.facts = f.describe(have, want)
	f.report(now, append(problems, have.conflicts(want)...))
}

func (f *HostFabric) report(now time.Time, problems []string) {
	for _, p := range f.compared.Done(now, problems) {
		f.host.Log.Error("host fabric", "problem", p)
	}
}

// describe returns the lines of status.
func (f *HostFabric) describe(have *present, want *intent) []string {
	var facts []string
	switch {
	case f.cfg.Overlay:
	case f.cfg.Mode == fabric.None:
		facts = append(facts, "fabric routes: left to others (--fabric=none)")
	default:
		inForce := 0
		for _, r := range want.routes {
			if have.holds(r) {
				inForce++
			}
		}
		forwarding := "on"
		if off := have.off(want.forwarding); len(off) > 0 || len(want.forwarding) == 0 {
			forwarding = "off"
		}
		facts = append(facts, fmt.Sprintf("fabric routes: %d of %d in force, forwarding %s", inForce, len(want.routes), forwarding))
	}
	for _, i := range want.uplinks {
		facts = append(facts, fmt.Sprintf("uplink MTU: %d on %q; HNS itself chooses that of pods", i.MTU, i.Name))
	}
	return facts
}
