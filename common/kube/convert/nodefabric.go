// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/model"
)

// Annotations of Node objects with the NodeInfo of their nodes. Package fabric validates the mode, and the
// annotations of OVN-Kubernetes if they are used.
const (
	annotationFabric = "isthmus.dev/fabric"
	annotationVTEP   = "isthmus.dev/vtep-mac"
	annotationTunnel = "isthmus.dev/vtep-address"
)

// readFabric parses the annotations into a node.
func readFabric(m metav1.Object, node *model.Node) (errs field.ErrorList) {
	path := field.NewPath("metadata", "annotations")
	annotations := m.GetAnnotations()
	node.Fabric = intern(annotations[annotationFabric])
	node.Overlay = model.Overlay{Subnets: intern(annotations[model.AnnotationOverlaySubnets]), Subnet: intern(annotations[model.AnnotationOverlaySubnet]),
		MAC: intern(annotations[model.AnnotationOverlayMAC])}
	if text, ok := annotations[annotationVTEP]; ok {
		mac, err := model.ParseMAC(text)
		if err != nil {
			errs = append(errs, field.Invalid(path.Key(annotationVTEP), text, "must be the MAC of an interface, like 02:00:5e:10:00:01"))
		} else {
			node.VTEP = mac
		}
	}
	if text, ok := annotations[annotationTunnel]; ok {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is4In6() || !a.IsGlobalUnicast() {
			errs = append(errs, field.Invalid(path.Key(annotationTunnel), text, "must be an address at which other nodes reach this one, like 192.0.2.7"))
		} else {
			node.Tunnel = a
		}
	}
	return errs
}

// AnnotationsOf returns a node's NodeInfo as annotations.
func AnnotationsOf(a model.NodeInfo) map[string]any {
	all := make(map[string]any)
	if a.Fabric != "" {
		all[annotationFabric] = a.Fabric
	}
	if a.VTEP != (model.MAC{}) {
		all[annotationVTEP] = a.VTEP.String()
	}
	if a.Tunnel.IsValid() {
		all[annotationTunnel] = a.Tunnel.String()
	}
	if a.Overlay.Subnet != "" {
		all[model.AnnotationOverlaySubnet] = a.Overlay.Subnet
	}
	if a.Overlay.MAC != "" {
		all[model.AnnotationOverlayMAC] = a.Overlay.MAC
	}
	return all
}
