// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
)

// Fabric keeps a node's fabric as planned. It is used from one goroutine.
type Fabric struct {
	cfg    fabric.Config
	uplink string
	host   dataplane.Host

	input fabric.Input // of the next plan

	plan   *fabric.Plan
	tunnel int // index of the tunnel device, 0 without one
	// foreign are ranges for which another process has a route.
	foreign map[netip.Prefix]bool
	// found is the uplink that the plan uses.
	found    Uplink
	compared fabric.Comparison
	failed   bool // the last attempt, at least in part
}

var (
	_ dataplane.Component = (*Fabric)(nil)
	_ dataplane.Repairer  = (*Fabric)(nil)
)

// New prepares a Fabric over the named uplink, or over that of the default route if the name is
// empty. It changes nothing. The Config must be valid.
func New(cfg fabric.Config, uplink string, host dataplane.Host) *Fabric {
	return &Fabric{cfg: cfg, uplink: uplink, host: host}
}

// MTU returns the present MTU of pods.
func (f *Fabric) MTU(u Uplink) int {
	outer6 := true
	for _, a := range u.Addresses() {
		outer6 = outer6 && a.Is6()
	}
	return f.cfg.PodMTU(u.MTU, outer6)
}

// Apply implements dataplane.Component. It reconciles the fabric with the State, unless the section equals
// that of the last call. A failure is a problem, never an error: pods of this node reach each other
// without the fabric.
func (f *Fabric) Apply(_ context.Context, s *model.State) ([]model.Unsupported, error) {
	self := fabric.Self{Name: s.Node, PodCIDRs: s.Fabric.PodCIDRs, Addresses: s.Fabric.NodeAddresses}
	if f.input.Set(self, s.Fabric.Routes) {
		f.sync(time.Now(), false)
	}
	return nil, nil
}

// Sync implements dataplane.Component. It checks whether the uplink has changed, and periodically whether
// the system matches the plan, and repairs it.
func (f *Fabric) Sync(_ context.Context, now time.Time) error {
	if !f.input.Known {
		return nil
	}
	u, err := FindUplink(f.uplink)
	if moved := err == nil && !u.same(f.found); moved || !now.Before(f.compared.Due) {
		f.sync(now, true)
	}
	return nil
}

// Sources are the node's own addresses on the uplink, one per IP version.
func (f *Fabric) Sources() []netip.Addr { return f.found.Addresses() }

// Problems describes each difference from the plan, with its remedy.
func (f *Fabric) Problems() []string { return f.compared.Problems }

// NodeInfo returns the endpoint of tunnels. Other nodes derive the MAC from the node's name.
func (f *Fabric) NodeInfo() model.NodeInfo {
	if f.plan == nil || f.plan.Tunnel == nil {
		return model.NodeInfo{}
	}
	return model.NodeInfo{Tunnel: f.plan.Tunnel.Local}
}

// Hops are the pod ranges of other nodes, and how they are reached.
func (f *Fabric) Hops() []fabric.Hop {
	if f.plan == nil {
		return nil
	}
	return f.plan.Hops
}

// PathModes reports how packets from pods to destinations outside the cluster leave: with the pod's address or
// the node's.
func (f *Fabric) PathModes() []dataplane.PathMode {
	mode := "stack"
	if f.plan != nil && f.plan.NAT != nil {
		mode = "stack_masquerade"
	}
	return []dataplane.PathMode{{Part: "outside", Mode: mode, Count: 1}}
}

// Senders are the nodes that send to this one by tunnel.
func (f *Fabric) Senders() []fabric.Sender {
	if f.plan == nil {
		return nil
	}
	return f.plan.Senders
}

// Close does nothing: the fabric stays.
func (f *Fabric) Close() error { return nil }

// sync computes a plan and applies it. In an audit the plan is unchanged, so every necessary
// change repairs what another process did.
func (f *Fabric) sync(now time.Time, audit bool) {
	uplink, err := FindUplink(f.uplink)
	if err != nil {
		f.failed = true
		f.report(now, []string{err.Error()})
		return // the installed state stays
	}
	f.found = uplink
	self := f.input.Self
	self.Underlay, self.MTU = uplink.Prefixes, uplink.MTU
	plan := fabric.Make(f.cfg, self, f.input.Peers)
	c := &changes{foreign: make(map[netip.Prefix]bool)}
	f.tunnel = c.apply(plan, uplink, f.cfg.Mode)
	f.foreign = c.foreign
	if audit && !f.failed && reflect.DeepEqual(f.plan, plan) {
		for _, done := range c.done {
			f.host.Repaired(done)
			f.host.Log.Warn("repaired what another process changed", "change", done)
		}
	} else if len(c.done) > 0 {
		f.host.Log.Info("fabric", "mode", f.cfg.Mode, "hops", len(plan.Hops), "changes", len(c.done))
	}
	f.plan, f.failed = plan, len(c.errs) > 0
	problems := slices.Clone(plan.Problems)
	for _, err := range c.errs {
		problems = append(problems, err.Error())
	}
	f.report(now, problems)
}

