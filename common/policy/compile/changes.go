// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// difference holds the objects in which an input differs from the one before.
type difference struct {
	namespaces []string
	nodes      []change[model.Node]
	policies   []change[model.Policy]
	pods       []podChange
	// endpoints are those whose Table may change.
	endpoints map[model.EndpointID]bool
	// others are the changed objects that policy does not read.
	others otherObjects
}

// change is an object before and after; nil if it does not exist then.
type change[T any] struct{ was, is *T }

type podChange struct {
	change[model.Pod]
	wasIPs []netip.Addr
}

func (d *difference) none() bool {
	return len(d.namespaces)+len(d.nodes)+len(d.policies)+len(d.pods)+len(d.endpoints) == 0 && d.others == (otherObjects{})
}

// changes compares an input with the one before. It also records the endpoints of the new
// input.
func (c *Compiler) changes(in Input) *difference {
	is, was := in.Snapshot, c.snapshot
	d := &difference{endpoints: make(map[model.EndpointID]bool), others: compareOthers(was, is)}
	d.namespaces = slices.Sorted(is.Namespaces.Changes(was.Namespaces))
	d.nodes = objectChanges(is.Nodes, was.Nodes, strings.Compare)
	d.policies = objectChanges(is.Policies, was.Policies, model.Origin.Compare)

	pods := make(map[model.PodID]bool)
	for id := range is.Pods.Changes(was.Pods) {
		pods[id] = true
		for _, e := range c.selected.byPod[id] {
			d.endpoints[e] = true
		}
	}
	changed := c.selected.changedEndpoints(in.Endpoints)
	for _, id := range changed {
		d.endpoints[id] = true
		if e, ok := c.selected.endpoints[id]; ok {
			pods[e.Pod] = true
		}
		if e, ok := in.Endpoints[id]; ok {
			pods[e.Pod] = true
		}
	}
	d.pods = make([]podChange, 0, len(pods))
	for id := range pods {
		p := podChange{}
		p.was, _ = was.Pods.Get(id)
		p.is, _ = is.Pods.Get(id)
		p.wasIPs = c.selected.addressesOf(p.was)
		d.pods = append(d.pods, p)
	}
	c.selected.changeEndpoints(changed, in.Endpoints)
	return d
}

func objectChanges[K comparable, V any](is, was immutable.Map[K, *V], compare func(a, b K) int) []change[V] {
	var all []change[V]
	for _, k := range slices.SortedFunc(is.Changes(was), compare) {
		var c change[V]
		c.was, _ = was.Get(k)
		c.is, _ = is.Get(k)
		all = append(all, c)
	}
	return all
}

// routes lists the other nodes.
func routes(s *model.Snapshot, self string) []model.Route {
	var all []model.Route
	for _, n := range s.Nodes.All() {
		if n.Name == self {
			continue
		}
		r := model.Route{Node: n.Name, OS: n.OS, PodCIDRs: n.PodCIDRs, NodeInfo: n.NodeInfo, Foreign: n.Foreign}
		for _, v6 := range []bool{false, true} {
			if a, ok := n.Address(v6); ok {
				r.Addresses = append(r.Addresses, a)
			}
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b model.Route) int { return strings.Compare(a.Node, b.Node) })
	return all
}
