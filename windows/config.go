// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/etw"
	"github.com/isthmus-net/isthmus/windows/flowevents"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hostaddr"
	"github.com/isthmus-net/isthmus/windows/hostroute"
	"github.com/isthmus-net/isthmus/windows/rulecounters"
)

// Mode is the kind of connectivity to pods of other nodes.
type Mode string

// The modes.
const (
	// L2Bridge puts pods on the node's own segment; other nodes route to it.
	L2Bridge Mode = "l2bridge"
	// Overlay carries packets of pods in VXLAN, UDP port 4789. HNS supports no IPv6 on it.
	Overlay Mode = "overlay"
)

// Ranges returns the pod ranges of a node that a network of the mode can have: overlay networks of HNS have no IPv6.
func (m Mode) Ranges(all []netip.Prefix) []netip.Prefix {
	if m != Overlay {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return p.Addr().Is6() })
}

// SetUse selects whether ACLs refer to address sets of HNS, which need HNS 13.
type SetUse string

// The uses of sets.
const (
	// SetsAuto uses sets on L2Bridge networks, where Azure NPM does. No product is known to use them on
	// overlay networks.
	SetsAuto SetUse = "auto"
	SetsOn   SetUse = "on"
	// SetsOff writes addresses into the ACLs, so that a pod that comes or goes changes lists. It replaces
	// earlier lists with sets.
	SetsOff SetUse = "off"
)

// usesSets reports whether the Config uses sets on an HNS that supports them.
func (c Config) usesSets() bool { return c.Sets == SetsOn || c.Sets == SetsAuto && c.Mode == L2Bridge }

// minVNI is the minimum VXLAN network identifier on Windows: lower ones are VLANs.
const minVNI = 4096

// Config configures the node's network.
type Config struct {
	// Network is the name of the HNS network. The names of all endpoints that belong to Isthmus end with
	// it.
	Network string
	Mode    Mode
	// PodCIDRs are the pod ranges of the node, at most one per family. The first two addresses of each (and
	// in L2Bridge the third) are not for pods.
	PodCIDRs []netip.Prefix
	// NodeAddresses are the node's underlay addresses. They reach all pods. The IPv4 one is the tunnel
	// endpoint of Overlay.
	NodeAddresses []netip.Addr
	// HostAddresses follows further addresses of the host from which its programs may reach pods: a kubelet
	// probes from the source address of its route. They reach all pods, unless the State assigns one to a
	// pod.
	HostAddresses hostaddr.Config
	// Listening lists the sockets of the host, whose ports pods cannot have as host ports; nil for none.
	Listening func() ([]model.HostPort, error)
	// Adapter is the name of the physical adapter; if empty HNS chooses one.
	Adapter string
	// VNI is the VXLAN network identifier of Overlay.
	VNI uint32
	// NoOutboundNAT disables SNAT of pod traffic that leaves the cluster.
	NoOutboundNAT bool
	// OutboundNATExceptions are destinations without SNAT: the cluster's pods, services and nodes. Without
	// any, they follow from the nodes of each State and ServiceCIDRs.
	OutboundNATExceptions []netip.Prefix
	// NATDelay is how long changes of the derived exceptions are collected before endpoints get them, and the
	// interval after an error.
	NATDelay time.Duration
	// ServiceCIDRs are reached through the node (L2Bridge), as are those of States unless
	// OutboundNATExceptions are given.
	ServiceCIDRs []netip.Prefix
	// CallDeadline bounds one call to HNS.
	CallDeadline time.Duration
	// Parallel is how many endpoints are created and attached at a time.
	Parallel int
	// NetworkWait bounds the time until a new overlay network finds its adapter's address.
	NetworkWait time.Duration
	// ConnectWait is how long an attached endpoint may stay unconnected before it is reported.
	ConnectWait time.Duration
	// Fabric selects what connects pods of an L2Bridge network to other nodes: Auto and Routes let the host
	// route, None leaves that to other programs. hostfabric.Config explains the difference.
	Fabric fabric.Mode
	// Stack is the IP stack of the host; nil leaves its routes and forwarding alone. ForwardingFile remembers
	// what was turned on.
	Stack          hostroute.Stack
	ForwardingFile string
	// PreparedFile records the endpoints that were made before their pods, for the next process. Without it
	// that process removes them, also from pods.
	PreparedFile string
	// HostRoutes, if set, restores routes of the host after the network is created.
	HostRoutes *hostroute.Keeper
	// Sets selects whether the addresses of pods are in sets or in the ACLs.
	Sets SetUse
	// Events are the events of Windows that explain drops; nil for none. EventLimits bound those of a pod.
	Events      etw.Source
	EventLimits flowevents.Limits
	// RuleCounters runs vfpctrl to count packets by rule, at this interval; nil for none.
	RuleCounters        rulecounters.Runner
	RuleCounterInterval time.Duration
	// MaxRules bounds the ACLs of an endpoint; 0 is the default of package acl.
	MaxRules int
	// Observe, if set, is called after every attempt of a call to HNS.
	Observe func(hns.Call)
	// Step, if set, is called before everything with an external effect.
	Step func(string)
}