func (f *Fabric) report(now time.Time, problems []string) {
	for _, p := range f.compared.Done(now, problems) {
		f.host.Log.Error("fabric", "problem", p)
	}
}

// changes collects changes and failures.
type changes struct {
	done []string
	errs []error
	// foreign are ranges for which another process has a route.
	foreign map[netip.Prefix]bool
}

// do records the outcome of a change.
func (c *changes) do(what string, err error) {
	if err != nil {
		c.errs = append(c.errs, fmt.Errorf("%s: %w", what, err))
		return
	}
	c.done = append(c.done, what)
}

func (c *changes) fail(err error) { c.errs = append(c.errs, err) }

// apply applies the plan. Everything that packets need on a route comes before the route
// itself. It returns the index of the tunnel device, 0 without one.
func (c *changes) apply(p *fabric.Plan, uplink Uplink, mode fabric.Mode) (tunnel int) {
	if mode != fabric.None {
		c.forwarding(uplink.Name, slices.ContainsFunc(p.Own, isIPv6))
	}
	c.nat(p.NAT)
	tunnel = c.tunnel(p.Tunnel)
	if tunnel != 0 {
		c.neighbours(tunnel, hopsByTunnel(p))
	}
	c.routes(wantedRoutes(p, uplink, tunnel))
	if tunnel != 0 && len(p.Returns) > 0 {
		c.rules(p.Own)
	} else {
		c.rules(nil)
	}
	return tunnel
}

// forwarding turns on forwarding. The uplink keeps accepting router advertisements if it did so
// before, because forwarding would stop that.
func (c *changes) forwarding(uplink string, v6 bool) {
	turnOn := func(path string) {
		if now, err := os.ReadFile("/proc/sys/net/" + path); err != nil || string(now) == "1\n" {
			return
		}
		c.do("turn on net/"+path, link.WriteSysctls([]link.Sysctl{{Path: path, Value: "1"}}))
	}
	turnOn("ipv4/ip_forward")
	turnOn("ipv4/conf/" + uplink + "/forwarding")
	if !v6 {
		return
	}
	ra := "ipv6/conf/" + uplink + "/accept_ra"
	if now, err := os.ReadFile("/proc/sys/net/" + ra); err == nil && string(now) == "1\n" {
		if err := link.WriteSysctls([]link.Sysctl{{Path: ra, Value: "2"}}); err != nil {
			c.fail(err)
		}
	}
	turnOn("ipv6/conf/all/forwarding")
}

// Audit implements dataplane.Auditor. It finds forwarding sysctls with wrong values; Sync checks routes,
// tunnels and nftables rules.
func (f *Fabric) Audit(context.Context, *model.State) (found []dataplane.Drift, _ error) {
	if f.plan == nil || f.cfg.Mode == fabric.None {
		return nil, nil
	}
	want := []link.Sysctl{{Path: "ipv4/ip_forward", Value: "1"}, {Path: "ipv4/conf/" + f.found.Name + "/forwarding", Value: "1"}}
	if slices.ContainsFunc(f.plan.Own, isIPv6) {
		want = append(want, link.Sysctl{Path: "ipv6/conf/all/forwarding", Value: "1"})
	}
	for _, problem := range link.CheckSysctls(want) {
		found = append(found, dataplane.Drift{Object: "sysctl", Detail: problem})
	}
	return found, nil
}

// Repair implements dataplane.Repairer. It reconciles everything with the plan immediately.
func (f *Fabric) Repair(context.Context) error {
	if f.input.Known {
		f.sync(time.Now(), true)
	}
	return nil
}

// Cleanup removes the fabric from this node. Forwarding stays on, because other software may
// depend on it.
func Cleanup() error {
	c := &changes{foreign: make(map[netip.Prefix]bool)}
	c.nat(nil)
	c.routes(nil)
	c.rules(nil)
	c.tunnel(nil)
	return errors.Join(c.errs...)
}
