// SPDX-License-Identifier: Apache-2.0

package denylist

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/denymap"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/xdp"
)

// Devices selects the devices of the XDP program.
type Devices struct {
	// Auto means the devices of the default routes, while deny lists exist. Attaching can
	// interrupt a device for a moment. If the driver does not support XDP, every packet costs
	// more.
	Auto bool
	// Names are devices that always have the program. With Auto, Names is empty.
	Names []string
}

// ParseDevices parses "auto", "off", or names separated by commas.
func ParseDevices(text string) (Devices, error) {
	switch text {
	case "auto":
		return Devices{Auto: true}, nil
	case "off":
		return Devices{}, nil
	}
	var d Devices
	for _, name := range strings.Split(text, ",") {
		if name == "" || name == "." || name == ".." || len(name) >= unix.IFNAMSIZ || strings.ContainsAny(name, "/ \t") || slices.Contains(d.Names, name) {
			return Devices{}, fmt.Errorf("%q: give auto, off, or device names separated by commas", text)
		}
		d.Names = append(d.Names, name)
	}
	return d, nil
}

// Off reports whether no device has the program.
func (d Devices) Off() bool { return !d.Auto && len(d.Names) == 0 }

// Config holds the devices on which deny lists are in force, and how to open the program.
type Config struct {
	Devices Devices
	// NeverDeny are addresses that are exempt from deny lists, besides those of nodes and of this machine.
	NeverDeny []netip.Addr
	// Pins is the directory of the maps.
	Pins string
	// Open opens the program with the maps in Pins. It is called while deny lists exist.
	Open func() (*xdp.Filter, error)
}

// DenyList keeps the XDP program and its deny list on the uplinks. Its errors are problems, which do not
// affect the pods.
type DenyList struct {
	cfg    Config
	host   dataplane.Host
	filter *xdp.Filter // nil until first use
	// set is the last requested set, and requested is true if there is one. failed is the
	// reason why it is not in force; unsupported lists the entries that are not enforced as
	// requested.
	set         *model.DenySet
	requested   bool
	failed      error
	unsupported []model.Unsupported
	// written is the set that the maps hold, with the addresses in own exempt.
	written *model.DenySet
	own     []netip.Addr
	// devices are those that should have the program, by name; known since the last attach.
	devices map[string]int
	next    time.Time // time of the next check of the devices

	mu     sync.Mutex // guards the fields below, for Counters
	status dataplane.DenyStatus
	drops  *xdp.Filter
}

// checkInterval is the interval between checks of the devices, retryInterval the one after an error.
const (
	checkInterval = 10 * time.Second
	retryInterval = time.Second
)

var (
	_ dataplane.Component = (*DenyList)(nil)
	_ dataplane.Repairer  = (*DenyList)(nil)
	_ dataplane.Counter   = (*DenyList)(nil)
)

// New returns the component. If no device may have the program it removes that of an earlier agent.
func New(cfg Config, host dataplane.Host) (*DenyList, error) {
	l := &DenyList{cfg: cfg, host: host}
	if cfg.Devices.Off() {
		return l, xdp.Remove(cfg.Pins)
	}
	return l, nil
}

// Apply implements dataplane.Component. It never returns an error.
func (l *DenyList) Apply(_ context.Context, s *model.State) ([]model.Unsupported, error) {
	return l.apply(s.Deny), nil
}

// apply applies a deny set. It returns the entries that are not enforced as requested.
func (l *DenyList) apply(set *model.DenySet) []model.Unsupported {
	if l.requested && set == l.set && l.failed == nil {
		return l.unsupported
	}
	l.set, l.requested = set, true
	own, err := l.exempt()
	if err == nil {
		err = l.sync(own)
	}
	if err != nil {
		l.host.Log.Warn("deny list", "error", err)
	}
	if l.failed = err; err != nil {
		l.next = time.Now().Add(retryInterval)
	}
	l.publish()
	l.unsupported = l.report(own)
	return l.unsupported
}

