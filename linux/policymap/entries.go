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
	// Verdicts: row and causes by table number and peer (class * 2 + direction).
	Verdicts map[uint32]map[uint32]VerdictRow
	Rows     map[uint32]bpfobj.PodRow
	// Defaults: causes of the verdicts by default, by place of the table. Blocks: causes by class of ports. Causes:
	// their meaning by number. Entries stay until others take their place.
	Defaults map[uint32]bpfobj.PodTableCause
	Blocks   map[uint32]CauseBlock
	Causes   map[uint32]Cause
	// Tables: identity by table number.
	Tables map[uint32]model.TableID
}

// NewEntries returns the content of new maps.
func NewEntries() *Entries {
	return &Entries{
		Slots: make(map[uint32]bpfobj.PodSlot), Peers: make(map[netip.Addr]uint32), Prefixes: make(map[netip.Prefix]uint32),
		Pods: make(map[netip.Addr]bool), Ports: make([]uint16, Ports), Verdicts: make(map[uint32]map[uint32]VerdictRow), Rows: make(map[uint32]bpfobj.PodRow),
		Defaults: make(map[uint32]bpfobj.PodTableCause), Blocks: make(map[uint32]CauseBlock), Causes: make(map[uint32]Cause),
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
	return e.VerdictRow(slot, d, c).Row
}

// VerdictRow returns the row and the causes that a slot's table has for a class.
func (e *Entries) VerdictRow(slot uint32, d model.Direction, c model.PeerClass) VerdictRow {
	table := TableNumber(e.Slots[slot].Table)
	if v, ok := e.Verdicts[table][PeerKey(c, d)]; ok {
		return v
	}
	return e.Unlisted(table, d)
}

// Unlisted returns the row and the causes of classes that verdicts does not list for a table.
func (e *Entries) Unlisted(table uint32, d model.Direction) VerdictRow {
	v := VerdictRow{Row: table >> d & 1}
	if table == DenyAll {
		v.Causes = bpfobj.CausePending + uint32(d)
	} else if c, ok := e.Defaults[PlaceOfTable(table)]; ok && c.Table == table {
		v.Causes = c.Causes[d]
	}
	return v
}

// PlaceOfTable returns the index of a table in Defaults.
func PlaceOfTable(table uint32) uint32 { return table >> 2 % bpfobj.TablePlaces }

// Cause returns the number that counts a new flow, as the programs compute it: that of the cause, or one of those
// that several causes share.
func (e *Entries) Cause(v VerdictRow, d model.Direction, p model.Protocol, port uint16) uint32 {
	n := v.Causes
	if n&bpfobj.CausesByPort != 0 {
		n = e.CauseOfClass(n, e.portClass(p, port))
	}
	if _, lost := e.Rows[v.Row]; v.Row > RowAllow && !lost {
		n = bpfobj.CauseNone
	}
	if n == bpfobj.CauseNone {
		n = bpfobj.CauseOther + uint32(d)*2 + uint32(e.Verdict(v.Row, p, port))
	}
	return n
}

// CauseOfClass returns the number of the cause for a class of ports in a word with bpfobj.CausesByPort, or
// bpfobj.CauseNone.
func (e *Entries) CauseOfClass(word uint32, class uint32) uint32 {
	if class == uint32(model.ClosedPorts) {
		return bpfobj.CauseNone
	}
	if class/bpfobj.BlockCauses >= widthOf(word) {
		class = 0
	}
	return uint32(e.Blocks[placeOf(word)+class/bpfobj.BlockCauses][class%bpfobj.BlockCauses])
}

func (e *Entries) portClass(p model.Protocol, port uint16) uint32 {
	if i, ok := PortIndex(p, port); ok {
		return uint32(e.Ports[i]) % model.MaxPortClasses // as the programs do
	}
	return 0
}

// Verdict returns the verdict of a row for a protocol and port.
func (e *Entries) Verdict(row uint32, p model.Protocol, port uint16) model.Verdict {
	if row <= RowAllow {
		return model.Verdict(row)
	}
	bits, ok := e.Rows[row]
	if !ok {
		return model.Deny
	}
	class := e.portClass(p, port)
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
	Causes   []CauseWrite
	Blocks   []BlockWrite
	Tables   []TableWrite
	Verdicts []VerdictWrite
	Defaults []bpfobj.PodTableCause
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
	DropCauses   []uint32
}

// RowWrite sets an entry of rows that no verdict refers to yet.
type RowWrite struct {
	Index uint32
	Row   bpfobj.PodRow
}

// CauseWrite sets an entry of causes. Fresh numbers count from 0 on.
type CauseWrite struct {
	Number uint32
	Cause  Cause
	Fresh  bool
}

// BlockWrite sets an entry of cause_blocks that no verdict refers to yet.
type BlockWrite struct {
	Index uint32
	Block CauseBlock
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
	VerdictRow
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
	n := len(w.Rows) + len(w.Causes) + len(w.Blocks) + len(w.Defaults) + len(w.Tables) + len(w.Verdicts) + len(w.Unlist) + len(w.Peers) +
		len(w.Prefixes) + len(w.DropPrefixes) + len(w.DropPeers) + len(w.Slots) + len(w.DropVerdicts) + len(w.DropTables) + len(w.DropCauses)
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
	for _, c := range w.Causes {
		e.Causes[c.Number] = c.Cause
	}
	for _, b := range w.Blocks {
		e.Blocks[b.Index] = b.Block
	}
	for _, t := range w.Tables {
		e.Tables[t.Number] = t.ID
	}
	for _, v := range w.Verdicts {
		if e.Verdicts[v.Table] == nil {
			e.Verdicts[v.Table] = make(map[uint32]VerdictRow)
		}
		e.Verdicts[v.Table][v.Peer] = v.VerdictRow
	}
	for _, t := range w.Defaults {
		e.Defaults[PlaceOfTable(t.Table)] = t
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
	for _, n := range w.DropCauses {
		delete(e.Causes, n)
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
	c.Defaults, c.Blocks, c.Causes = maps.Clone(e.Defaults), maps.Clone(e.Blocks), maps.Clone(e.Causes)
	c.Verdicts = make(map[uint32]map[uint32]VerdictRow, len(e.Verdicts))
	for t, rows := range e.Verdicts {
		c.Verdicts[t] = maps.Clone(rows)
	}
	return &c
}

// Row is the value of the map rows: bit n is the verdict for port class n.
type Row = bpfobj.PodRow
