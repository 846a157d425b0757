// SPDX-License-Identifier: Apache-2.0

package policymap

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// Grace is how long the number of a table or row stays unused after the last entry that
// referred to it is gone. It exceeds the time that a program can run for one packet.
const Grace = 2 * time.Second

// MigratedEpoch is the epoch of roles that were migrated from another layout. No slot ever has
// it, so every migrated flow is revalidated.
const MigratedEpoch = 1

// Layout knows the content of the maps and the numbers in use. The methods below change it; it
// is not safe for concurrent use. After a failed write, discard it and decode the maps again.
type Layout struct {
	*Entries
	capacity Capacity
	state    *model.State // the State that Entries encode
	slots    map[model.EndpointID]uint32
	tables   map[model.TableID]uint32
	rows     map[bpfobj.PodRow]uint32
	uses     map[uint32]int // of each row, by entries of verdicts
	causes
	places  map[uint32]uint32 // table by index in Defaults
	pending []VerdictRow      // rows and causes that lost an entry in this step
	garbage []VerdictKey      // entries that were found and have no meaning
	strays  []uint32          // the same for the map tables
	// strayCauses is the same for the map causes.
	strayCauses []uint32
	// unsure is true if Entries were read and may hold more than state shows.
	unsure   bool
	freed    []freedRow // oldest first
	nextRow  uint32
	next     uint32 // table number, without the bits for defaults
	epoch    uint32
	verdicts int    // entries
	peers    [2]int // entries, by IP version
	nodes    nodeAddresses
}

type freedRow struct {
	index uint32
	at    time.Time
}

// NewLayout returns a layout of empty maps.
func NewLayout(c Capacity) *Layout {
	return &Layout{
		Entries: NewEntries(), capacity: c, state: &model.State{},
		slots: make(map[model.EndpointID]uint32), tables: make(map[model.TableID]uint32),
		rows: make(map[bpfobj.PodRow]uint32), uses: make(map[uint32]int),
		causes: newCauses(), places: make(map[uint32]uint32), nextRow: RowAllow + 1, next: 1, epoch: 1,
	}
}

// State returns the State that the maps hold.
func (l *Layout) State() *model.State { return l.state }

// Slot returns the slot of an endpoint.
func (l *Layout) Slot(id model.EndpointID) (uint32, bool) {
	s, ok := l.slots[id]
	return s, ok
}

// Holders returns the endpoint of each slot.
func (l *Layout) Holders() map[uint32]model.EndpointID {
	held := make(map[uint32]model.EndpointID, len(l.slots))
	for id, slot := range l.slots {
		held[slot] = id
	}
	return held
}

// inSlot returns the word of a slot for a table.
func inSlot(number uint32, observed bool) uint32 {
	if observed {
		return number | bpfobj.TableObserved
	}
	return number
}

// AddSlot returns the slot of an endpoint. If it has none, AddSlot assigns one, with table
// DenyAll and a new epoch.
func (l *Layout) AddSlot(id model.EndpointID) (SlotWrite, error) { return l.addSlot(id, DenyAll) }

// AddObservedSlot is AddSlot for an endpoint that is observed: its packets pass before it has a
// table.
func (l *Layout) AddObservedSlot(id model.EndpointID) (SlotWrite, error) {
	return l.addSlot(id, inSlot(DenyAll, true))
}

func (l *Layout) addSlot(id model.EndpointID, table uint32) (SlotWrite, error) {
	if s, ok := l.slots[id]; ok {
		return SlotWrite{s, l.Slots[s]}, nil
	}
	used := make(map[uint32]bool, len(l.slots))
	for _, s := range l.slots {
		used[s] = true
	}
	free := uint32(0)
	for used[free] {
		free++
	}
	if int(free) >= l.capacity.Slots {
		return SlotWrite{}, &FullError{Map: "slots", Need: len(used) + 1, Max: l.capacity.Slots}
	}
	l.slots[id] = free
	w := SlotWrite{free, bpfobj.PodSlot{Table: table, Epoch: l.newEpoch()}}
	l.Slots[free] = w.Slot
	return w, nil
}

// KeepSlot gives an endpoint the slot that it has in another layout, with table DenyAll and a
// new epoch.
func (l *Layout) KeepSlot(id model.EndpointID, n uint32) (SlotWrite, error) {
	if int(n) >= l.capacity.Slots {
		return SlotWrite{}, &FullError{Map: "slots", Need: int(n) + 1, Max: l.capacity.Slots}
	}
	for other, s := range l.slots {
		if s == n {
			return SlotWrite{}, fmt.Errorf("keep slot %d of endpoint %s: endpoint %s has it", n, id, other)
		}
	}
	l.slots[id] = n
	w := SlotWrite{n, bpfobj.PodSlot{Table: DenyAll, Epoch: l.newEpoch()}}
	l.Slots[n] = w.Slot
	return w, nil
}

