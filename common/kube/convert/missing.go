// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// The required fields of cluster-wide policies whose zero Go value would be valid, so that the decoder
// cannot detect their absence. A missing priority must not mean the highest, and a missing selector must
// not select everything.
type presence struct {
	Spec struct {
		Priority *json.RawMessage `json:"priority"`
		Subject  peerPresence     `json:"subject"`
		Ingress  []struct {
			From []peerPresence `json:"from"`
		} `json:"ingress"`
		Egress []struct {
			To []peerPresence `json:"to"`
		} `json:"egress"`
	} `json:"spec"`
}

type peerPresence struct {
	Pods *struct {
		NamespaceSelector *json.RawMessage `json:"namespaceSelector"`
		PodSelector       *json.RawMessage `json:"podSelector"`
	} `json:"pods"`
}

// missing lists the required fields that a cluster-wide policy lacks. usual lists selectors that the
// v1alpha1 kinds also require, but that objects of these kinds in use omit to select everything.
func missing(raw []byte, kind string) (required, usual field.ErrorList) {
	var p presence
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &p); err != nil {
		return nil, nil // decoding reports it
	}
	spec := field.NewPath("spec")
	if p.Spec.Priority == nil && kind != kindBaselineAdminNetworkPolicy {
		required = append(required, field.Required(spec.Child("priority"), "a number from 0, which goes first, to 1000"))
	}
	check := func(peer peerPresence, path *field.Path) {
		switch {
		case peer.Pods == nil:
		case kind == kindClusterNetworkPolicy:
			if peer.Pods.PodSelector == nil {
				required = append(required, field.Required(path.Child("pods", "podSelector"), "to select all pods write {}"))
			}
		default:
			if peer.Pods.PodSelector == nil {
				usual = append(usual, field.Required(path.Child("pods", "podSelector"), "all pods are selected; write {} to make that explicit"))
			}
			if peer.Pods.NamespaceSelector == nil {
				usual = append(usual, field.Required(path.Child("pods", "namespaceSelector"), "all namespaces are selected; write {} to make that explicit"))
			}
		}
	}
	check(p.Spec.Subject, spec.Child("subject"))
	for i, r := range p.Spec.Ingress {
		for j, peer := range r.From {
			check(peer, spec.Child("ingress").Index(i).Child("from").Index(j))
		}
	}
	for i, r := range p.Spec.Egress {
		for j, peer := range r.To {
			check(peer, spec.Child("egress").Index(i).Child("to").Index(j))
		}
	}
	return required, usual
}
