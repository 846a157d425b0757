// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// The programs whose networks an agent may take over.
const (
	// FromFlannel: flanneld makes an L2Bridge network (host-gw) or an Overlay network (vxlan).
	FromFlannel = "flannel"
	// FromBridge: win-bridge connects pods to an L2Bridge network that an administrator makes.
	FromBridge = "bridge"
)

// Options say what is known about the agent. Zero values are taken from the network.
type Options struct {
	// From is FromFlannel or FromBridge; Node names the Node object in the steps.
	From, Node string
	// Network is the name of the HNS network; "" for the only one that can be meant.
	Network  string
	Mode     windows.Mode
	VNI      uint32
	PodCIDRs []netip.Prefix
}

// Plan is what an agent would find on this node.
type Plan struct {
	From, Node string
	Found      windows.Found
	// Config has the settings of the agent that decide about the network.
	Config windows.Config
	// Unsupported, Network and Host are the differences of HNS, of the network, and of the host's endpoint on it.
	Unsupported, Network, Host []windows.Mismatch
	// Pods are the endpoints that the agent would not know.
	Pods []hns.Endpoint
	// invalid are settings with which no agent starts.
	invalid []string
	// given reports whether the pod ranges are the caller's.
	given bool
}

// Make reads HNS and plans. It returns an error if the network cannot be found or read.
func Make(ctx context.Context, client hns.Client, o Options) (*Plan, error) {
	found, err := windows.Inspect(ctx, client, 0, o.choose)
	if err != nil {
		return nil, err
	}
	p := &Plan{From: o.From, Node: o.Node, Found: found, given: len(o.PodCIDRs) > 0}
	n := &p.Found.Network
	c := windows.Config{Network: n.Name, Mode: o.mode(n), VNI: o.VNI, PodCIDRs: o.PodCIDRs}
	subnets := n.Subnets()
	if c.Mode == windows.Overlay && c.VNI == 0 && len(subnets) > 0 {
		c.VNI = subnets[0].VNI()
	}
	if !p.given {
		if c.PodCIDRs, err = ranges(n); err != nil {
			return nil, err
		}
	}
	c.PodCIDRs = c.Mode.Ranges(c.PodCIDRs)
	p.Config = c.Defaults()
	if err := p.Config.ValidateNetwork(); err != nil {
		p.invalid = strings.Split(err.Error(), "\n")
	}
	p.Unsupported = p.Config.VersionMismatches(found.Version)
	p.Network = p.Config.NetworkMismatches(n)
	p.Host = p.Config.HostMismatches(found.Endpoints)
	p.Pods = slices.DeleteFunc(p.Config.Foreign(found.Endpoints), isSourceVIP)
	return p, nil
}

// types are those of the networks that the program makes.
func (o Options) types() []hns.NetworkType {
	if o.From == FromBridge {
		return []hns.NetworkType{hns.L2Bridge}
	}
	return []hns.NetworkType{hns.L2Bridge, hns.Overlay}
}

func isType(n *hns.Network, types ...hns.NetworkType) bool {
	return slices.ContainsFunc(types, func(t hns.NetworkType) bool { return strings.EqualFold(string(t), string(n.Type)) })
}

// choose finds the network by its name, or the only one with a type of the program.
func (o Options) choose(all []hns.Network) (hns.Network, error) {
	var candidates []hns.Network
	for _, n := range all {
		if o.Network != "" && strings.EqualFold(n.Name, o.Network) || o.Network == "" && isType(&n, o.types()...) {
			candidates = append(candidates, n)
		}
	}
	switch {
	case len(candidates) == 1, o.Network != "" && len(candidates) > 0: // the agent takes the first, too
		return candidates[0], nil
	case o.Network != "":
		return hns.Network{}, fmt.Errorf("hns has no network %q: name one of %s with --hns-network", o.Network, names(all))
	case len(candidates) == 0:
		return hns.Network{}, fmt.Errorf("hns has no network that --from %s could mean, only %s: there is nothing to take over, the agent makes a network of its own", o.From, names(all))
	}
	return hns.Network{}, fmt.Errorf("hns has several networks that --from %s could mean: name one of %s with --hns-network", o.From, names(candidates))
}

// names lists networks with their types and ranges.
func names(all []hns.Network) string {
	var texts []string
	for _, n := range all {
		text := fmt.Sprintf("%q (%s", n.Name, n.Type)
		for _, s := range n.Subnets() {
			text += " " + s.IPAddressPrefix
		}
		texts = append(texts, text+")")
	}
	if len(texts) == 0 {
		return "none"
	}
	return strings.Join(texts, ", ")
}

// mode returns the mode of the agent; with an unusable type, that which the program would need.
func (o Options) mode(n *hns.Network) windows.Mode {
	switch {
	case o.Mode != "":
		return o.Mode
	case isType(n, hns.Overlay) && slices.Contains(o.types(), hns.Overlay):
		return windows.Overlay
	}
	return windows.L2Bridge
}

// ranges returns the ranges of a network.
func ranges(n *hns.Network) (all []netip.Prefix, err error) {
	for _, s := range n.Subnets() {
		p, err := netip.ParsePrefix(s.IPAddressPrefix)
		if err != nil {
			return nil, fmt.Errorf("hns network %q has the subnet %q, which is not a range: give the pod ranges of the node with --pod-cidr", n.Name, s.IPAddressPrefix)
		}
		all = append(all, p)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("hns network %q has no subnet: give the pod ranges of the node with --pod-cidr", n.Name)
	}
	return all, nil
}

// Differences returns what keeps the agent from using the network as it is.
func (p *Plan) Differences() []windows.Mismatch {
	return slices.Concat(p.Unsupported, p.Network, p.Host)
}

// Reasons returns why the agent cannot use the network as it is; empty if it can.
func (p *Plan) Reasons() []string {
	reasons := slices.Clone(p.invalid)
	for _, m := range p.Differences() {
		reasons = append(reasons, m.String())
	}
	return reasons
}
