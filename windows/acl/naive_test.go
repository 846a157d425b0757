// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/world"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// size is the cost of a list in HNS.
type size struct{ rules, addresses int }

func (s size) plus(o size) size { return size{s.rules + o.rules, s.addresses + o.addresses} }

// naive counts the ACLs of the usual lowering. Every rule of every policy that selects the
// pod becomes one ACL per protocol and family, with the addresses of its peers and its
// ports. One rule per direction covers the rest.
func naive(s *model.Snapshot, pod *model.Pod, sets bool) size {
	n := size{rules: 4} // two terminal rules, two Host rules
	for _, d := range model.Directions {
		isolated := false
		var ruleSizes size
		for _, p := range s.SortedPolicies() {
			if p.Tier != model.TierNetworkPolicy || !p.Isolates[d] || p.Origin.Namespace != pod.Namespace || !p.Subject.Pods.Matches(pod.Labels) {
				continue
			}
			isolated = true
			for _, r := range p.Rules[d] {
				ruleSizes = ruleSizes.plus(naiveRule(s, pod, d, r, sets))
			}
		}
		if isolated {
			n = n.plus(ruleSizes)
		}
	}
	for _, node := range s.Nodes.All() {
		if node.Name == pod.Node {
			n.addresses += len(node.Addresses)
			n.rules += len(node.Addresses)
		}
	}
	return n
}

func naiveRule(s *model.Snapshot, pod *model.Pod, d model.Direction, r model.Rule, sets bool) size {
	total := size{}
	for key, pods := range naivePorts(s, pod, d, r) {
		_ = key
		if r.AnyPeer && pods == nil {
			total.rules++
			continue
		}
		for _, v6 := range []bool{false, true} {
			n, inPods := 0, 0
			for _, peer := range r.Peers {
				if peer.Kind == model.PeerBlock && peer.Block.CIDR.Addr().Is6() == v6 && pods == nil {
					n += len(naiveBlock(peer.Block))
				}
			}
			for _, a := range naivePeers(s, r, pods != nil) {
				if a.Is6() == v6 && (pods == nil || pods[a]) {
					inPods++
				}
			}
			if sets && n > 0 && inPods > 0 { // a set and a list
				total.rules++
			}
			n += inPods
			if n > 0 {
				total = total.plus(size{1, n})
			}
		}
	}
	return total
}

// naivePorts groups the ports of a rule by protocol. The value holds the peers to which they apply,
// because a named egress port has different numbers on different pods; nil means all peers.
func naivePorts(s *model.Snapshot, pod *model.Pod, d model.Direction, r model.Rule) map[string]map[netip.Addr]bool {
	found := map[string]map[netip.Addr]bool{}
	if r.AnyPort {
		found["any"] = nil
		return found
	}
	for _, m := range r.Ports {
		switch {
		case m.Name == "":
			found[m.Protocol.String()] = nil
		case d == model.Ingress:
			for _, n := range pod.Resolve(m.Name, m.Protocol) {
				found[n.Protocol.String()] = nil
			}
		default:
			for _, p := range s.Pods.All() {
				for _, n := range p.Resolve(m.Name, m.Protocol) {
					key := fmt.Sprint(n.Protocol, n.Port)
					if found[key] == nil {
						found[key] = map[netip.Addr]bool{}
					}
					for _, a := range p.IPs {
						found[key][a] = true
					}
				}
			}
		}
	}
	return found
}

