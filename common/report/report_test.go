// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

var hns = model.Features{OS: model.Windows, Platform: "HNS 13.3"}

func cluster() *model.Snapshot {
	block := model.Peer{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: netip.MustParsePrefix("2001:db8::/32")}}
	rules := [2][]model.Rule{model.Egress: {{Index: 0, Action: model.ActionDeny, Peers: []model.Peer{block}, AnyPort: true}}}
	np := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "np", UID: "u1"}, Tier: model.TierNetworkPolicy,
		Subject: model.PodSelector{Namespace: "shop"}, Isolates: [2]bool{model.Egress: true}, Rules: rules}
	cnp := &model.Policy{Origin: model.Origin{Kind: "ClusterNetworkPolicy", Name: "cnp", UID: "u2"}, Tier: model.TierAdmin, Rules: rules}
	fine := &model.Policy{Origin: model.Origin{Kind: "ClusterNetworkPolicy", Name: "fine", UID: "u3"}, Tier: model.TierBaseline,
		Subject: model.PodSelector{Namespace: "none"}}
	pod := &model.Pod{PodID: model.PodID{Namespace: "shop", Name: "web"}, UID: "u4"}
	return model.MakeSnapshot(nil, nil, []*model.Pod{pod}, []*model.Policy{np, cnp, fine})
}

func TestMake(t *testing.T) {
	f := Facts{Node: "n1", Platform: hns, Snapshot: cluster(), Ready: true, Unsupported: []model.Unsupported{
		{Policy: model.Origin{Kind: "Pod", Namespace: "shop", Name: "web"}, Rule: -1, Construct: "rules per endpoint", Reason: "too many"},
		{Policy: model.Origin{Kind: "Pod", Namespace: "shop", Name: "gone"}, Rule: -1, Construct: "rules per endpoint", Reason: "too many"}}}
	r := Make(f, map[model.Origin]Remarks{{Kind: "ClusterNetworkPolicy", Name: "fine"}: {Notes: []string{"spec.tier: fix it"}, Bad: true}})
	var got []string
	for o, c := range r.Conditions {
		got = append(got, fmt.Sprintf("%s | %s | %s", o, c.Reason, c.Message))
	}
	for _, e := range r.Events {
		got = append(got, fmt.Sprintf("event %s %s | %s | %s", e.Object, e.Object.UID, e.Reason, e.Note))
	}
	slices.Sort(got)
	for _, want := range []string{
		"ClusterNetworkPolicy cnp | OverBlocks | egress rule 0 (ipBlock IPv6): over-blocks: the platform has no IPv6 rules; IPv6 is denied where " +
			"policies isolate; pods that it selects: rules per endpoint: over-blocks: too many",
		"ClusterNetworkPolicy fine | Refused | spec.tier: fix it",
		"event NetworkPolicy shop/np u1 | OverBlocks | EnforcedOnWindowsHNS13.3: egress rule 0 (ipBlock IPv6)",
		"event Pod shop/web u4 | OverBlocks | EnforcedOnWindowsHNS13.3: rules per endpoint: over-blocks: too many",
		"event ClusterNetworkPolicy fine u3 | Refused",
	} {
		if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, want) }) {
			t.Errorf("no line %q among\n%s", want, strings.Join(got, "\n"))
		}
	}
	if len(got) != 2+4 {
		t.Errorf("%d lines:\n%s", len(got), strings.Join(got, "\n"))
	}
	if again := Make(f, nil); !slices.ContainsFunc(again.Events, func(e Event) bool { return e.Name == r.Events[len(r.Events)-1].Name }) {
		t.Error("an event has another name when it is said again")
	}
	if !r.Node.Enforced {
		t.Errorf("node: %+v", r.Node)
	}
	f.Problems = []string{"map full"}
	if n := Make(f, nil).Node; n.Enforced || n.Reason != "Degraded" || n.Message != "map full" {
		t.Errorf("node with a problem: %+v", n)
	}
}

