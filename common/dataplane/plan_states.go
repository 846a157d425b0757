// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// states builds the steps: addresses and ports to intermediate classes, endpoints to their new tables,
// addresses to their final classes, ports to theirs, and endpoints from copies to originals.
func (p *planner) states() []*model.State {
	refined := *p.new
	refined.Endpoints = make(map[model.EndpointID]model.EndpointState, len(p.old.Endpoints))
	for id, e := range p.old.Endpoints {
		if _, ok := p.new.Endpoints[id]; ok {
			refined.Endpoints[id] = e
		}
	}
	refined.Tables = p.tables()
	refined.Addresses, refined.Prefixes = p.addresses()
	refined.Ports = p.portRanges()
	refined.PeerClasses, refined.PortClasses = p.classes()

	flipped := refined
	flipped.Endpoints = make(map[model.EndpointID]model.EndpointState, len(p.new.Endpoints))
	for id, e := range p.new.Endpoints {
		if was, ok := p.old.Endpoints[id]; (!ok || was.Table != e.Table) && p.flips[e.Table] != (model.TableID{}) {
			e.Table = p.flips[e.Table]
		}
		flipped.Endpoints[id] = e
	}

	moved := flipped
	moved.Addresses, moved.Prefixes = p.new.Addresses, p.new.Prefixes

	settled := moved
	settled.Ports = p.new.Ports

	return []*model.State{&refined, &flipped, &moved, &settled, p.new}
}

// addresses returns the class of every address and prefix of either State during the change.
func (p *planner) addresses() (model.Map[netip.Addr, model.PeerClass], []model.PrefixClass) {
	via := func(old, new model.PeerClass) model.PeerClass {
		return model.PeerClass(p.peers.during(uint32(old), uint32(new)))
	}
	addresses := p.old.Addresses
	for a := range p.new.Addresses.Changes(p.old.Addresses) {
		addresses = addresses.With(a, via(p.old.Class(a), p.new.Class(a)))
	}
	if p.prefixes == nil {
		return addresses, p.new.Prefixes
	}
	prefixes := make([]model.PrefixClass, len(p.prefixes))
	for i, m := range p.prefixes {
		prefixes[i] = model.PrefixClass{Prefix: m.Prefix, Class: model.PeerClass(p.peers.during(m.old, m.new))}
	}
	return addresses, prefixes
}

func (p *planner) portRanges() []model.PortRange {
	if p.pieces == nil {
		return p.new.Ports
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
	peers := union(p.old.PeerClasses, p.new.PeerClasses, func(i model.PeerClassInfo) model.PeerClass { return i.Class })
	ports := union(p.old.PortClasses, p.new.PortClasses, func(i model.PortClassInfo) model.PortClass { return i.Class })
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
