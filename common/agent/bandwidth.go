// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/model"
)

// bandwidth validates the limits of a request; nil means none.
func bandwidth(b *cniframe.Bandwidth) (model.Bandwidth, error) {
	if b == nil {
		return model.Bandwidth{}, nil
	}
	all := model.Bandwidth{
		Ingress: model.Limit{Rate: b.IngressRate, Burst: b.IngressBurst},
		Egress:  model.Limit{Rate: b.EgressRate, Burst: b.EgressBurst},
	}
	if err := all.Validate(); err != nil {
		return model.Bandwidth{}, refuse(CodeRefused, "correct the bandwidth annotations of the pod", "bandwidth: %s", oneLine(err))
	}
	return all, nil
}

// checkBandwidth returns an error for limits that this platform cannot enforce.
func (l *loop) checkBandwidth(a *addition) error {
	switch f := l.features; {
	case a.bandwidth.Egress.Rate != 0 && a.bandwidth.Egress.Rate < f.MinEgressRate:
		return refuse(CodeRefused, fmt.Sprintf("set the annotation kubernetes.io/egress-bandwidth of the pod to %dk or more, or let it run on a node of another system", f.MinEgressRate/1000),
			"egress bandwidth of pod %s is %d bit/s, below the %d bit/s that %s (%s) enforces", a.pod(), a.bandwidth.Egress.Rate, f.MinEgressRate, f.OS, f.Platform)
	case a.bandwidth == (model.Bandwidth{}) || f.Bandwidth:
		return nil
	case f.EgressBandwidth && a.bandwidth.Ingress == (model.Limit{}):
		return nil
	case f.EgressBandwidth:
		return refuse(CodeRefused, "remove the annotation kubernetes.io/ingress-bandwidth of the pod, or let it run on a node of another system",
			"ingress bandwidth of pod %s cannot be limited on %s (%s), only egress bandwidth", a.pod(), f.OS, f.Platform)
	}
	return refuse(CodeRefused, "remove the bandwidth annotations of the pod, or let it run on another node", "bandwidth of pod %s cannot be limited on %s (%s)", a.pod(), l.features.OS, l.features.Platform)
}

// compareBandwidth compares the limits in a CHECK with those of the ADD. A CHECK without limits matches
// any.
func compareBandwidth(e *entry, asked *cniframe.Bandwidth) error {
	want, err := bandwidth(asked)
	if err != nil || want == (model.Bandwidth{}) || want == e.Bandwidth {
		return err
	}
	return refuse(CodeBroken, "restart the pod", "the bandwidth of pod %s is limited to %+v, not to %+v", e.Pod(), e.Bandwidth, want)
}
