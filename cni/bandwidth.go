// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/model"
)

// readBandwidth parses the limits that a runtime requests, in bits per second and bits. ADD refuses invalid
// ones; DEL works nevertheless.
func (c *Conf) readBandwidth(raw json.RawMessage) {
	const key = "runtimeConfig.bandwidth: "
	if raw == nil {
		return
	}
	var b struct{ IngressRate, IngressBurst, EgressRate, EgressBurst uint64 }
	if err := json.Unmarshal(raw, &b); err != nil {
		c.refused = append(c.refused, key+"it is not an object with the whole numbers ingressRate, ingressBurst, egressRate and egressBurst: correct the bandwidth annotations of the pod")
		return
	}
	asked := model.Bandwidth{Ingress: model.Limit{Rate: b.IngressRate, Burst: b.IngressBurst}, Egress: model.Limit{Rate: b.EgressRate, Burst: b.EgressBurst}}
	if err := asked.Validate(); err != nil {
		c.refused = append(c.refused, key+err.Error())
		return
	}
	if asked != (model.Bandwidth{}) {
		c.bandwidth = &cniframe.Bandwidth{IngressRate: b.IngressRate, IngressBurst: b.IngressBurst, EgressRate: b.EgressRate, EgressBurst: b.EgressBurst}
	}
}