// naivePeers lists the pods that a rule names. With a port name it adds those within its blocks, since only
// a pod defines what the name means.
func naivePeers(s *model.Snapshot, r model.Rule, named bool) []netip.Addr {
	var addrs []netip.Addr
	for a, p := range s.Owners().Pods {
		ns := s.Namespace(p.Namespace)
		if r.AnyPeer || slices.ContainsFunc(r.Peers, func(peer model.Peer) bool {
			return peer.Kind == model.PeerPods && peer.Pods.MatchesNamespace(ns) && peer.Pods.Pods.Matches(p.Labels) ||
				named && peer.Kind == model.PeerBlock && peer.Block.Contains(a)
		}) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// naiveBlock removes the exceptions from a block.
func naiveBlock(b model.IPBlock) []netip.Prefix {
	list := []netip.Prefix{b.CIDR}
	for _, e := range b.Except {
		var left []netip.Prefix
		for _, p := range list {
			left = append(left, naiveCut(p, e)...)
		}
		list = left
	}
	return list
}

func naiveCut(p, hole netip.Prefix) []netip.Prefix {
	if !p.Overlaps(hole) {
		return []netip.Prefix{p}
	}
	if hole.Bits() <= p.Bits() {
		return nil
	}
	low := netip.PrefixFrom(p.Addr(), p.Bits()+1)
	b := low.Addr().AsSlice()
	b[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	a, _ := netip.AddrFromSlice(b)
	return append(naiveCut(low, hole), naiveCut(netip.PrefixFrom(a, p.Bits()+1), hole)...)
}

// sizeOf counts a list, and a set with its members.
func sizeOf(l *acl.Lowering, id model.EndpointID) size {
	var n size
	for _, a := range l.Lists[id] {
		n.rules++
		for _, text := range []string{a.LocalAddresses, a.RemoteAddresses} {
			if text == "" {
				continue
			}
			if members, ok := l.Sets[text]; ok {
				n.addresses += len(members)
			} else {
				n.addresses += strings.Count(text, ",") + 1
			}
		}
	}
	return n
}

// withoutHoles drops the exceptions of all blocks.
func withoutHoles(s *model.Snapshot) *model.Snapshot {
	c := *s
	for key, p := range s.Policies.All() {
		q := *p
		for d := range q.Rules {
			q.Rules[d] = slices.Clone(q.Rules[d])
			for i := range q.Rules[d] {
				peers := slices.Clone(q.Rules[d][i].Peers)
				for j := range peers {
					peers[j].Block.Except = nil
				}
				q.Rules[d][i].Peers = peers
			}
		}
		c.Policies = c.Policies.With(key, &q)
	}
	return &c
}

// TestNotWorseThanNaive compares rules and addresses on clusters with NetworkPolicies only. Holes
// in blocks may cost one more rule, if that saves enough addresses.
func TestNotWorseThanNaive(t *testing.T) {
	for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
		for _, holes := range []bool{false, true} {
			var ours, theirs size
			moreRules, more, endpoints := 0, 0, 0
			for _, shape := range []world.Shape{{Pods: 10, Policies: 4}, {Pods: 30, Policies: 10}, {Pods: 60, Policies: 20, IPv6: true}} {
				for seed := range uint64(20) {
					s := world.Random(seed, shape)
					if !holes {
						s = withoutHoles(s)
					}
					state := stateOf(s, "node1", nil)
					l := acl.Lower(state, options(profile), profile.String())
					for id, e := range state.Policy.Endpoints {
						pod, _ := s.Pods.Get(e.Pod)
						a, b := sizeOf(l, id), naive(s, pod, options(profile).Sets)
						ours, theirs = ours.plus(a), theirs.plus(b)
						endpoints++
						if a.rules > b.rules {
							moreRules++
						}
						if a.rules+a.addresses > b.rules+b.addresses {
							more++
						}
						// Sets contain every group that can use them, so that lists can share them.
						// Sometimes that adds a few addresses.
						if !holes && a.rules > b.rules || !options(profile).Sets && a.rules+a.addresses > b.rules+b.addresses {
							t.Errorf("seed %d %s: %+v, naive %+v\n%s", seed, id, a, b, hns.FormatACLs("", l.Lists[id]))
						}
					}
				}
			}
			t.Logf("hns %s, %d endpoints, holes %t: rules %d against %d naive, addresses %d against %d; more rules at %d endpoints, more in all at %d",
				profile, endpoints, holes, ours.rules, theirs.rules, ours.addresses, theirs.addresses, moreRules, more)
			if ours.rules > theirs.rules || ours.addresses > theirs.addresses {
				t.Error("the sum is worse than naive")
			}
		}
	}
}