// Messages stay within the API's limits for any findings.
func TestBounds(t *testing.T) {
	var s statement
	for i := range 100 {
		s.add(model.OverBlocks, fmt.Sprintf("%03d: %s", i, strings.Repeat("ä", 300)))
	}
	reason, message := s.text()
	if !strings.HasSuffix(message, "; and 92 more") || len(message) > 32768 {
		t.Errorf("%d bytes, ends %q", len(message), message[len(message)-30:])
	}
	e := newEvent(model.Origin{Kind: "NetworkPolicy", Namespace: "a", Name: strings.Repeat("a.", 126) + "a"}, hns, reason, message)
	if len(e.Note) > maxNote || len(e.Name) > 253 || strings.Contains(e.Name, "..") {
		t.Errorf("note of %d bytes, name %q of %d", len(e.Note), e.Name, len(e.Name))
	}
}

func TestConditionType(t *testing.T) {
	for p, want := range map[model.Features]string{
		{OS: model.Linux, Platform: "kernel 6.1"}: "isthmus.dev/EnforcedOnLinux",
		{OS: model.Windows, Platform: "HNS 9.5"}:  "isthmus.dev/EnforcedOnWindowsHNS9.5",
		{}:                                        "isthmus.dev/Enforced",
	} {
		if got := ConditionType(p); got != want {
			t.Errorf("%v: %s, want %s", p, got, want)
		}
	}
}

// Nodes that want different conditions, in any order, with edited policies and deleted nodes. In the end
// the condition exists exactly if an existing node wants it, it is about the latest generation, and no node
// writes any more.
func TestDecideConverges(t *testing.T) {
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		const nodes = 6
		type node struct {
			want *Condition
			here bool
		}
		all := make([]node, nodes)
		name := func(i int) string { return fmt.Sprintf("n%d", i) }
		exists := func(n string) bool {
			return slices.ContainsFunc([]int{0, 1, 2, 3, 4, 5}, func(i int) bool { return name(i) == n && all[i].here })
		}
		var is *Written
		generation, writes := int64(1), 0
		round := func() (changed bool) {
			for _, i := range rnd.Perm(nodes) {
				if !all[i].here {
					continue
				}
				switch Decide(all[i].want, is, name(i), generation, exists) {
				case Write:
					is = &Written{Status: "False", Reason: all[i].want.Reason, Message: all[i].want.Signed(name(i)), Generation: generation}
				case Clear:
					is = nil
				default:
					continue
				}
				changed = true
				writes++
			}
			return changed
		}
		for range 12 {
			for i := range all {
				all[i].here = rnd.IntN(4) > 0
				all[i].want = nil
				if rnd.IntN(3) == 0 {
					all[i].want = &Condition{"OverBlocks", fmt.Sprintf("words %d", rnd.IntN(2))}
				}
			}
			if rnd.IntN(3) == 0 {
				generation++
			}
			writes = 0
			for range nodes + 2 {
				if !round() {
					break
				}
			}
			if round() {
				t.Fatalf("seed %d: nodes go on writing", seed)
			}
			wanted := slices.ContainsFunc(all, func(n node) bool { return n.here && n.want != nil })
			nobody := !slices.ContainsFunc(all, func(n node) bool { return n.here })
			if !nobody && wanted != (is != nil) {
				t.Fatalf("seed %d: wanted %t, is %v", seed, wanted, is)
			}
			if wanted && is.Generation != generation {
				t.Fatalf("seed %d: is about generation %d of %d", seed, is.Generation, generation)
			}
			if wanted && !exists(reporterOf(is.Message)) {
				t.Fatalf("seed %d: %q was reported by a node that is gone", seed, is.Message)
			}
			if writes > 4 {
				t.Fatalf("seed %d: %d writes by %d nodes", seed, writes, nodes)
			}
		}
	}
}
