// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/world"
)

func TestEnforce(t *testing.T) {
	p := &model.Policy{Origin: model.Origin{Kind: "ClusterNetworkPolicy", Name: "p", UID: "1"}, Tier: model.TierAdmin}
	block := func(cidr string) model.Peer {
		return model.Peer{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: netip.MustParsePrefix(cidr)}}
	}
	p.Rules[model.Egress] = []model.Rule{
		{Index: 0, Action: model.ActionPass, Peers: []model.Peer{block("10.0.0.0/8"), block("fd00::/8")}, AnyPort: true},
		{Index: 1, Action: model.ActionDeny, Peers: []model.Peer{{Kind: model.PeerUnknown}}, AnyPort: true},
		{Index: 2, Action: model.ActionAccept, AnyPeer: true, Ports: []model.PortMatch{{Protocol: model.SCTP, First: 1, Last: 2}}},
	}
	platform := model.Features{OS: model.Windows, Platform: "HNS 9.5"}
	reported := []model.Unsupported{
		{Policy: model.Origin{Kind: "ClusterNetworkPolicy", Name: "p"}, Direction: model.Egress, Rule: 2, Construct: "room", Effect: model.OverBlocks, Reason: "no room"},
		{Policy: model.Origin{Kind: "ClusterNetworkPolicy", Name: "p"}, Direction: model.Ingress, Rule: 0, Construct: "x", Effect: model.Refused, Reason: "another direction"},
		{Policy: model.Origin{Kind: "ClusterNetworkPolicy", Name: "other"}, Rule: -1, Construct: "x", Effect: model.Refused, Reason: "another policy"},
	}
	got := make(map[string]string)
	for _, e := range policy.Enforce([]*model.Policy{p}, platform, reported) {
		got[string(rune('0'+e.Rule))+" "+e.Construct] = e.String()
	}
	want := map[string]string{
		"0 " + policy.ConstructBlock: "exact", "0 " + policy.ConstructBlock6: "over-blocks", "0 " + policy.ConstructPass: "exact",
		"0 " + policy.ConstructEveryProtocol: "exact",
		"1 " + policy.ConstructUnknown:       "over-blocks", "1 " + policy.ConstructDeny: "exact", "1 " + policy.ConstructEveryProtocol: "exact",
		"2 " + policy.ConstructEveryAddress: "over-blocks", "2 " + policy.ConstructRange: "over-blocks", "2 " + policy.ConstructSCTP: "over-blocks",
		"2 " + policy.ConstructAccept: "over-blocks",
	}
	for k, w := range want {
		if got[k] != w {
			t.Errorf("%s: %q, want %q", k, got[k], w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	refused := policy.Enforce([]*model.Policy{p}, platform, []model.Unsupported{{Rule: -1, Effect: model.Refused, Reason: "all"}})
	if slices.ContainsFunc(refused, func(e policy.Enforceability) bool { return e.String() != "refused" }) {
		t.Errorf("a report that names no policy concerns all: %v", refused)
	}
}

// A placeholder pod is selected by its policy. If there is none, the policy selects no pod
// of the cluster either.
func TestPlaceholderPod(t *testing.T) {
	made, none := 0, 0
	for seed := range uint64(150) {
		s := world.Random(seed, world.Shape{Pods: 6, Policies: 8, Tiers: true})
		for _, p := range s.Policies.All() {
			pod, ns, ok := policy.PlaceholderPod(s, p)
			if ok {
				made++
				if !p.Subject.MatchesNamespace(ns) || !p.Subject.Pods.Matches(pod.Labels) || pod.Namespace != ns.Name {
					t.Fatalf("%s does not select %s in %s of %s", p.Subject, pod.Labels, ns.Name, ns.Labels)
				}
				continue
			}
			none++
			for _, pod := range s.Pods.All() {
				if p.Subject.MatchesNamespace(s.Namespace(pod.Namespace)) && p.Subject.Pods.Matches(pod.Labels) {
					t.Fatalf("no placeholder pod for %s, which selects %s", p.Subject, pod.PodID)
				}
			}
		}
	}
	if made == 0 || none == 0 {
		t.Errorf("made %d, none %d", made, none)
	}
}
