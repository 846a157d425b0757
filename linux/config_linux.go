// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/denylist"
	"github.com/isthmus-net/isthmus/linux/fastpath"
	"github.com/isthmus-net/isthmus/linux/hostport"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// Config holds the choices of a node's administrator.
type Config struct {
	// BPFFS is the directory for pins, on a mounted bpffs. Only one agent may use it.
	BPFFS string
	// PolicyOnly enforces policy on interfaces that another CNI plugin made, and does nothing else. The fields
	// Uplink, Fabric, Forwarding and HostPortsFromNode have no meaning then.
	PolicyOnly bool
	// ObserveNode passes packets that the programs would drop without knowing their pod. PolicyOnly only.
	ObserveNode bool
	// StateDir is the directory of the registry of such interfaces.
	StateDir string
	// Uplink is the interface to other nodes. Empty means the interface of the default route.
	Uplink string
	// Fabric configures how the node reaches pods of other nodes, and the MTU.
	Fabric fabric.Config
	// Forwarding is the path of packets between pods of different nodes through this node.
	Forwarding fastpath.Forwarding
	// HostPortsFromNode selects the node's own connections to host ports that go to pods.
	HostPortsFromNode hostport.FromNode
	// XDP selects the devices that enforce deny lists.
	XDP denylist.Devices
	// NeverDeny are addresses that are exempt from deny lists, in addition to those of nodes.
	NeverDeny []netip.Addr
	// Timeouts of idle flows.
	Timeouts loader.Timeouts
	// Events limits the flow events about new flows and drops.
	Events loader.Events
	// MapEntries are the sizes of maps that should not have their default size.
	MapEntries loader.Sizes
	// EgressByRule makes an nftables rule decide egress to Services, as on kernels before Linux
	// 6.4, even if the kernel supports netfilter programs.
	EgressByRule bool
	// ByClassifiers keeps programs on clsact hooks, as on kernels before Linux 6.6, even if the
	// kernel supports tcx.
	ByClassifiers bool
	// Tracking, if set, replaces the probe of the kernel's connection tracking.
	Tracking func() loader.Tracking
	// Step, if set, is called before every change of the system, with the name of the step.
	Step func(name string)
}

// Defaults returns the configuration of an ordinary node.
func Defaults() Config {
	return Config{BPFFS: "/sys/fs/bpf/isthmus", Fabric: fabric.Defaults(), Forwarding: fastpath.Direct,
		HostPortsFromNode: hostport.FromNodeAll, XDP: denylist.Devices{Auto: true},
		Timeouts: loader.DefaultTimeouts(),
		Events:   loader.DefaultEvents()}
}

// Validate reports all errors of the configuration.
func (c Config) Validate() error {
	var errs []error
	if !filepath.IsAbs(c.BPFFS) {
		errs = append(errs, fmt.Errorf("bpffs directory %q: must be an absolute path", c.BPFFS))
	}
	if c.PolicyOnly && !filepath.IsAbs(c.StateDir) {
		errs = append(errs, fmt.Errorf("directory of the interfaces %q: must be an absolute path", c.StateDir))
	}
	errs = append(errs, c.Fabric.Validate())
	if len(c.Uplink) >= unix.IFNAMSIZ {
		errs = append(errs, fmt.Errorf("uplink %q: interface names have at most %d characters", c.Uplink, unix.IFNAMSIZ-1))
	}
	if c.Forwarding != fastpath.Direct && c.Forwarding != fastpath.Stack {
		errs = append(errs, fmt.Errorf("forwarding %q: give direct or stack", c.Forwarding))
	}
	if c.Timeouts.Opening <= 0 || c.Timeouts.TCP <= 0 || c.Timeouts.Other <= 0 || c.Timeouts.Closing <= 0 {
		errs = append(errs, fmt.Errorf("timeouts %+v: must be positive", c.Timeouts))
	}
	errs = append(errs, c.HostPortsFromNode.Validate())
	return errors.Join(append(errs, c.Events.Validate(), c.MapEntries.Validate())...)
}

// settings returns the parameters of the programs.
func (c Config) settings() loader.Settings {
	s := loader.Settings{Timeouts: c.Timeouts, Events: c.Events, Direct: c.Forwarding == fastpath.Direct && !c.PolicyOnly,
		Foreign: c.PolicyOnly, ObserveNode: c.ObserveNode, Tracking: c.Tracking}
	if c.Fabric.Mode.Tunnels() && !c.PolicyOnly {
		s.Tunnel = loader.Tunnel{Port: c.Fabric.Port, VNI: c.Fabric.VNI}
	}
	return s
}

// probe returns the features of this kernel.
func probe(policyOnly bool) model.Features {
	f := model.Features{OS: model.Linux, Platform: "unknown kernel", HostPorts: !policyOnly, Bandwidth: !policyOnly, Flows: model.AllFlows}
	if r := kernelRelease(); r != "" {
		f.Platform = "kernel " + r
	}
	_, err := os.Stat("/proc/net/if_inet6")
	f.IPv6 = err == nil
	return f
}

// kernelRelease returns the release as uname -r prints it, or "".
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
