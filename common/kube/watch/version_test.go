// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/kube/kubetest"
	"github.com/isthmus-net/isthmus/common/model"
)

const cnpLaterPath = "/apis/policy.networking.k8s.io/v7/clusternetworkpolicies"

func asLater(object string) string { return strings.Replace(object, "v1alpha2", "v7", 1) }

// TestAPIUnknownVersion starts beside an API server that serves policies in a later version only. They are enforced as far as they are
// known: otherwise the traffic that they deny would be open.
func TestAPIUnknownVersion(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	f.served[cnpLaterPath] = true
	f.put(t, world1+"---"+strings.Replace(asLater(cnpAdmin), "networks: [169.254.169.254/32]", "networks: [169.254.169.254/32], zone: a", 1))
	w := startAPI(t, f)
	p, _ := w.Until("guard", hasPolicy("ClusterNetworkPolicy", "", "guard")).Policies.Get(model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"})
	if r := p.Rules[model.Egress]; len(r) != 1 || r[0].Action != model.ActionDeny || r[0].Peers[0].Kind != model.PeerUnknown {
		t.Errorf("guard is %+v, want a rule that denies everything", p)
	}
	w.Problem("ClusterNetworkPolicy", "served as v7 only", "the rest fails closed")
	w.Problem("ClusterNetworkPolicy guard: spec.egress[0].to[0].zone", "the rule denies everything")
}

// TestAPIVersionWithdrawn replaces the known versions of kinds by later ones. The objects still exist, so they stay in force: policies
// as the later version has them, deny lists as they were.
func TestAPIVersionWithdrawn(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	f.served[cnpPath], f.served[denyPath] = true, true
	f.put(t, world1+"---"+cnpAdmin+"---"+scanners)
	w := startAPI(t, f)
	both := func(s *model.Snapshot) bool {
		return hasPolicy("ClusterNetworkPolicy", "", "guard")(s) && entries(s, "scanners") != "none"
	}
	w.Until("both", both)
	w.NoProblems()
	from := len(w.All())
	f.put(t, strings.Replace(asLater(cnpAdmin), "priority: 7", "priority: 8", 1))
	f.set(func() {
		delete(f.served, cnpPath)
		delete(f.served, denyPath)
		f.served[cnpLaterPath], f.served["/apis/isthmus.dev/v9/denylists"] = true, true
	})
	w.Until("priority 8", func(s *model.Snapshot) bool {
		p, ok := s.Policies.Get(model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"})
		return ok && p.Priority == 8
	})
	w.Problem("DenyList", "served as v9 only", "the known objects stay in force")
	time.Sleep(2 * confirmations * testAPIConfig("").Discovery)
	f.put(t, "{apiVersion: v1, kind: Pod, metadata: {name: after, namespace: shop}}")
	w.Until("after", kubetest.HasPod("after"))
	for _, s := range w.All()[from:] {
		if !both(s) {
			t.Fatal("a policy or a deny list was dropped")
		}
	}
}