// Defaults replaces zero fields by defaults.
func (c Config) Defaults() Config {
	if c.Network == "" {
		c.Network = "isthmus"
	}
	if c.Mode == "" {
		c.Mode = L2Bridge
	}
	if c.Fabric == "" {
		c.Fabric = fabric.Auto
	}
	if c.VNI == 0 && c.Mode == Overlay {
		c.VNI = minVNI
	}
	if c.CallDeadline == 0 {
		c.CallDeadline = 2 * time.Minute
	}
	if c.Parallel == 0 {
		c.Parallel = 4
	}
	if c.NetworkWait == 0 {
		c.NetworkWait = 45 * time.Second
	}
	if c.NATDelay == 0 {
		c.NATDelay = 5 * time.Second
	}
	if c.ConnectWait == 0 {
		c.ConnectWait = 5 * time.Minute
	}
	if c.Sets == "" {
		c.Sets = SetsAuto
	}
	if c.EventLimits == (flowevents.Limits{}) {
		c.EventLimits = flowevents.Limits{Rate: 20, Burst: 100}
	}
	if c.Observe == nil {
		c.Observe = func(hns.Call) {}
	}
	if c.Step == nil {
		c.Step = func(string) {}
	}
	return c
}

// ValidateNetwork reports every invalid value of Network, Mode, VNI and PodCIDRs.
func (c Config) ValidateNetwork() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Network == "" || strings.ContainsAny(c.Network, `\/:*?<>|" `) {
		bad("network name %q: want a name without blanks and any of \\ / : * ? < > | \"", c.Network)
	}
	if c.Mode != L2Bridge && c.Mode != Overlay {
		bad("mode %q: want l2bridge or overlay", c.Mode)
	}
	if c.Mode == Overlay && (c.VNI < minVNI || c.VNI > fabric.MaxWindowsVNI) {
		bad("vni %d: Windows supports %d to %d", c.VNI, minVNI, fabric.MaxWindowsVNI)
	}
	return errors.Join(append(errs, c.validatePodCIDRs()...)...)
}

