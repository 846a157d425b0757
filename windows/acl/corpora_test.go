// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestPublicManifestsNotWorseThanNaive compares rules and addresses for the
// NetworkPolicies of real projects, as if all pods were on one Windows node.
func TestPublicManifestsNotWorseThanNaive(t *testing.T) {
	corpora := os.Getenv("CORPORA")
	if corpora == "" {
		t.Skip("needs public test data: make corpora CORPORA=dir runs it")
	}
	dirs, err := filepath.Glob(filepath.Join(corpora, "manifests", "*"))
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no directories of manifests in %s: %v", corpora, err)
	}
	for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
		o := options(profile)
		var ours, theirs size
		endpoints := 0
		for _, dir := range dirs {
			s := onWindows(t, dir)
			state, _ := compile.Once(compile.Input{Snapshot: s, Node: "node1", Endpoints: endpointsOf(s)})
			l := acl.Lower(state, o, profile.String())
			for id, e := range state.Policy.Endpoints {
				pod, _ := s.Pods.Get(e.Pod)
				a, b := sizeOf(l, id), naive(s, pod, o.Sets)
				ours, theirs, endpoints = ours.plus(a), theirs.plus(b), endpoints+1
				if a.rules+a.addresses > b.rules+b.addresses && !o.Sets {
					t.Errorf("%s %s: %+v, naive %+v", filepath.Base(dir), id, a, b)
				}
			}
		}
		t.Logf("hns %s, %d endpoints: rules %d against %d naive (%.2f), addresses %d against %d (%.2f)", profile, endpoints,
			ours.rules, theirs.rules, float64(ours.rules)/float64(theirs.rules),
			ours.addresses, theirs.addresses, float64(ours.addresses)/float64(theirs.addresses))
		if ours.rules > theirs.rules || ours.addresses > theirs.addresses {
			t.Error("the sum is worse than naive")
		}
	}
}

// onWindows reads the NetworkPolicies of a directory with its pods, and adds a pod for each policy
// that selects none. All pods are on one Windows node.
func onWindows(t *testing.T, dir string) *model.Snapshot {
	t.Helper()
	o, _, _ := manifests.LoadDir(context.Background(), dir, manifests.DefaultLimits()) // some files are invalid on purpose
	var policies []*model.Policy
	for _, p := range o.Policies {
		if p.Tier == model.TierNetworkPolicy {
			policies = append(policies, p)
		}
	}
	o.Policies = policies
	before := o.Snapshot()
	for _, p := range policies {
		if pod, ns, ok := policy.PlaceholderPod(before, p); ok {
			o.Pods, o.Namespaces = append(o.Pods, pod), append(o.Namespaces, ns)
		}
	}
	node := &model.Node{Name: "node1", OS: model.Windows, Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.1")}}
	var pods []*model.Pod
	at := netip.MustParseAddr("100.64.0.10")
	for _, p := range o.Pods {
		if !p.Policed() {
			continue
		}
		placed := *p
		placed.Node, placed.IPs = "node1", []netip.Addr{at}
		at = at.Next()
		pods = append(pods, &placed)
	}
	return model.MakeSnapshot(o.Namespaces, []*model.Node{node}, pods, policies)
}

func endpointsOf(s *model.Snapshot) map[model.EndpointID]compile.Endpoint {
	all := make(map[model.EndpointID]compile.Endpoint)
	for id, p := range s.Pods.All() {
		all[model.MakeEndpointID(id.Namespace+"."+id.Name, "eth0")] = compile.Endpoint{Pod: id, IPs: p.IPs}
	}
	return all
}
