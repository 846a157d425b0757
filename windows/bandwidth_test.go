// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// limit returns the bandwidth limit of an endpoint in HNS in bytes per second; 0 for none.
func (n *node) limit(id model.EndpointID) (rate uint64) {
	n.t.Helper()
	e, err := n.fake.Endpoint(ctx, n.hnsID(id))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, p := range e.Policies {
		var q hns.QOS
		if !p.Is(hns.TypeQOS) {
			continue
		}
		if err := p.Decode(&q); err != nil || rate != 0 {
			n.t.Fatalf("limits %s, %v", p.Settings, err)
		}
		rate = q.MaximumOutgoingBandwidthInBytes
	}
	return rate
}

// TestBandwidth checks that egress is limited from the first packet on, also when the limit changes
// or ends, and when other policies are written. A limit on ingress is refused.
func TestBandwidth(t *testing.T) {
	for _, v := range hns.Profiles() {
		n := newNode(t, v, bridgeConfig())
		if f := n.backend.Features(); f.Bandwidth || !f.EgressBandwidth || f.MinEgressRate != 80_000 {
			t.Errorf("features %+v", f)
		}
		spec := n.spec("c1", "10.0.1.9")
		for _, rate := range []uint64{10_000_000, 10_000_000, 4_000_000, 0, 0, 8_000} {
			spec.Bandwidth = model.Bandwidth{Egress: model.Limit{Rate: rate, Burst: rate}}
			n.add(spec)
			n.apply(peerState(spec, "10.0.3.3"))
			if got := n.limit(spec.ID); got != rate/8 {
				t.Errorf("hns %s: %d bytes/s, want %d", v, got, rate/8)
			}
		}
		other := n.spec("c2", "10.0.1.10")
		other.Bandwidth = model.Bandwidth{Ingress: model.Limit{Rate: 1e6}}
		if _, err := n.backend.AddEndpoint(ctx, other); err == nil || !strings.Contains(err.Error(), "ingress-bandwidth") || n.has(other) {
			t.Errorf("hns %s: a limit of what a pod receives: %v", v, err)
		}
	}
}