// Validate reports every invalid value.
func (c Config) Validate() error {
	errs := []error{c.ValidateNetwork()}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Mode == L2Bridge && (!c.Fabric.Valid() || c.Fabric == fabric.VXLAN) {
		bad("fabric %q: l2bridge supports auto, routes and none; tunnels need overlay", c.Fabric)
	}
	if c.Stack != nil && c.ForwardingFile == "" {
		bad("forwarding file: is needed to restore forwarding at uninstallation")
	}
	if c.Sets != SetsAuto && c.Sets != SetsOn && c.Sets != SetsOff {
		bad("sets %q: want auto, on or off", c.Sets)
	}
	errs = append(errs, c.HostAddresses.Validate())
	if err := c.EventLimits.Validate(); c.Events != nil && err != nil {
		errs = append(errs, err)
	}
	if c.RuleCounters != nil && c.RuleCounterInterval < rulecounters.MinInterval {
		bad("interval of rule counters %s: give at least %s", c.RuleCounterInterval, rulecounters.MinInterval)
	}
	for _, a := range c.NodeAddresses {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" || a.IsUnspecified() || a.IsLoopback() {
			bad("node address %s: want an address that other nodes reach", a)
		}
	}
	if c.Mode == Overlay && !slices.ContainsFunc(c.NodeAddresses, netip.Addr.Is4) {
		bad("node addresses: overlay needs the node's IPv4 address")
	}
	for _, list := range []struct {
		name     string
		prefixes []netip.Prefix
	}{{"outbound nat exception", c.OutboundNATExceptions}, {"service cidr", c.ServiceCIDRs}} {
		for _, p := range list.prefixes {
			if !p.IsValid() || p != p.Masked() {
				bad("%s %s: has host bits; want %s", list.name, p, p.Masked())
			}
		}
	}
	if c.CallDeadline <= 0 {
		bad("call deadline %s: must be positive", c.CallDeadline)
	}
	if c.Parallel < 1 || c.Parallel > MaxParallel {
		bad("parallel %d: use 1 to %d", c.Parallel, MaxParallel)
	}
	if c.NetworkWait <= 0 {
		bad("network wait %s: must be positive", c.NetworkWait)
	}
	if c.ConnectWait <= 0 {
		bad("connect wait %s: must be positive", c.ConnectWait)
	}
	return errors.Join(errs...)
}

func (c Config) validatePodCIDRs() []error {
	var errs []error
	var seen [2]bool
	for _, p := range c.PodCIDRs {
		v := 0
		limit := 29
		if p.Addr().Is6() {
			v, limit = 1, 125
		}
		switch {
		case !p.IsValid() || p != p.Masked() || p.Addr().Is4In6():
			errs = append(errs, fmt.Errorf("pod cidr %s: has host bits or is malformed; want %s", p, p.Masked()))
		case p.Bits() > limit:
			errs = append(errs, fmt.Errorf("pod cidr %s: too small; want /%d or larger", p, limit))
		case seen[v]:
			errs = append(errs, fmt.Errorf("pod cidr %s: a second one of its family; HNS endpoints have at most one address of each", p))
		case v == 1 && c.Mode == Overlay:
			errs = append(errs, fmt.Errorf("pod cidr %s: overlay networks of HNS have no IPv6; use l2bridge or remove it", p))
		}
		seen[v] = true
	}
	if !seen[0] {
		errs = append(errs, errors.New("pod cidrs: an IPv4 range is needed"))
	}
	return errs
}

// derivesNAT reports whether the exceptions of NAT follow from States.
func (c Config) derivesNAT() bool { return !c.NoOutboundNAT && len(c.OutboundNATExceptions) == 0 }

// MaxParallel bounds Config.Parallel, so that calls that hang leave some for others (hns.GuardConfig.MaxHung).
const MaxParallel = 8

// gateway returns the address that HNS reserves in a range: the first.
func gateway(p netip.Prefix) netip.Addr { return p.Addr().Next() }

// hostAddress returns the address of the host's own endpoint in L2Bridge.
func hostAddress(p netip.Prefix) netip.Addr { return gateway(p).Next() }

// nextHop returns the next hop of pods for destinations outside their range. An l2bridge network does not
// route for its gateway address; the host does for its own.
func (c Config) nextHop(p netip.Prefix) netip.Addr {
	if c.Mode == Overlay {
		return gateway(p)
	}
	return hostAddress(p)
}

// rangeOf returns the pod range of an address.
func (c Config) rangeOf(a netip.Addr) (netip.Prefix, bool) {
	for _, p := range c.PodCIDRs {
		if p.Contains(a) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// underlayMTU is the underlay MTU that HNS assumes for overlay networks, in bytes; VXLAN needs 50 of them.
const underlayMTU = 1500
