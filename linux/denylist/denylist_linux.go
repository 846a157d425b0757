// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/denylist"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/xdp"
)

// XDPDevices selects the devices of the XDP program.
type XDPDevices struct {
	// Auto means the devices of the default routes, while deny lists exist. Attaching can
	// interrupt a device for a moment. If the driver does not support XDP, every packet costs
	// more.
	Auto bool
	// Names are devices that always have the program. With Auto, Names is empty.
	Names []string
}

// ParseXDPDevices parses "auto", "off", or names separated by commas.
func ParseXDPDevices(text string) (XDPDevices, error) {
	switch text {
	case "auto":
		return XDPDevices{Auto: true}, nil
	case "off":
		return XDPDevices{}, nil
	}
	var d XDPDevices
	for _, name := range strings.Split(text, ",") {
		if name == "" || name == "." || name == ".." || len(name) >= unix.IFNAMSIZ || strings.ContainsAny(name, "/ \t") || slices.Contains(d.Names, name) {
			return XDPDevices{}, fmt.Errorf("%q: give auto, off, or device names separated by commas", text)
		}
		d.Names = append(d.Names, name)
	}
	return d, nil
}

// Off reports whether no device has the program.
func (d XDPDevices) Off() bool { return !d.Auto && len(d.Names) == 0 }

// uplinks keeps the XDP program and its deny list on the uplinks. It reports errors, which do
// not affect the pods.
type uplinks struct {
	backend *Backend
	pins    string      // directory of the maps
	filter  *xdp.Filter // nil until first use
	// set is the last requested set, and asked says that one was requested. failed is the
	// reason why it is not in force; unsupported lists the entries that are not enforced as
	// requested.
	set         *model.DenySet
	asked       bool
	failed      error
	unsupported []model.Unsupported
	// laid is the set that the maps hold, with the addresses in own exempt.
	laid *model.DenySet
	own  []netip.Addr
	// devices are those that should have the program, by name; known since the last attach.
	devices map[string]int
	again   time.Time // time of the next check of the devices

	mu     sync.Mutex // guards the fields below, for Counters
	status dataplane.DenyStatus
	drops  *xdp.Filter
}

// lookAfter is the interval between checks of the devices, retry the interval after an error.
const (
	lookAfter = 10 * time.Second
	retry     = time.Second
)

func newUplinks(b *Backend) (*uplinks, error) {
	u := &uplinks{backend: b, pins: filepath.Join(b.cfg.BPFFS, loader.LayoutVersion)}
	if b.cfg.XDP.Off() {
		return u, xdp.Remove(u.pins)
	}
	return u, nil
}

// apply applies a deny set. It returns the entries that are not enforced as requested.
func (u *uplinks) apply(set *model.DenySet) []model.Unsupported {
	if u.asked && set == u.set && u.failed == nil {
		return u.unsupported
	}
	u.set, u.asked = set, true
	own, err := u.spared()
	if err == nil {
		err = u.settle(own)
	}
	if err != nil {
		u.backend.log.Warn("deny list", "error", err)
	}
	if u.failed = err; err != nil {
		u.again = time.Now().Add(retry)
	}
	u.publish()
	u.unsupported = u.report(own)
	return u.unsupported
}

// report lists the entries that are not enforced as requested.
func (u *uplinks) report(own []netip.Addr) []model.Unsupported {
	if u.set == nil {
		return nil
	}
	var why string
	switch {
	case u.backend.cfg.XDP.Off():
		why = "XDP is switched off: start isthmus-agent with --xdp-devices auto"
	case u.failed != nil:
		why = "not enforced everywhere: " + strings.ReplaceAll(u.failed.Error(), "\n", "; ")
	}
	var all []model.Unsupported
	for _, l := range u.set.Lists {
		if why != "" {
			all = append(all, model.Unsupported{Policy: l.Origin(), Rule: -1, Construct: "spec.entries", Effect: model.Refused, Reason: why})
		}
	}
	for _, a := range own {
		if _, reported := slices.BinarySearchFunc(u.set.Spared, a, netip.Addr.Compare); !reported {
			all = append(all, u.set.Sparings(a, "of this machine, or one that --never-deny names,")...)
		}
	}
	for i := range all {
		all[i].OS, all[i].Platform = u.backend.features.OS, u.backend.features.Platform
	}
	return all
}

// spared returns the addresses that are exempt from all deny lists on this node.
func (u *uplinks) spared() ([]netip.Addr, error) {
	if u.set == nil {
		return nil, nil
	}
	own, err := link.OwnAddresses()
	if err != nil {
		return nil, err
	}
	var listed []netip.Addr
	for _, a := range slices.Concat(own, u.backend.cfg.NeverDeny) {
		if _, ok := u.set.Covering(a); ok && !slices.Contains(listed, a) {
			listed = append(listed, a)
		}
	}
	return listed, nil
}