// DropSlot releases the slot of an endpoint and gives it table DenyAll.
func (l *Layout) DropSlot(id model.EndpointID) (SlotWrite, bool) {
	s, ok := l.slots[id]
	if !ok {
		return SlotWrite{}, false
	}
	delete(l.slots, id)
	if _, ok := l.state.Policy.Endpoints[id]; ok {
		l.state = withoutEndpoint(l.state, id)
	}
	w := SlotWrite{s, bpfobj.PodSlot{Table: DenyAll, Epoch: l.newEpoch()}}
	l.Slots[s] = w.Slot
	return w, true
}

func withoutEndpoint(s *model.State, id model.EndpointID) *model.State {
	c := *s
	c.Policy.Endpoints = make(map[model.EndpointID]model.EndpointState, len(s.Policy.Endpoints))
	for other, e := range s.Policy.Endpoints {
		if other != id {
			c.Policy.Endpoints[other] = e
		}
	}
	return &c
}

func (l *Layout) newEpoch() uint32 {
	l.epoch++
	return l.epoch
}

// Advance computes the writes that lead the maps from their current content to the State, which
// must be the next step of dataplane.Plan. It records them as made. If the State does not fit,
// it returns a *FullError and records nothing.
func (l *Layout) Advance(to *model.State, now time.Time) (*Writes, error) {
	if err := l.Check([]*model.State{to}, now); err != nil {
		return nil, err
	}
	w := l.advance(to, now)
	l.Entries.Execute(w)
	l.release(now)
	return w, nil
}

func (l *Layout) advance(to *model.State, now time.Time) *Writes {
	w := &Writes{}
	changed := l.advanceTables(to, w, now)
	l.advancePeers(to, w)
	l.advancePrefixes(to, w)
	l.advancePorts(to, w)
	l.advanceSlots(to, w, changed)
	l.collect(to, w)
	l.state, l.unsure = to, false
	return w
}

func family(a netip.Addr) int {
	if a.Is6() {
		return 1
	}
	return 0
}

func (l *Layout) advancePeers(to *model.State, w *Writes) {
	was := l.nodes
	l.nodes = was.of(to)
	written := make(map[netip.Addr]bool)
	for a := range to.Policy.Addresses.Changes(l.state.Policy.Addresses) {
		if c, ok := to.Policy.Addresses.Get(a); ok {
			w.Peers = append(w.Peers, PeerWrite{a, uint32(c), classOfPods(to, c) && !l.nodes.all[a]})
			written[a] = true
			if _, was := l.Peers[a]; !was {
				l.peers[family(a)]++
			}
		} else {
			l.peers[family(a)]--
			w.DropPeers = append(w.DropPeers, a)
		}
	}
	// Addresses that become or cease to be those of nodes, and stay in their class.
	for _, nodes := range []nodeAddresses{was, l.nodes} {
		for a := range nodes.all {
			c, ok := to.Policy.Addresses.Get(a)
			pod := ok && classOfPods(to, c) && !l.nodes.all[a]
			if ok && !written[a] && pod != l.Pods[a] {
				w.Peers = append(w.Peers, PeerWrite{a, uint32(c), pod})
				written[a] = true
			}
		}
	}
	if l.unsure {
		l.correctPeers(to, written, w)
	}
	slices.SortFunc(w.Peers, func(a, b PeerWrite) int { return a.Addr.Compare(b.Addr) })
	slices.SortFunc(w.DropPeers, netip.Addr.Compare)
}

// correctPeers writes addresses that stay in their class but are wrongly marked, or not marked,
// as pods.
func (l *Layout) correctPeers(to *model.State, written map[netip.Addr]bool, w *Writes) {
	for a := range l.Peers {
		c, ok := to.Policy.Addresses.Get(a)
		pod := ok && classOfPods(to, c) && !l.nodes.all[a]
		if ok && !written[a] && pod != l.Pods[a] {
			w.Peers = append(w.Peers, PeerWrite{a, uint32(c), pod})
		}
	}
}

// nodeAddresses are the addresses of all nodes of a State.
type nodeAddresses struct {
	all    map[netip.Addr]bool
	own    []netip.Addr  // of the State, as are routes
	routes []model.Route // States share unchanged slices
}

// of returns the addresses of another State.
func (n nodeAddresses) of(s *model.State) nodeAddresses {
	if n.all != nil && model.SameSlice(n.own, s.Fabric.NodeAddresses) && model.SameSlice(n.routes, s.Fabric.Routes) {
		return n
	}
	n = nodeAddresses{make(map[netip.Addr]bool), s.Fabric.NodeAddresses, s.Fabric.Routes}
	for _, a := range s.Fabric.NodeAddresses {
		n.all[a] = true
	}
	for _, r := range s.Fabric.Routes {
		for _, a := range r.Addresses {
			n.all[a] = true
		}
	}
	return n
}

// IsPod reports whether an address belongs to a pod, according to a State.
func IsPod(s *model.State, a netip.Addr) bool {
	c, ok := s.Policy.Addresses.Get(a)
	return ok && classOfPods(s, c) && !nodeAddresses{}.of(s).all[a]
}

