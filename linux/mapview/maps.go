// SPDX-License-Identifier: Apache-2.0

package mapview

import (
	"cmp"
	"encoding/hex"
	"maps"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// Maps is what the maps of a node hold.
type Maps struct {
	*policymap.Entries
	// Locals holds the slot of each address of a local pod.
	Locals map[netip.Addr]uint32
	// Conns are the entries of the flow tables. It is empty if they were not read.
	Conns []Conn
	// Moving is true if the agent changed the maps while they were read.
	Moving bool
}

// Conn is an entry of conns4 or conns6.
type Conn struct {
	// Ends are in the order of the key: the lower address first, then the lower port.
	Ends     [2]netip.AddrPort
	Protocol model.Protocol
	Value    bpfobj.PodConn
}

// Table is the policy of a slot, as its numbers in the map slots say.
type Table struct {
	Slot      uint32       `json:"slot"`
	Addresses []netip.Addr `json:"addresses"`
	Table     uint32       `json:"table"`
	Epoch     uint32       `json:"epoch"`
	// Ingress and Egress are the verdicts on peers that verdicts does not list for the table.
	Ingress string `json:"ingress"`
	Egress  string `json:"egress"`
	// Rows is the number of entries of verdicts for the table.
	Rows int `json:"rows"`
	// Identity is the entry of the map tables in hexadecimal, or empty.
	Identity string `json:"identity,omitempty"`
}

// Tables returns the tables of all slots with an address, in order of slots.
func (m *Maps) Tables() []Table {
	bySlot := make(map[uint32][]netip.Addr)
	for a, slot := range m.Locals {
		bySlot[slot] = append(bySlot[slot], a)
	}
	all := make([]Table, 0, len(bySlot))
	for _, slot := range slices.Sorted(maps.Keys(bySlot)) {
		s := m.Slots[slot]
		t := Table{Slot: slot, Addresses: slices.SortedFunc(slices.Values(bySlot[slot]), netip.Addr.Compare), Table: s.Table, Epoch: s.Epoch,
			Ingress: fallback(s.Table, model.Ingress), Egress: fallback(s.Table, model.Egress), Rows: len(m.Verdicts[s.Table])}
		if id, ok := m.Entries.Tables[s.Table]; ok {
			t.Identity = hex.EncodeToString(id[:])
		}
		all = append(all, t)
	}
	return all
}

// fallback returns the verdict in the number of a table.
func fallback(table uint32, d model.Direction) string { return model.Verdict(table >> d & 1).String() }

// Peer is the class of an address or a prefix.
type Peer struct {
	// Address is what was looked up, or empty in a list of all entries.
	Address string `json:"address,omitempty"`
	// Entry is the address or prefix in the map, or empty if no entry matches.
	Entry string `json:"entry,omitempty"`
	Map   string `json:"map,omitempty"`
	Class uint32 `json:"class"`
	// Pod is true if the entry says that the address belongs to a pod.
	Pod bool `json:"pod"`
}

// Peers returns all entries of peers4, peers6, prefixes4 and prefixes6, by class.
func (m *Maps) Peers() []Peer {
	all := make([]Peer, 0, len(m.Entries.Peers)+len(m.Prefixes))
	for _, a := range slices.SortedFunc(maps.Keys(m.Entries.Peers), netip.Addr.Compare) {
		all = append(all, m.single(a))
	}
	for _, p := range slices.SortedFunc(maps.Keys(m.Prefixes), model.ComparePrefixes) {
		all = append(all, m.prefix(p))
	}
	slices.SortStableFunc(all, func(a, b Peer) int { return cmp.Compare(a.Class, b.Class) })
	return all
}

// Peer returns the entry that decides the class of an address. Without an entry it is model.World.
func (m *Maps) Peer(a netip.Addr) Peer {
	found := Peer{Class: uint32(model.World)}
	if _, ok := m.Entries.Peers[a]; ok {
		found = m.single(a)
	} else {
		for bits := a.BitLen(); bits >= 0; bits-- {
			p, _ := a.Prefix(bits)
			if _, ok := m.Prefixes[p]; ok {
				found = m.prefix(p)
				break
			}
		}
	}
	found.Address = a.String()
	return found
}

func (m *Maps) single(a netip.Addr) Peer {
	return Peer{Entry: a.String(), Map: "peers" + suffix(a), Class: m.Entries.Peers[a], Pod: m.Pods[a]}
}

func (m *Maps) prefix(p netip.Prefix) Peer {
	return Peer{Entry: p.String(), Map: "prefixes" + suffix(p.Addr()), Class: m.Prefixes[p] &^ bpfobj.PeerPod}
}

func suffix(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}