// settle reconciles maps and devices with the requested set.
func (u *uplinks) settle(own []netip.Addr) error {
	cfg := u.backend.cfg.XDP
	if cfg.Off() {
		return nil
	}
	u.again = time.Now().Add(lookAfter)
	if u.set == nil && cfg.Auto {
		return u.leave()
	}
	if u.filter == nil {
		f, err := xdp.Open(u.pins, u.backend.path.Shared(), u.backend.path.Constants())
		if err != nil {
			return err
		}
		u.filter = f
		for _, d := range f.Damaged() {
			u.backend.log.Warn("the deny list was damaged; it is repaired", "problem", d)
			u.backend.mended.Add(1)
		}
	}
	if u.laid == nil || u.laid != u.set || !slices.Equal(own, u.own) {
		u.laid = nil
		u.backend.step("write deny list")
		if err := u.filter.Apply(denylist.Layout(u.set, own)); err != nil {
			return err
		}
		u.laid, u.own = u.set, own
	}
	return u.attach()
}

// leave detaches the program from all devices and removes the list.
func (u *uplinks) leave() error {
	u.laid = nil
	if u.filter != nil {
		u.mu.Lock()
		u.drops = nil
		u.mu.Unlock()
		u.filter.Close()
		u.filter = nil
	}
	return xdp.Remove(u.pins)
}

// attach attaches the program to exactly the wanted devices.
func (u *uplinks) attach() error {
	names := u.backend.cfg.XDP.Names
	var errs []error
	if u.backend.cfg.XDP.Auto {
		var err error
		if names, err = link.DefaultInterfaces(); err != nil {
			return err
		}
		if len(names) == 0 {
			errs = append(errs, errors.New("no device has a default route: name the uplinks with --xdp-devices"))
		}
	}
	have, err := xdp.Attached(xdp.Links(u.pins))
	if err != nil {
		return err
	}
	for _, name := range have {
		if !slices.Contains(names, name) {
			u.backend.step("detach XDP")
			errs = append(errs, u.filter.Detach(name))
		}
	}
	u.devices = make(map[string]int)
	for _, name := range names {
		index, err := link.Index(name)
		if err == nil {
			u.devices[name] = index
			u.backend.step("attach XDP")
			var native error
			native, err = u.filter.Attach(name, index)
			if native != nil && err == nil {
				u.backend.log.Warn("the driver supports no XDP program; using the generic hook of the kernel", "device", name, "error", native)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("XDP on %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// tend checks the devices periodically, because devices and default routes change. It retries
// after errors.
func (u *uplinks) tend() {
	if u.filter == nil && u.failed == nil || time.Now().Before(u.again) {
		return
	}
	own, err := u.spared()
	if err == nil {
		err = u.settle(own)
	}
	if err != nil && (u.failed == nil || err.Error() != u.failed.Error()) {
		u.backend.log.Warn("deny list", "error", err)
	}
	if u.failed = err; err != nil {
		u.again = time.Now().Add(retry)
	}
	u.publish()
}

// audit audits the program and the deny list.
func (u *uplinks) audit() ([]loader.Finding, error) {
	if u.filter == nil || u.laid == nil && u.set != nil || u.failed != nil {
		return nil, nil // settle will write everything
	}
	return u.filter.Audit(denylist.Layout(u.set, u.own), u.devices)
}

// repair repairs what audit finds.
func (u *uplinks) repair() error {
	found, err := u.audit()
	if err != nil || len(found) == 0 {
		return err
	}
	if err := u.filter.Repair(); err != nil {
		return err
	}
	if err := u.filter.Apply(denylist.Layout(u.set, u.own)); err != nil {
		u.laid = nil
		return err
	}
	return u.attach()
}

// publish makes the present state visible to Counters.
func (u *uplinks) publish() {
	var s dataplane.DenyStatus
	if u.filter != nil {
		if e := u.filter.Entries(); e != nil {
			s.Entries = e.Count()
		}
		names, err := xdp.Attached(xdp.Links(u.pins))
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
	if u.failed != nil {
		s.Problems = append(s.Problems, "deny list: "+strings.ReplaceAll(u.failed.Error(), "\n", "; "))
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.status, u.drops = s, u.filter
}

// count adds the counters of uplinks to the totals. Any goroutine may call it.
func (u *uplinks) count(c *dataplane.Counters) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	c.Deny = u.status
	c.PathModes = append(c.PathModes, u.pathModes()...)
	var d xdp.Drops
	if u.drops != nil {
		var err error
		if d, err = u.drops.Drops(); err != nil {
			return err
		}
	}
	c.Drops["deny_list_ipv4"], c.Drops["deny_list_ipv6"] = d.Denied[0], d.Denied[1]
	c.Drops["uplink_malformed"] = d.Malformed
	return nil
}

// pathModes returns where the XDP program runs.
func (u *uplinks) pathModes() []dataplane.PathMode {
	if len(u.status.Devices) == 0 {
		return []dataplane.PathMode{{Part: "uplinks", Mode: "off", Count: 1}}
	}
	modes := make(map[string]int)
	for _, d := range u.status.Devices {
		modes[d.Mode]++
	}
	return counted("uplinks", modes)
}

func (u *uplinks) close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.drops = nil
	if u.filter == nil {
		return nil
	}
	err := u.filter.Close()
	u.filter = nil
	return err
}
