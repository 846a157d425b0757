// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"testing"

	"github.com/isthmus-net/isthmus/common/kube/kubetest"
	"github.com/isthmus-net/isthmus/common/model"
)

const (
	rangesPath = "/apis/networking.k8s.io/v1/servicecidrs"
	ranges     = `
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/12, "fd96::/112"]}
`
)

func hasRanges(want string) func(*model.Snapshot) bool {
	return func(s *model.Snapshot) bool {
		c, ok := s.ServiceCIDRs.Get("kubernetes")
		return want == "none" && !ok || ok && fmt.Sprint(c.Prefixes) == want
	}
}

// TestServiceCIDRFromAPIServer checks an API server that serves ServiceCIDRs, an older one that
// does not, and an account whose roles do not allow reading them.
func TestServiceCIDRFromAPIServer(t *testing.T) {
	f := newFakeAPI(t)
	f.put(t, world1)
	w := startAPI(t, f)
	w.Until("db", kubetest.HasPod("db"))
	w.NoProblems()
	f.put(t, ranges)
	f.set(func() { f.served[rangesPath] = true })
	w.Until("the ranges", hasRanges("[10.96.0.0/12 fd96::/112]"))
	w.NoProblems()
	f.put(t, `{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [10.96.0.0/12, nonsense]}}`)
	w.Until("the valid range", hasRanges("[10.96.0.0/12]"))
	w.Problem(`ServiceCIDR kubernetes: spec.cidrs[1]`)
	f.set(func() { delete(f.served, rangesPath) })
	w.Until("no ranges", hasRanges("none"))
	w.Until("db", kubetest.HasPod("db"))
}

// TestServiceCIDRForbidden checks that an account that may not read ServiceCIDRs still gets
// policies, and that the problem names the kind.
func TestServiceCIDRForbidden(t *testing.T) {
	f := newFakeAPI(t)
	f.forbidden = rangesPath
	f.served[rangesPath] = true
	f.put(t, world1)
	f.put(t, ranges)
	cfg := testAPIConfig(f.kubeconfig(t))
	cfg.Optional = []string{model.KindServiceCIDR}
	a, err := NewAPIServer(cfg, kubetest.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	w := kubetest.Follow(t, a)
	w.Until("db", kubetest.HasPod("db"))
	w.Problem("ServiceCIDR is left out", "not for you")
	f.set(func() { f.forbidden = "" })
	w.Until("the ranges", hasRanges("[10.96.0.0/12 fd96::/112]"))
	w.NoProblems()
}