// report lists the entries that are not enforced as requested.
func (l *DenyList) report(own []netip.Addr) []model.Unsupported {
	if l.set == nil {
		return nil
	}
	var why string
	switch {
	case l.cfg.Devices.Off():
		why = "XDP is switched off: start isthmus-agent with --xdp-devices auto"
	case l.failed != nil:
		why = "not enforced everywhere: " + strings.ReplaceAll(l.failed.Error(), "\n", "; ")
	}
	var all []model.Unsupported
	for _, list := range l.set.Lists {
		if why != "" {
			all = append(all, model.Unsupported{Policy: list.Origin(), Rule: -1, Construct: "spec.entries", Effect: model.Refused, Reason: why})
		}
	}
	for _, a := range own {
		if _, reported := slices.BinarySearchFunc(l.set.Exempt, a, netip.Addr.Compare); !reported {
			all = append(all, l.set.InexactEntries(a, "of this machine, or one that --never-deny names,")...)
		}
	}
	return all
}

// exempt returns the addresses that are exempt from all deny lists on this node.
func (l *DenyList) exempt() ([]netip.Addr, error) {
	if l.set == nil {
		return nil, nil
	}
	own, err := link.OwnAddresses()
	if err != nil {
		return nil, err
	}
	var listed []netip.Addr
	for _, a := range slices.Concat(own, l.cfg.NeverDeny) {
		if _, ok := l.set.Covering(a); ok && !slices.Contains(listed, a) {
			listed = append(listed, a)
		}
	}
	return listed, nil
}

// sync reconciles maps and devices with the requested set.
func (l *DenyList) sync(own []netip.Addr) error {
	cfg := l.cfg.Devices
	if cfg.Off() {
		return nil
	}
	l.next = time.Now().Add(checkInterval)
	if l.set == nil && cfg.Auto {
		return l.leave()
	}
	if l.filter == nil {
		f, err := l.cfg.Open()
		if err != nil {
			return err
		}
		l.filter = f
		for _, d := range f.Damaged() {
			l.host.Log.Warn("the deny list was damaged; it is repaired", "problem", d)
			l.host.Repaired("deny list: " + d)
		}
	}
	if l.written == nil || l.written != l.set || !slices.Equal(own, l.own) {
		l.written = nil
		l.host.Step("write deny list")
		if err := l.filter.Apply(denymap.Layout(l.set, own)); err != nil {
			return err
		}
		l.written, l.own = l.set, own
	}
	return l.attach()
}

// leave detaches the program from all devices and removes the list.
func (l *DenyList) leave() error {
	l.written = nil
	if l.filter != nil {
		l.mu.Lock()
		l.drops = nil
		l.mu.Unlock()
		l.filter.Close()
		l.filter = nil
	}
	return xdp.Remove(l.cfg.Pins)
}

