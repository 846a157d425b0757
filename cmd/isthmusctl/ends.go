// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// group is ends of flows that are equal in every variant of a survey: pods, or
// ranges, or one node. All its addresses are of one family.
type group struct {
	v6        bool
	namespace string // of all pods
	pods      []*member
	ranges    []*addressRange
	node      string // if it is a node
	addr      netip.Addr
	stands    []stand // by variant
	os        []model.OS
}

// member is a pod with one of its addresses.
type member struct {
	id    model.PodID
	addrs []netip.Addr // by variant
	nodes []string     // by variant
}

// stand is what decides about a group in one variant.
type stand struct {
	// table decides about its pods; nil if they are none. It is in the State of
	// the part.
	table *model.Table
	part  int
	// classes are those of its addresses in every part.
	classes []model.PeerClass
}

// key is a text that only groups which are decided alike share.
func (s *stand) key() string {
	if s.table == nil {
		return fmt.Sprint("none ", s.classes)
	}
	return fmt.Sprint(s.part, " ", s.table.ID, " ", s.classes)
}

// stand returns the place of an address, and of the pod if it is one's.
func (w *variant) stand(pod *model.Pod, class func(*model.State) model.PeerClass) stand {
	var at stand
	if pod != nil {
		at.table, at.part = w.table(pod.PodID, pod)
	}
	for _, p := range w.parts {
		at.classes = append(at.classes, class(p.state))
	}
	return at
}

// addPods groups the pods that every variant has, by each of their addresses.
func (s *survey) addPods() {
	groups := make(map[string]*group)
	first := s.variants[0]
	var ids []model.PodID
	for id := range first.home {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, model.PodID.Compare)
	for _, id := range ids {
		for _, v6 := range []bool{false, true} {
			m := &member{id: id}
			g := &group{v6: v6, namespace: id.Namespace}
			key := fmt.Sprint(v6, " ", id.Namespace)
			for _, w := range s.variants {
				pod, a, ok := w.address(id, v6)
				if !ok {
					break
				}
				at := w.stand(pod, func(s *model.State) model.PeerClass { return s.Class(a) })
				os := osOf(w.snapshot, pod)
				g.stands, g.os = append(g.stands, at), append(g.os, os)
				m.addrs, m.nodes = append(m.addrs, a), append(m.nodes, pod.Node)
				key += fmt.Sprint("\n", at.key(), " ", os)
			}
			if len(m.addrs) < len(s.variants) {
				continue
			}
			if groups[key] == nil {
				groups[key] = g
				s.groups = append(s.groups, g)
			}
			groups[key].pods = append(groups[key].pods, m)
		}
	}
}

// address returns the pod's first address of a family that nobody else owns.
func (w *variant) address(id model.PodID, v6 bool) (*model.Pod, netip.Addr, bool) {
	pod, ok := w.snapshot.Pods.Get(id)
	if _, has := w.home[id]; !ok || !has {
		return nil, netip.Addr{}, false
	}
	for _, a := range pod.IPs {
		if a.Is6() == v6 && w.owners.Pods[a] == pod {
			return pod, a, true
		}
	}
	return nil, netip.Addr{}, false
}

// addNodes adds the addresses that are one node's in every variant.
func (s *survey) addNodes() {
	first := s.variants[0]
	for a, n := range first.owners.Nodes {
		g := &group{v6: a.Is6(), node: n.Name, addr: a}
		for _, w := range s.variants {
			owner, ok := w.owners.Nodes[a]
			if w.owners.Pods[a] != nil || !ok || owner.Name != n.Name {
				break
			}
			g.stands = append(g.stands, w.stand(nil, func(s *model.State) model.PeerClass { return s.Class(a) }))
			g.os = append(g.os, owner.OS)
		}
		if len(g.stands) == len(s.variants) {
			s.nodes = append(s.nodes, g)
		}
	}
	slices.SortFunc(s.nodes, func(a, b *group) int { return a.addr.Compare(b.addr) })
}

// selfOnly reports whether flows within the group are those of one pod to
// itself.
func (g *group) selfOnly() bool { return len(g.pods) == 1 }

// names lists the members: every pod, every range, or the node.
func (g *group) names() []string {
	names := []string{}
	for _, m := range g.pods {
		name := m.id.String()
		if g.v6 {
			name += "@" + m.addrs[0].String()
		}
		names = append(names, name)
	}
	for _, r := range g.ranges {
		names = append(names, r.String())
	}
	if g.node != "" {
		names = append(names, fmt.Sprintf("node %s (%s)", g.node, g.addr))
	}
	return names
}

// String names the group in a few words.
func (g *group) String() string {
	names := g.names()
	if len(names) == 1 {
		return names[0]
	}
	return fmt.Sprintf("%s +%d", names[0], len(names)-1)
}

// shorten lists a few names in full and counts the rest.
func shorten(names []string, few int) string {
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}
