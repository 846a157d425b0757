// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// version is one version of the cluster.
type version struct {
	snapshot *model.Snapshot
	owners   model.Owners
	// pods are those that policies apply to and that have an address; list has them in
	// order, and index is the position of each in it.
	pods  map[model.PodID]*model.Pod
	list  []*model.Pod
	index map[model.PodID]int
	// policies are those that select a pod, in order of evaluation; selecting are their
	// indices by pod.
	policies  []*policy
	selecting [][]int32
	labels    *labelIndex
	// prefixes are those of blocks, of their holes and of the pod ranges of nodes.
	prefixes map[netip.Prefix]bool
	// egressNames are the port names that egress rules use.
	egressNames map[string]bool
}

// policy is a policy that selects a pod.
type policy struct {
	*model.Policy
	// rules are those of the directions that the policy decides. texts are equal only for
	// policies that decide a direction alike; "" means that the policy has no effect.
	rules [2][]*model.Rule
	texts [2]string
}

func newVersion(s *model.Snapshot) *version {
	v := &version{snapshot: s, owners: s.Owners(), pods: make(map[model.PodID]*model.Pod), index: make(map[model.PodID]int),
		prefixes: make(map[netip.Prefix]bool), egressNames: make(map[string]bool)}
	for id, p := range s.Pods.All() {
		if p.Policed() && len(p.IPs) > 0 {
			v.pods[id] = p
			v.list = append(v.list, p)
		}
	}
	slices.SortFunc(v.list, func(a, b *model.Pod) int { return a.PodID.Compare(b.PodID) })
	for i, p := range v.list {
		v.index[p.PodID] = i
	}
	all := s.SortedPolicies()
	v.labels = indexLabels(s, v.list, selectorsOf(all))
	v.selecting = make([][]int32, len(v.list))
	for _, p := range all {
		subject := v.labels.selected(p.Subject)
		if subject.empty() {
			continue
		}
		for i := range subject.all() {
			v.selecting[i] = append(v.selecting[i], int32(len(v.policies)))
		}
		v.policies = append(v.policies, v.prepare(p))
	}
	for _, n := range s.Nodes.All() {
		for _, c := range n.PodCIDRs {
			v.prefixes[c] = true
		}
	}
	return v
}

// selectorsOf lists the selectors of pods.
func selectorsOf(policies []*model.Policy) []model.Selector {
	var all []model.Selector
	for _, p := range policies {
		all = append(all, p.Subject.Pods)
		for _, rules := range p.Rules {
			for i := range rules {
				for _, peer := range rules[i].Peers {
					if peer.Kind == model.PeerPods {
						all = append(all, peer.Pods.Pods)
					}
				}
			}
		}
	}
	return all
}

// prepare records the words that the rules of a policy use.
func (v *version) prepare(p *model.Policy) *policy {
	c := &policy{Policy: p}
	for _, d := range model.Directions {
		if p.Tier == model.TierNetworkPolicy && !p.Isolates[d] {
			continue // rules of a direction that policyTypes does not list have no effect
		}
		var text strings.Builder
		for i := range p.Rules[d] {
			r := &p.Rules[d][i]
			c.rules[d] = append(c.rules[d], r)
			fmt.Fprintf(&text, "%s %t %t", r.Action, r.AnyPeer, r.AnyPort)
			for _, peer := range r.Peers {
				fmt.Fprintf(&text, " %d %q", peer.Kind, peer)
				if peer.Kind == model.PeerBlock {
					v.prefixes[peer.Block.CIDR] = true
					for _, e := range peer.Block.Except {
						v.prefixes[e] = true
					}
				}
			}
			for _, m := range r.Ports {
				fmt.Fprintf(&text, " %q", m)
				if d == model.Egress && m.Name != "" {
					v.egressNames[m.Name] = true
				}
			}
			text.WriteByte('\n')
		}
		if len(c.rules[d]) > 0 || p.Isolates[d] {
			c.texts[d] = fmt.Sprintf("%d\n%s", p.Tier, text.String())
		}
	}
	return c
}

// portRanges adds the ranges that rules name, and the ports that names stand for on some
// pod.
func (v *version) portRanges(to map[Cell]bool) {
	named := make(map[string]bool)
	for _, p := range v.policies {
		for _, rules := range p.rules {
			for _, r := range rules {
				for _, m := range r.Ports {
					if m.Name != "" {
						named[m.Name] = true
					} else {
						to[Cell{m.Protocol, m.First, m.Last}] = true
					}
				}
			}
		}
	}
	for _, p := range v.list {
		for _, n := range p.Ports {
			if named[n.Name] {
				to[Cell{n.Protocol, n.Port, n.Port}] = true
			}
		}
	}
}
