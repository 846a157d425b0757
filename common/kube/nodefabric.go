// SPDX-License-Identifier: Apache-2.0

package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/model"
)

// What nodes say of themselves for the fabric, as annotations of their Node
// objects. The plan judges the mode.
const (
	annotationFabric = "isthmus.dev/fabric"
	annotationVTEP   = "isthmus.dev/vtep-mac"
)

// readFabric reads the annotations into a node.
func readFabric(m metav1.Object, node *model.Node) field.ErrorList {
	path := field.NewPath("metadata", "annotations")
	annotations := m.GetAnnotations()
	node.Fabric = intern(annotations[annotationFabric])
	text, ok := annotations[annotationVTEP]
	if !ok {
		return nil
	}
	mac, err := model.ParseMAC(text)
	if err != nil {
		return field.ErrorList{field.Invalid(path.Key(annotationVTEP), text, "must be the MAC of an interface, like 02:00:5e:10:00:01")}
	}
	node.VTEP = mac
	return nil
}