// attach attaches the program to exactly the wanted devices.
func (l *DenyList) attach() error {
	names := l.cfg.Devices.Names
	var errs []error
	if l.cfg.Devices.Auto {
		var err error
		if names, err = link.DefaultInterfaces(); err != nil {
			return err
		}
		if len(names) == 0 {
			errs = append(errs, errors.New("no device has a default route: name the uplinks with --xdp-devices"))
		}
	}
	have, err := xdp.Attached(xdp.Links(l.cfg.Pins))
	if err != nil {
		return err
	}
	for _, name := range have {
		if !slices.Contains(names, name) {
			l.host.Step("detach XDP")
			errs = append(errs, l.filter.Detach(name))
		}
	}
	l.devices = make(map[string]int)
	for _, name := range names {
		index, err := link.Index(name)
		if err == nil {
			l.devices[name] = index
			l.host.Step("attach XDP")
			var native error
			native, err = l.filter.Attach(name, index)
			if native != nil && err == nil {
				l.host.Log.Warn("the driver supports no XDP program; using the generic hook of the kernel", "device", name, "error", native)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("XDP on %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// Sync implements dataplane.Component. It checks the devices periodically, because devices and default
// routes change, and retries after errors. Problems are in the DenyStatus, so it returns none.
func (l *DenyList) Sync(_ context.Context, now time.Time) error {
	if l.filter == nil && l.failed == nil || now.Before(l.next) {
		return nil
	}
	own, err := l.exempt()
	if err == nil {
		err = l.sync(own)
	}
	if err != nil && (l.failed == nil || err.Error() != l.failed.Error()) {
		l.host.Log.Warn("deny list", "error", err)
	}
	if l.failed = err; err != nil {
		l.next = time.Now().Add(retryInterval)
	}
	l.publish()
	return nil
}

// Problems returns nil: the DenyStatus of Counters has the problems.
func (l *DenyList) Problems() []string { return nil }

// Audit implements dataplane.Auditor.
func (l *DenyList) Audit(context.Context, *model.State) ([]dataplane.Drift, error) {
	found, err := l.audit()
	return loader.Drifts(found), err
}

// audit audits the program and the deny list.
func (l *DenyList) audit() ([]loader.Finding, error) {
	if l.filter == nil || l.written == nil && l.set != nil || l.failed != nil {
		return nil, nil // sync will write everything
	}
	return l.filter.Audit(denymap.Layout(l.set, l.own), l.devices)
}

// Repair implements dataplane.Repairer.
func (l *DenyList) Repair(context.Context) error {
	found, err := l.audit()
	if err != nil || len(found) == 0 {
		return err
	}
	if err := l.filter.Repair(); err != nil {
		return err
	}
	if err := l.filter.Apply(denymap.Layout(l.set, l.own)); err != nil {
		l.written = nil
		return err
	}
	return l.attach()
}

// publish makes the current state visible to Counters.
func (l *DenyList) publish() {
	var s dataplane.DenyStatus
	if l.filter != nil {
		if e := l.filter.Entries(); e != nil {
			s.Entries = e.Count()
		}
		names, err := xdp.Attached(xdp.Links(l.cfg.Pins))
		if err != nil {
			s.Problems = append(s.Problems, err.Error())
		}
		for _, name := range names {
			mode := "none"
			if index, err := link.Index(name); err == nil {
				if mode, err = link.XDPMode(index); err != nil {
					mode = "none"
				}
			}
			s.Devices = append(s.Devices, dataplane.DenyDevice{Name: name, Mode: mode})
		}
	}
	if l.failed != nil {
		s.Problems = append(s.Problems, "deny list: "+strings.ReplaceAll(l.failed.Error(), "\n", "; "))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status, l.drops = s, l.filter
}

// Count implements dataplane.Counter. It adds the status of the deny list, and the dropped packets.
func (l *DenyList) Count(c *dataplane.Counters) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.Deny = l.status
	var d xdp.Drops
	if l.drops != nil {
		var err error
		if d, err = l.drops.Drops(); err != nil {
			return err
		}
	}
	c.Drops["deny_list_ipv4"], c.Drops["deny_list_ipv6"] = d.Denied[0], d.Denied[1]
	c.Drops["uplink_malformed"] = d.Malformed
	return nil
}

// PathModes reports where the XDP program runs.
func (l *DenyList) PathModes() []dataplane.PathMode {
	if len(l.status.Devices) == 0 {
		return []dataplane.PathMode{{Part: "uplinks", Mode: "off", Count: 1}}
	}
	modes := make(map[string]int)
	for _, d := range l.status.Devices {
		modes[d.Mode]++
	}
	return dataplane.CountModes("uplinks", modes)
}

// Close implements dataplane.Component. The program continues to drop packets.
func (l *DenyList) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drops = nil
	if l.filter == nil {
		return nil
	}
	err := l.filter.Close()
	l.filter = nil
	return err
}
