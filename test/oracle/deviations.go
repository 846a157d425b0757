// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// Known deviations that are evident from the flow: the API decides it by something that the engines
// do not implement.
var (
	selfTraffic = Deviation{Name: "A pod and itself", Is: func(c *Case, d Disagreement) bool {
		p := c.Owner(d.Src)
		return p != nil && p == c.Owner(d.Dst) && d.Ours == Allowed && d.Theirs == Denied
	}}
	ownNode = Deviation{Name: "A pod's own node", Is: func(c *Case, d Disagreement) bool {
		p := c.Owner(d.Dst)
		return p != nil && c.Owner(d.Src) == nil && hasAddress(c, p.Spec.NodeName, d.Src) && d.Ours == Allowed && d.Theirs == Denied
	}}
	unknownAddress = Deviation{Name: "An address of the pod ranges that no pod has", Is: func(c *Case, d Disagreement) bool {
		return (unannounced(c, d.Src) || unannounced(c, d.Dst)) && d.Ours == Denied && d.Theirs == Allowed
	}}
)

// Known deviations that disappear when the case is restated.
var (
	isolatedPerDirection = Deviation{Name: "The Baseline tier of pods that are isolated in one direction", Restate: splitDirections}
	adminNamedPorts      = Deviation{Name: "Named ports of AdminNetworkPolicy", Restate: resolveAdminNames}
	adminNodes           = Deviation{Name: "The nodes of AdminNetworkPolicy", Restate: nodesAsNetworks}
	sidecarPorts         = Deviation{Name: "Named ports of sidecars", Is: toSidecar, Restate: resolveEveryName}
	namesAreZero         = Deviation{Name: "Port 0 and named ports", Is: func(_ *Case, d Disagreement) bool { return d.Port == 0 }, Restate: resolveNames}
	emptyPeers           = Deviation{Name: "Peers of a newer API", Restate: closeEmptyPeers}
	absentKeys           = Deviation{Name: "NotIn without the key", Restate: splitNotIn}
	emptyValues          = Deviation{Name: "Labels with an empty value", Restate: labelsAsExpressions}
	namedPorts           = Deviation{Name: "Several named ports", Restate: resolveNames}
	blocksAndPods        = Deviation{Name: "Pods as members of address blocks", Restate: blocksAsPods}
	portlessItems        = Deviation{Name: "Ports without a number", Restate: portlessAsRanges}
)

// toSidecar: the destination port is a named one of a sidecar.
func toSidecar(c *Case, d Disagreement) bool {
	p := c.Owner(d.Dst)
	if p == nil {
		return false
	}
	for _, at := range containerPorts(&corev1.Pod{Spec: corev1.PodSpec{InitContainers: p.Spec.InitContainers}}) {
		if at.Name != "" && at.ContainerPort == int32(d.Port) && string(at.Protocol) == d.Protocol.String() {
			return true
		}
	}
	return false
}

func hasAddress(c *Case, node string, a netip.Addr) bool {
	for _, n := range c.Nodes {
		if n.Name != node {
			continue
		}
		for _, na := range n.Status.Addresses {
			if na.Address == a.String() {
				return true
			}
		}
	}
	return false
}

// unannounced reports whether an address is in a range for pods and belongs
// neither to a pod nor to a node.
func unannounced(c *Case, a netip.Addr) bool {
	if c.Owner(a) != nil {
		return false
	}
	inRange := false
	for _, n := range c.Nodes {
		if hasAddress(c, n.Name, a) {
			return false
		}
		for _, text := range append([]string{n.Spec.PodCIDR}, n.Spec.PodCIDRs...) {
			p, err := netip.ParsePrefix(text)
			inRange = inRange || err == nil && p.Contains(a)
		}
	}
	return inRange
}
