// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// limits returns the policy that limits a pod's egress; none without a limit. HNS chooses the burst. It
// cannot limit ingress.
func limits(b model.Bandwidth) ([]hns.Policy, error) {
	switch {
	case b.Ingress != (model.Limit{}):
		return nil, fmt.Errorf("bandwidth %s: HNS limits only egress: remove the annotation kubernetes.io/ingress-bandwidth", b)
	case b.Egress.Rate == 0:
		return nil, nil
	}
	return []hns.Policy{hns.MakePolicy(hns.TypeQOS, hns.QOS{MaximumOutgoingBandwidthInBytes: b.Egress.Rate / 8})}, nil
}

func hasLimit(policies []hns.Policy) bool {
	return slices.ContainsFunc(policies, func(p hns.Policy) bool { return p.Is(hns.TypeQOS) })
}
