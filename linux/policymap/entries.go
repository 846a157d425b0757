// SPDX-License-Identifier: Apache-2.0

package policymap

import (
	"maps"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// Rows that need no entry in the map rows.
const (
	RowDeny  = bpfobj.RowDeny
	RowAllow = bpfobj.RowAllow
)

// TableNumber returns the number of the table in a slot, without flags.
func TableNumber(inSlot uint32) uint32 { return inSlot &^ bpfobj.TableObserved }

// DenyAll is the number of the table of a slot before any table is written.
const DenyAll = 0

// Ports is the number of entries of the map ports.
const Ports = 3 * 65536

// Entries is the content of the policy maps.
type Entries struct {
	// Slots: table and epoch by slot number.
	Slots map[uint32]bpfobj.PodSlot
	// Peers and Prefixes: class of addresses; both IP versions.
	Peers    map[netip.Addr]uint32
	Prefixes map[netip.Prefix]uint32
	// Pods are the addresses in Peers that belong to pods. Programs know them by PEER_POD.
	Pods map[netip.Addr]bool
	// Ports: class by protocol index * 65536 + port.
	Ports []uint16
	// Verdicts: row number by table number and peer (class * 2 + direction).
	Verdicts map[uint32]map[uint32]uint32
	Rows     map[uint32]bpfobj.PodRow
	// Tables: identity by table number.
	Tables map[uint32]model.TableID
}

// NewEntries returns the content of new maps.
func NewEntries() *Entries {
	return &Entries{
		Slots: make(map[uint32]bpfobj.PodSlot), Peers: make(map[netip.Addr]uint32), Prefixes: make(map[netip.Prefix]uint32),
		Pods: make(map[netip.Addr]bool), Ports: make([]uint16, Ports), Verdicts: make(map[uint32]map[uint32]uint32), Rows: make(map[uint32]bpfobj.PodRow),
		Tables: make(map[uint32]model.TableID),
	}
}

// PeerKey returns the second half of a key of the map verdicts.
func PeerKey(c model.PeerClass, d model.Direction) uint32 { return uint32(c)*2 + uint32(d) }

// PortIndex returns the key of the map ports; false for protocols without ports.
func PortIndex(p model.Protocol, port uint16) (uint32, bool) {
	for i, proto := range model.PortProtocols {
		if proto == p {
			return uint32(i)*65536 + uint32(port), true
		}
	}
	return 0, false
}

// Lookup returns the verdict on a new flow as the programs compute it.
func (e *Entries) Lookup(slot uint32, d model.Direction, remote netip.Addr, p model.Protocol, port uint16) model.Verdict {
	return e.Verdict(e.Row(slot, d, e.Class(remote)), p, port)
}

// Row returns the number of the row that a slot's table has for a class: RowDeny, RowAllow or a
// key of Rows.
func (e *Entries) Row(slot uint32, d model.Direction, c model.PeerClass) uint32 {
	table := TableNumber(e.Slots[slot].Table)
	row, ok := e.Verdicts[table][PeerKey(c, d)]
	if !ok {
		return table >> d & 1
	}
	return row
}

// Verdict returns the verdict of a row for a protocol and port.
func (e *Entries) Verdict(row uint32, p model.Protocol, port uint16) model.Verdict {
	if row <= RowAllow {
		return model.Verdict(row)
	}
	var class uint16
	if i, ok := PortIndex(p, port); ok {
		class = e.Ports[i]
	}
	bits, ok := e.Rows[row]
	if !ok {
		return model.Deny
	}
	class %= model.MaxPortClasses // as the programs do
	return model.Verdict(bits.Allow[class/64] >> (class % 64) & 1)
}

// Class returns the class of an address: its own, else that of the longest prefix.
func (e *Entries) Class(a netip.Addr) model.PeerClass {
	if c, ok := e.Peers[a]; ok {
		return model.PeerClass(c)
	}
	for bits := a.BitLen(); bits >= 0; bits-- {
		p, _ := a.Prefix(bits)
		if c, ok := e.Prefixes[p]; ok {
			return model.PeerClass(c &^ bpfobj.PeerPod)
		}
	}
	return model.World
}

// Writes are the map writes that lead a data path from one State to the next. They must be made
// in the order of the fields, on which dataplane.Plan relies.
type Writes struct {
	Rows     []RowWrite
	Tables   []TableWrite
	Verdicts []VerdictWrite
	// Unlist removes rows whose verdict the table number already holds.
	Unlist       []VerdictKey
	Peers        []PeerWrite
	Prefixes     []PrefixWrite  // longest first
	DropPrefixes []netip.Prefix // shortest first
	DropPeers    []netip.Addr
	Ports        []PortWrite
	Slots        []SlotWrite
	DropVerdicts []VerdictKey
	DropTables   []uint32
}

// RowWrite sets an entry of rows that no verdict refers to yet.
type RowWrite struct {
	Index uint32
	Row   bpfobj.PodRow
}

// TableWrite sets an entry of tables.
type TableWrite struct {
	Number uint32
	ID     model.TableID
}

// VerdictKey is a key of verdicts.
type VerdictKey struct{ Table, Peer uint32 }

// VerdictWrite sets an entry of verdicts.
type VerdictWrite struct {
	VerdictKey
	Row uint32
}

// PeerWrite sets an entry of peers4 or peers6.
type PeerWrite struct {
	Addr  netip.Addr
	Class uint32
	// Pod is true if the address belongs to a pod, so DNAT does not apply to packets to it.
	Pod bool
}

// PrefixWrite sets an entry of prefixes4 or prefixes6.
type PrefixWrite struct {
	Prefix netip.Prefix
	Class  uint32
}

// PortWrite sets Count entries of ports from Index on.
type PortWrite struct {
	Index, Count uint32
	Class        uint16
}

// SlotWrite sets an entry of slots, as one 64-bit word.
type SlotWrite struct {
	Index uint32
	Slot  bpfobj.PodSlot
}

// Count returns the number of entries to write.
func (w *Writes) Count() int {
	n := len(w.Rows) + len(w.Tables) + len(w.Verdicts) + len(w.Unlist) + len(w.Peers) + len(w.Prefixes) + len(w.DropPrefixes) +
		len(w.DropPeers) + len(w.Slots) + len(w.DropVerdicts) + len(w.DropTables)
	for _, p := range w.Ports {
		n += int(p.Count)
	}
	return n
}

// Execute makes the writes on entries in memory.
func (e *Entries) Execute(w *Writes) {
	for _, r := range w.Rows {
		e.Rows[r.Index] = r.Row
	}
	for _, t := range w.Tables {
		e.Tables[t.Number] = t.ID
	}
	for _, v := range w.Verdicts {
		if e.Verdicts[v.Table] == nil {
			e.Verdicts[v.Table] = make(map[uint32]uint32)
		}
		e.Verdicts[v.Table][v.Peer] = v.Row
	}
	e.dropVerdicts(w.Unlist)
	for _, p := range w.Peers {
		e.Peers[p.Addr] = p.Class
		if p.Pod {
			e.Pods[p.Addr] = true
		} else {
			delete(e.Pods, p.Addr)
		}
	}
	for _, p := range w.Prefixes {
		e.Prefixes[p.Prefix] = p.Class
	}
	for _, p := range w.DropPrefixes {
		delete(e.Prefixes, p)
	}
	for _, a := range w.DropPeers {
		delete(e.Peers, a)
		delete(e.Pods, a)
	}
	for _, p := range w.Ports {
		for i := range p.Count {
			e.Ports[p.Index+i] = p.Class
		}
	}
	for _, s := range w.Slots {
		e.Slots[s.Index] = s.Slot
	}
	e.dropVerdicts(w.DropVerdicts)
	for _, t := range w.DropTables {
		delete(e.Tables, t)
	}
}

func (e *Entries) dropVerdicts(keys []VerdictKey) {
	for _, k := range keys {
		delete(e.Verdicts[k.Table], k.Peer)
		if len(e.Verdicts[k.Table]) == 0 {
			delete(e.Verdicts, k.Table)
		}
	}
}

// Clone returns a copy that shares no memory that writes change.
func (e *Entries) Clone() *Entries {
	c := *e
	c.Slots, c.Peers, c.Prefixes = maps.Clone(e.Slots), maps.Clone(e.Peers), maps.Clone(e.Prefixes)
	c.Rows, c.Tables = maps.Clone(e.Rows), maps.Clone(e.Tables)
	c.Ports = append([]uint16(nil), e.Ports...)
	c.Verdicts = make(map[uint32]map[uint32]uint32, len(e.Verdicts))
	for t, rows := range e.Verdicts {
		c.Verdicts[t] = maps.Clone(rows)
	}
	return &c
}

// Row is the value of the map rows: bit n is the verdict for port class n.
type Row = bpfobj.PodRow
