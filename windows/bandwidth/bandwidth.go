// SPDX-License-Identifier: Apache-2.0

// Package bandwidth turns the bandwidth limits of pods into policies of their HNS endpoints.
//
// The policies belong to an endpoint from its creation on, so it is not a component: package windows writes them. It
// does not call HNS.
package bandwidth

import (
	"fmt"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// MinRate is the lowest rate that is accepted, in bits per second. A user of HNS reports that it ignores limits
// below about 10 KB/s (hcsshim#153); a pod that nothing limits must not start as one that is limited.
const MinRate = 80_000

// Policies returns the policy that limits a pod's egress; none without a limit. HNS chooses the burst. It
// cannot limit ingress.
func Policies(b model.Bandwidth) ([]hns.Policy, error) {
	switch {
	case b.Ingress != (model.Limit{}):
		return nil, fmt.Errorf("bandwidth %s: HNS limits only egress: remove the annotation kubernetes.io/ingress-bandwidth", b)
	case b.Egress.Rate == 0:
		return nil, nil
	}
	return []hns.Policy{hns.MakePolicy(hns.TypeQOS, hns.QOS{MaximumOutgoingBandwidthInBytes: b.Egress.Rate / 8})}, nil
}

// Limits reports whether one of the policies limits the bandwidth.
func Limits(policies []hns.Policy) bool {
	return slices.ContainsFunc(policies, func(p hns.Policy) bool { return p.Is(hns.TypeQOS) })
}
