// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// HybridVNI is the VNI of the hybrid overlay of OVN-Kubernetes, which is fixed there (as of 2026-11).
const HybridVNI = 4097

// maxAnnotation bounds the annotations of OVN-Kubernetes, in bytes.
const maxAnnotation = 1024

// Hybrid makes nodes of OVN-Kubernetes reachable. It replaces their Node objects in snapshots: their pod
// ranges and MACs are those of their annotations.
type Hybrid struct {
	self   string
	ranges []netip.Prefix

	mu       sync.Mutex
	in, out  immutable.Map[string, *model.Node] // nodes of the last snapshot, and what replaced them
	seen     map[string]seenNode
	problems []string
}

// seenNode is a node as it was read, what replaces it, and why its pods are unreachable.
type seenNode struct {
	was, is *model.Node
	problem string
}

// NewHybrid returns the Hybrid of a node. The ranges, from ValidateHybrid, are all that nodes of OVN-Kubernetes
// may claim; without any, snapshots stay as they are.
func NewHybrid(self string, ranges []netip.Prefix) *Hybrid {
	return &Hybrid{self: self, ranges: ranges}
}

// ValidateHybrid reports which settings of a node do not allow the hybrid overlay. A second VNI is no way out: an
// HNS network has one.
func (c Config) ValidateHybrid(ranges []netip.Prefix) error {
	if len(ranges) == 0 {
		return nil
	}
	var errs []error
	for _, r := range ranges {
		if !r.IsValid() || !r.Addr().Is4() || r != r.Masked() || r.Bits() == 0 {
			errs = append(errs, fmt.Errorf("hybrid overlay %s: give an IPv4 range of OVN-Kubernetes as ADDRESS/BITS without host bits", r))
		}
	}
	if !c.Mode.Tunnels() {
		errs = append(errs, fmt.Errorf("hybrid overlay with fabric %s: it needs tunnels: set auto or vxlan", c.Mode))
	}
	if c.VNI != HybridVNI {
		errs = append(errs, fmt.Errorf("hybrid overlay with VNI %d: OVN-Kubernetes uses %d: set it on the agents of all nodes", c.VNI, HybridVNI))
	}
	return errors.Join(errs...)
}

// Snapshot returns a snapshot in which nodes of OVN-Kubernetes are Foreign. An unchanged node keeps its pointer.
func (h *Hybrid) Snapshot(s *model.Snapshot) *model.Snapshot {
	if len(h.ranges) == 0 {
		return s
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	out := *s
	if h.seen != nil && s.Nodes == h.in {
		out.Nodes = h.out
		return &out
	}
	seen := make(map[string]seenNode)
	h.problems = nil
	for name, n := range s.Nodes.All() {
		if !h.foreign(n) {
			continue
		}
		f, ok := h.seen[name]
		if !ok || f.was != n {
			f = h.read(n)
		}
		seen[name] = f
		out.Nodes = out.Nodes.With(name, f.is)
		if f.problem != "" {
			h.problems = append(h.problems, f.problem)
		}
	}
	h.seen, h.in, h.out = seen, s.Nodes, out.Nodes
	slices.Sort(h.problems)
	return &out
}

// Problems describes the nodes whose annotations are not used, with the remedy.
func (h *Hybrid) Problems() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.problems)
}

// foreign reports whether a node has annotations of OVN-Kubernetes and none of Isthmus. Before Isthmus starts on
// a node, OVN-Kubernetes may have assigned a range, but no program has published a MAC.
func (h *Hybrid) foreign(n *model.Node) bool {
	if n.Name == h.self || n.Fabric != "" || n.VTEP != (model.MAC{}) || n.Tunnel.IsValid() {
		return false
	}
	return n.Overlay.Subnets != "" || n.Overlay.Subnet != "" && n.Overlay.MAC != ""
}