// classOfPods reports whether the single addresses of a class may belong to pods. Nodes are in
// classes of their own kinds, or in World if no rule distinguishes them.
func classOfPods(s *model.State, c model.PeerClass) bool {
	if c == model.World {
		return true
	}
	i, ok := slices.BinarySearchFunc(s.Policy.PeerClasses, c, func(i model.PeerClassInfo, c model.PeerClass) int { return cmp.Compare(i.Class, c) })
	return ok && s.Policy.PeerClasses[i].Kind == model.KindKnown
}

func (l *Layout) advancePrefixes(to *model.State, w *Writes) {
	if slices.Equal(to.Policy.Prefixes, l.state.Policy.Prefixes) && !l.unsure {
		return
	}
	want := make(map[netip.Prefix]bool, len(to.Policy.Prefixes))
	for _, p := range to.Policy.Prefixes {
		want[p.Prefix] = true
		if was, ok := l.Prefixes[p.Prefix]; !ok || was != uint32(p.Class) {
			w.Prefixes = append(w.Prefixes, PrefixWrite{p.Prefix, uint32(p.Class)})
		}
	}
	for p := range l.Prefixes {
		if !want[p] {
			w.DropPrefixes = append(w.DropPrefixes, p)
		}
	}
	slices.SortFunc(w.Prefixes, func(a, b PrefixWrite) int { return shorter(b.Prefix, a.Prefix) })
	slices.SortFunc(w.DropPrefixes, shorter)
}

// shorter orders prefixes by length, the shortest first.
func shorter(a, b netip.Prefix) int {
	if a.Bits() != b.Bits() {
		return a.Bits() - b.Bits()
	}
	return model.ComparePrefixes(a, b)
}

func (l *Layout) advancePorts(to *model.State, w *Writes) {
	if slices.Equal(l.state.Policy.Ports, to.Policy.Ports) && !l.unsure {
		return
	}
	want := make([]uint16, Ports)
	for _, r := range to.Policy.Ports {
		first, _ := PortIndex(r.Protocol, r.First)
		for i := range uint32(r.Last) - uint32(r.First) + 1 {
			want[first+i] = uint16(r.Class)
		}
	}
	const stride = 1024 // skips unchanged ports quickly
	for i := 0; i < Ports; {
		if i%stride == 0 && slices.Equal(want[i:i+stride], l.Ports[i:i+stride]) {
			i += stride
			continue
		}
		if want[i] == l.Ports[i] {
			i++
			continue
		}
		n := 1
		for i+n < Ports && want[i+n] == want[i] && want[i+n] != l.Ports[i+n] {
			n++
		}
		w.Ports = append(w.Ports, PortWrite{uint32(i), uint32(n), want[i]})
		i += n
	}
}

// advanceSlots switches endpoints to their tables. It gives a new epoch to endpoints whose
// table changed its verdict on a class or an address, so that flows in progress are decided
// again.
func (l *Layout) advanceSlots(to *model.State, w *Writes, changed map[model.TableID]bool) {
	all := len(w.Prefixes) > 0 || len(w.DropPrefixes) > 0 || len(w.Ports) > 0
	moved := l.movedClasses(to, w)
	otherwise := make(map[model.TableID]bool)
	for id := range to.Policy.Tables {
		otherwise[id] = all || changed[id] || l.saysOtherwise(to, id, moved)
	}
	inOrder := slices.SortedFunc(maps.Keys(l.slots), func(a, b model.EndpointID) int { return int(l.slots[a]) - int(l.slots[b]) })
	for _, id := range inOrder { // keeps epochs deterministic
		s, table := l.slots[id], uint32(DenyAll)
		e, ok := to.Policy.Endpoints[id]
		if ok {
			table = inSlot(l.tables[e.Table], e.Observed)
		}
		was := l.Slots[s]
		if was.Table != table || ok && otherwise[e.Table] {
			w.Slots = append(w.Slots, SlotWrite{s, bpfobj.PodSlot{Table: table, Epoch: l.newEpoch()}})
		}
	}
}

type classMove struct{ from, to model.PeerClass }

func (l *Layout) movedClasses(to *model.State, w *Writes) map[classMove]bool {
	moved := make(map[classMove]bool)
	add := func(a netip.Addr) {
		if m := (classMove{l.state.Policy.Class(a), to.Policy.Class(a)}); m.from != m.to {
			moved[m] = true
		}
	}
	for _, p := range w.Peers {
		add(p.Addr)
	}
	for _, a := range w.DropPeers {
		add(a)
	}
	return moved
}

func (l *Layout) saysOtherwise(to *model.State, id model.TableID, moved map[classMove]bool) bool {
	was, is := l.state.Policy.Tables[id], to.Policy.Tables[id]
	if was == nil || is == nil {
		return true
	}
	for m := range moved {
		for _, d := range model.Directions {
			if a, b := was.Sides[d].Row(m.from), is.Sides[d].Row(m.to); a != b && encodeRow(a) != encodeRow(b) {
				return true
			}
		}
	}
	return false
}
