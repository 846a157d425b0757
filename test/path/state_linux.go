// SPDX-License-Identifier: Apache-2.0

package path

import (
	"crypto/sha256"
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/test/path/reference"
)

// Classes of addresses: one for each party, one for unused addresses in the range of the
// node.
func classOf(party string) model.PeerClass {
	return model.PeerClass(slices.Index(parties, party) + 1) // 0 is World
}

const unknownClass = 100

// protocols are the protocols with ports.
var protocols = []model.Protocol{model.TCP, model.UDP, model.SCTP}

// portClasses calls f for every class of ports: one port of a protocol, or, as the last class of a protocol, all
// its other ports.
func portClasses(f func(class model.PortClass, proto model.Protocol, port uint16, other bool)) {
	class := model.PortClass(1)
	for _, proto := range protocols {
		for _, port := range ports {
			f(class, proto, port, false)
			class++
		}
		f(class, proto, 1, true)
		class++
	}
}

// portRanges lists the ranges of all classes.
func portRanges() (all []model.PortRange) {
	portClasses(func(class model.PortClass, proto model.Protocol, port uint16, other bool) {
		if !other {
			all = append(all, model.PortRange{Protocol: proto, First: port, Last: port, Class: class})
			return
		}
		first := uint16(0)
		for _, port := range ports {
			all = append(all, model.PortRange{Protocol: proto, First: first, Last: port - 1, Class: class})
			first = port + 1
		}
		all = append(all, model.PortRange{Protocol: proto, First: first, Last: 65535, Class: class})
	})
	slices.SortFunc(all, func(a, b model.PortRange) int {
		return (int(a.Protocol)<<16 + int(a.First)) - (int(b.Protocol)<<16 + int(b.First))
	})
	return all
}

func verdict(allowed bool) model.Decision {
	if allowed {
		return model.Decision{Verdict: model.Allow}
	}
	return model.Decision{Verdict: model.Deny}
}

// tableOf compiles a policy for every party and class of ports.
func tableOf(p *reference.Policy) *model.Table {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // a policy is a plain value
	}
	sum := sha256.Sum256(text)
	t := &model.Table{ID: model.TableID(sum[:16])}
	for _, dir := range model.Directions {
		row := func(party string) *model.Row {
			cells := []model.Decision{verdict(p.Allows(reference.Direction(dir), party, 0, 0))}
			portClasses(func(_ model.PortClass, proto model.Protocol, port uint16, _ bool) {
				cells = append(cells, verdict(p.Allows(reference.Direction(dir), party, uint8(proto), port)))
			})
			return &model.Row{Cells: cells}
		}
		// A default does not distinguish ports: all classes in use are listed.
		side := model.Side{Default: &model.Row{Cells: []model.Decision{verdict(!p.Isolated[dir])}}}
		rows := map[model.PeerClass]*model.Row{model.World: row(""), unknownClass: row("")}
		for _, party := range parties {
			rows[classOf(party)] = row(party)
		}
		side.Rows = immutable.MakeMap(rows)
		t.Sides[dir] = side
	}
	return t
}

// layouts builds the State of a node.
type layouts struct {
	ranges   []model.PortRange
	prefixes []model.PrefixClass
	classes  []model.PeerClassInfo
	routes   []model.Route
	tables   map[string]*model.Table
}

func newLayouts() *layouts {
	l := &layouts{ranges: portRanges(), tables: make(map[string]*model.Table)}
	for name, all := range outsides {
		for _, p := range all {
			l.prefixes = append(l.prefixes, model.PrefixClass{Prefix: p, Class: classOf(name)})
		}
	}
	for _, p := range ranges {
		l.prefixes = append(l.prefixes, model.PrefixClass{Prefix: p, Class: unknownClass})
	}
	slices.SortFunc(l.prefixes, func(a, b model.PrefixClass) int { return model.ComparePrefixes(a.Prefix, b.Prefix) })
	l.classes = []model.PeerClassInfo{{Class: model.World}} // sorted
	for _, party := range parties {
		info := model.PeerClassInfo{Class: classOf(party)}
		switch party {
		case "node":
			info.Kind = model.KindThisNode
		case "node2":
			info.Kind = model.KindOtherNode
		}
		l.classes = append(l.classes, info)
	}
	l.classes = append(l.classes, model.PeerClassInfo{Class: unknownClass, Kind: model.KindUnknown})
	l.routes = []model.Route{{Node: "node2", Addresses: otherNode}}
	return l
}

func endpointID(name string) model.EndpointID { return model.MakeEndpointID(name, "eth0") }

// state returns what the node should enforce with these pods.
func (l *layouts) state(pods map[int]*reference.Pod) *model.State {
	s := &model.State{
		Node: "node",
		Policy: model.PolicyState{Endpoints: make(map[model.EndpointID]model.EndpointState), Tables: make(map[model.TableID]*model.Table),
			Prefixes: l.prefixes, Ports: l.ranges, PeerClasses: l.classes, NextPeerClass: unknownClass + 1},
		Fabric: model.FabricState{PodCIDRs: ranges, NodeAddresses: nodeAddrs, Routes: l.routes},
	}
	single := make(map[netip.Addr]model.PeerClass)
	for name, all := range remotes {
		for _, a := range all {
			single[a] = classOf(name)
		}
	}
	for i, name := range []string{"node", "node2"} {
		for _, a := range [][]netip.Addr{nodeAddrs, otherNode}[i] {
			single[a] = classOf(name)
		}
	}
	for _, p := range pods {
		t := l.table(&p.Policy)
		s.Policy.Tables[t.ID] = t
		s.Policy.Endpoints[endpointID(p.Name)] = model.EndpointState{Pod: model.PodID{Namespace: "ns", Name: p.Name}, IPs: p.Addrs, Table: t.ID}
		for _, a := range p.Addrs {
			single[a] = classOf(p.Name)
		}
	}
	s.Policy.Addresses = immutable.MakeMap(single)
	return s
}

// table returns the same table for the same policy.
func (l *layouts) table(p *reference.Policy) *model.Table {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // a policy is a plain value
	}
	t, ok := l.tables[string(text)]
	if !ok {
		if len(l.tables) > 1000 {
			clear(l.tables)
		}
		t = tableOf(p)
		l.tables[string(text)] = t
	}
	return t
}
