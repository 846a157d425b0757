// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

func nodeKind() Kind {
	return Kind{Name: "Node", Versions: []string{"v1"}, Resource: "nodes", Typed: &corev1.Node{}, AddToScheme: corev1.AddToScheme,
		Read: reads(func(o *corev1.Node, s Strictness) Result {
			n, errs := convertNode(o, s)
			return Result{Value: n, Errs: errs}
		}),
		Put:    func(o *model.Objects, v any) { o.Nodes = append(o.Nodes, v.(*model.Node)) },
		Record: recordsValidParts(convertNode),
		store: mapStore[string, model.Node]{byName, all[string],
			func(s *model.Snapshot) *immutable.Map[string, *model.Node] { return &s.Nodes }}}
}

// convertNode converts a Node. It omits invalid addresses.
func convertNode(n *corev1.Node, s Strictness) (*model.Node, field.ErrorList) {
	errs := validateMeta(&n.ObjectMeta, false, s)
	node := &model.Node{Name: intern(n.Name), Labels: model.MakeLabels(n.Labels), OS: nodeOS(n)}
	errs = append(errs, readFabric(n, node)...)
	path := field.NewPath("status", "addresses")
	// Other nodes route to the first address of a family: internal ones come first.
	for _, t := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for i, a := range n.Status.Addresses {
			if a.Type != t {
				continue
			}
			ip, more := parseAddr(a.Address, path.Index(i).Child("address"))
			if errs = append(errs, more...); len(more) == 0 && !slices.Contains(node.Addresses, ip) {
				node.Addresses = append(node.Addresses, ip)
			}
		}
	}
	ranges, more := PodCIDRs(n)
	node.PodCIDRs = ranges
	return node, append(errs, more...)
}

// PodCIDRs returns the valid pod ranges of a Node.
func PodCIDRs(n *corev1.Node) (ranges []netip.Prefix, errs field.ErrorList) {
	cidrs, at := n.Spec.PodCIDRs, field.NewPath("spec", "podCIDRs")
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs, at = []string{n.Spec.PodCIDR}, field.NewPath("spec", "podCIDR")
	}
	for i, text := range cidrs {
		p, more := cidr(text, Stored, at.Index(i))
		if errs = append(errs, more...); len(more) == 0 {
			ranges = append(ranges, p)
		}
	}
	return ranges, errs
}

// nodeOS returns the node's operating system: its label, otherwise what its kubelet reports, otherwise "".
func nodeOS(n *corev1.Node) model.OS {
	if os := n.Labels[corev1.LabelOSStable]; os != "" {
		return model.OS(os)
	}
	return model.OS(n.Status.NodeInfo.OperatingSystem)
}
