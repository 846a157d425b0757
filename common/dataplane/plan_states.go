// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// states builds the steps: addresses and ports to intermediate classes, endpoints to their new tables,
// addresses to their final classes, ports to theirs, and endpoints from copies to originals.
func (p *planner) states() []*model.State {
	refined := *p.new
	refined.Policy.Endpoints = make(map[model.EndpointID]model.EndpointState, len(p.old.Policy.Endpoints))
	for id, e := range p.old.Policy.Endpoints {
		if _, ok := p.new.Policy.Endpoints[id]; ok {
			refined.Policy.Endpoints[id] = e
		}
	}
	refined.Policy.Tables = p.tables()
	refined.Policy.Addresses, refined.Policy.Prefixes = p.addresses()
	refined.Policy.Ports = p.portRanges()
	refined.Policy.PeerClasses, refined.Policy.PortClasses = p.classes()

	flipped := refined
	flipped.Policy.Endpoints = make(map[model.EndpointID]model.EndpointState, len(p.new.Policy.Endpoints))
	for id, e := range p.new.Policy.Endpoints {
		if was, ok := p.old.Policy.Endpoints[id]; (!ok || was.Table != e.Table) && p.flips[e.Table] != (model.TableID{}) {
			e.Table = p.flips[e.Table]
		}
		flipped.Policy.Endpoints[id] = e
	}

	moved := flipped
	moved.Policy.Addresses, moved.Policy.Prefixes = p.new.Policy.Addresses, p.new.Policy.Prefixes

	settled := moved
	settled.Policy.Ports = p.new.Policy.Ports

	return []*model.State{&refined, &flipped, &moved, &settled, p.new}
}

// addresses returns the class of every address and prefix of either State during the change.
func (p *planner) addresses() (immutable.Map[netip.Addr, model.PeerClass], []model.PrefixClass) {
	via := func(old, new model.PeerClass) model.PeerClass {
		return model.PeerClass(p.peers.during(uint32(old), uint32(new)))
	}
	addresses := p.old.Policy.Addresses
	for a := range p.new.Policy.Addresses.Changes(p.old.Policy.Addresses) {
		addresses = addresses.With(a, via(p.old.Policy.Class(a), p.new.Policy.Class(a)))
	}
	if p.prefixes == nil {
		return addresses, p.new.Policy.Prefixes
	}
	prefixes := make([]model.PrefixClass, len(p.prefixes))
	for i, m := range p.prefixes {
		prefixes[i] = model.PrefixClass{Prefix: m.Prefix, Class: model.PeerClass(p.peers.during(m.old, m.new))}
	}
	return addresses, prefixes
}

func (p *planner) portRanges() []model.PortRange {
	if p.pieces == nil {
		return p.new.Policy.Ports
	}
	var ranges []model.PortRange
	for _, piece := range p.pieces {
		class := model.PortClass(p.ports.during(piece.old, piece.new))
		if class == model.OtherPorts {
			continue
		}
		if n := len(ranges) - 1; n >= 0 && ranges[n].Protocol == piece.protocol && ranges[n].Class == class && int(ranges[n].Last)+1 == piece.first {
			ranges[n].Last = uint16(piece.last)
			continue
		}
		ranges = append(ranges, model.PortRange{Protocol: piece.protocol, First: uint16(piece.first), Last: uint16(piece.last), Class: class})
	}
	return ranges
}

// classes lists the classes of both States and the intermediate ones.
func (p *planner) classes() ([]model.PeerClassInfo, []model.PortClassInfo) {
	peers := union(p.old.Policy.PeerClasses, p.new.Policy.PeerClasses, func(i model.PeerClassInfo) model.PeerClass { return i.Class })
	ports := union(p.old.Policy.PortClasses, p.new.Policy.PortClasses, func(i model.PortClassInfo) model.PortClass { return i.Class })
	for via, m := range p.peers.via {
		if via != m.new {
			// Not KindKnown: a node's address may pass through it.
			peers = append(peers, model.PeerClassInfo{Class: model.PeerClass(via), Kind: model.KindUnknown})
		}
	}
	for via, m := range p.ports.via {
		if via != m.new {
			ports = append(ports, model.PortClassInfo{Class: model.PortClass(via)})
		}
	}
	slices.SortFunc(peers, func(a, b model.PeerClassInfo) int { return cmp.Compare(a.Class, b.Class) })
	slices.SortFunc(ports, func(a, b model.PortClassInfo) int { return cmp.Compare(a.Class, b.Class) })
	return peers, ports
}

// union merges two lists; for a number in both it takes the entry of the second.
func union[I any, N comparable](old, new []I, number func(I) N) []I {
	have := make(map[N]bool)
	for _, i := range new {
		have[number(i)] = true
	}
	all := slices.Clone(new)
	for _, i := range old {
		if !have[number(i)] {
			all = append(all, i)
		}
	}
	return all
}