// read replaces a foreign node. A node whose annotations are not valid has no pod ranges.
func (h *Hybrid) read(n *model.Node) seenNode {
	is := *n
	is.Foreign, is.Fabric, is.PodCIDRs = true, string(VXLAN), nil
	f := seenNode{was: n, is: &is}
	name, text, parse := model.AnnotationOverlaySubnet, n.Overlay.Subnet, netip.ParsePrefix
	if n.Overlay.Subnets != "" { // OVN-Kubernetes prefers it, too
		name, text, parse = model.AnnotationOverlaySubnets, n.Overlay.Subnets, defaultSubnet
	}
	cidr, err := netip.Prefix{}, errors.New("it is too long")
	if len(text) <= maxAnnotation {
		cidr, err = parse(text)
	}
	cidr = cidr.Masked() // OVN-Kubernetes ignores host bits
	mac, macErr := model.ParseMAC(n.Overlay.MAC)
	unreachable := fmt.Sprintf(Warning+"pods of node %s cannot be reached: its annotation ", n.Name)
	switch {
	case err != nil || !cidr.Addr().Is4():
		f.problem = unreachable + fmt.Sprintf("%s %q has no IPv4 range: correct it, or restart OVN-Kubernetes on the node", name, shorten(text))
	case !slices.ContainsFunc(h.ranges, func(r netip.Prefix) bool { return r.Bits() <= cidr.Bits() && r.Contains(cidr.Addr()) }):
		f.problem = unreachable + fmt.Sprintf("%s has %s, which is in none of the ranges of --hybrid-overlay: add the range if it is one of OVN-Kubernetes; if no administrator set it, credentials of the node may be stolen", name, cidr)
	case macErr != nil:
		f.problem = unreachable + fmt.Sprintf("%s %q is not the MAC of an interface: enable the hybrid overlay in OVN-Kubernetes, or wait until it runs on the node", model.AnnotationOverlayMAC, shorten(n.Overlay.MAC))
	default:
		is.PodCIDRs, is.VTEP = []netip.Prefix{cidr}, mac
	}
	return f
}

// defaultSubnet returns the first IPv4 range of the default network from the annotation of a node of OVN: an
// object that has a range, or a list of them, for each network.
func defaultSubnet(text string) (netip.Prefix, error) {
	var networks map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &networks); err != nil {
		return netip.Prefix{}, err
	}
	var list []string
	if json.Unmarshal(networks["default"], &list) != nil {
		list = make([]string, 1)
		if err := json.Unmarshal(networks["default"], &list[0]); err != nil {
			return netip.Prefix{}, err
		}
	}
	for _, s := range list {
		if p, err := netip.ParsePrefix(s); err != nil || p.Addr().Is4() {
			return p, err
		}
	}
	return netip.Prefix{}, errors.New("it has no IPv4 range")
}

// Publish adds to what a node publishes the annotations by which nodes of OVN-Kubernetes reach its pods. It
// returns why they are not published, or "". A range of another writer is never overwritten.
func (h *Hybrid) Publish(n *model.Node, ranges []netip.Prefix, info model.NodeInfo) (model.NodeInfo, string) {
	if len(h.ranges) == 0 {
		return info, ""
	}
	if info.VTEP == (model.MAC{}) {
		if n.OS == model.Windows { // HNS has not chosen it yet
			return info, ""
		}
		info.VTEP = VTEP(n.Name)
	}
	i := slices.IndexFunc(ranges, func(p netip.Prefix) bool { return p.Addr().Is4() })
	unreachable := fmt.Sprintf("pods of node %s are unreachable from nodes of OVN-Kubernetes: ", n.Name)
	switch {
	case i < 0:
		return info, unreachable + "it has no IPv4 pod range, and the hybrid overlay has no IPv6: add a range to its spec.podCIDRs"
	case n.Overlay.Subnets != "":
		return info, unreachable + fmt.Sprintf("its annotation %s makes it one of them: select the node with no-hostsubnet-nodes of OVN-Kubernetes, and remove the annotation", model.AnnotationOverlaySubnets)
	case n.Overlay.Subnet != "" && n.Overlay.Subnet != ranges[i].String():
		return info, unreachable + fmt.Sprintf("its annotation %s is %q, but its pod range is %s: give the node one range, or correct the annotation",
			model.AnnotationOverlaySubnet, shorten(n.Overlay.Subnet), ranges[i])
	}
	info.Overlay = model.Overlay{Subnet: ranges[i].String(), MAC: info.VTEP.String()}
	return info, ""
}
