// SPDX-License-Identifier: Apache-2.0

package policymap_test

import (
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/test/world"
)

// TestEpochs restarts the agent after every change and removes endpoints. A changed slot
// gets an epoch that no slot ever had, so flows of an earlier policy or an earlier pod are
// decided again.
func TestEpochs(t *testing.T) {
	for seed := range uint64(6) {
		k := newKernel()
		s := world.Random(seed, shapes[0])
		highest := uint32(policymap.MigratedEpoch)
		// later records the slots and checks those that differ from was.
		later := func(what string, was *policymap.Entries) {
			t.Helper()
			so := highest
			for n, slot := range k.Slots {
				if slot != was.Slots[n] && slot.Epoch <= so {
					t.Fatalf("seed %d, %s: slot %d has epoch %d, and epoch %d was given before", seed, what, n, slot.Epoch, so)
				}
				highest = max(highest, slot.Epoch)
			}
		}
		for round := range uint64(6) {
			was := k.Entries.Clone()
			state := stateOf(t, s, k.layout.State())
			k.apply(t, state)
			later("a change", was)
			was = k.Entries.Clone()
			for id := range state.Policy.Endpoints {
				if w, ok := k.layout.DropSlot(id); ok {
					k.Slots[w.Index] = w.Slot
					if w.Slot == was.Slots[w.Index] {
						t.Fatalf("seed %d: slot %d of a removed endpoint stays %+v", seed, w.Index, w.Slot)
					}
				}
				break
			}
			later("a removal", was)
			k.restart(t)
			s = world.Mutate(seed*100+round, s, shapes[0], 1)
		}
	}
}

// peered returns a State of one endpoint. Only one peer may reach it, at ports of class 1 and
// of no class. infos are the classes of peers.
func peered(ports []model.PortRange, peers map[netip.Addr]model.PeerClass, infos ...model.PeerClassInfo) *model.State {
	deny := &model.Row{Cells: []model.Decision{{}, {}}}
	allow := &model.Row{Cells: []model.Decision{{Verdict: model.Allow}, {}}}
	table := &model.Table{ID: model.TableID{1}, Sides: [2]model.Side{
		{Default: deny, Rows: immutable.MakeMap(map[model.PeerClass]*model.Row{1: allow})}, {Default: deny}}}
	return &model.State{
		Policy: model.PolicyState{Endpoints: map[model.EndpointID]model.EndpointState{"a": {Table: table.ID}},
			Tables:      map[model.TableID]*model.Table{table.ID: table},
			Addresses:   immutable.MakeMap(peers),
			Ports:       ports,
			PeerClasses: append([]model.PeerClassInfo{{Class: model.World}}, infos...),
			PortClasses: []model.PortClassInfo{{Class: 0}, {Class: 1}}},
	}
}

// TestRemovePeer removes the address of a peer that a table allows. The table stays; flows of
// the peer must be decided again.
func TestRemovePeer(t *testing.T) {
	peer := netip.MustParseAddr("10.0.3.3")
	known := model.PeerClassInfo{Class: 1}
	with, without := peered(nil, map[netip.Addr]model.PeerClass{peer: 1}, known), peered(nil, nil, known)
	without.Policy.Tables = with.Policy.Tables
	k := newKernel()
	k.apply(t, with)
	slot, _ := k.layout.Slot("a")
	was := k.Slots[slot]
	if k.Lookup(slot, model.Ingress, peer, model.TCP, 80) != model.Allow {
		t.Fatal("the peer is denied: the test shows nothing")
	}
	k.apply(t, without)
	if k.Lookup(slot, model.Ingress, peer, model.TCP, 80) != model.Deny {
		t.Error("the peer that is gone is allowed")
	}
	if is := k.Slots[slot]; is.Epoch == was.Epoch {
		t.Errorf("the slot stays %+v: flows of the peer go on", is)
	}
}

// TestRemovePrefix is TestRemovePeer for a range.
func TestRemovePrefix(t *testing.T) {
	known := model.PeerClassInfo{Class: 1}
	with, without := peered(nil, nil, known), peered(nil, nil, known)
	with.Policy.Prefixes = []model.PrefixClass{{Prefix: netip.MustParsePrefix("10.0.3.0/24"), Class: 1}}
	without.Policy.Tables = with.Policy.Tables
	k := newKernel()
	k.apply(t, with)
	slot, _ := k.layout.Slot("a")
	was, peer := k.Slots[slot], netip.MustParseAddr("10.0.3.3")
	if k.Lookup(slot, model.Ingress, peer, model.TCP, 80) != model.Allow {
		t.Fatal("the range is denied: the test shows nothing")
	}
	k.apply(t, without)
	if is := k.Slots[slot]; is.Epoch == was.Epoch || k.Lookup(slot, model.Ingress, peer, model.TCP, 80) != model.Deny {
		t.Errorf("the slot was %+v and is %+v: flows of the range go on", was, is)
	}
}

// TestTableThatChanges changes only the verdict of a table for a peer.
func TestTableThatChanges(t *testing.T) {
	peer := netip.MustParseAddr("10.0.3.3")
	allows, denies := peered(nil, map[netip.Addr]model.PeerClass{peer: 1}, model.PeerClassInfo{Class: 1}), peered(nil, map[netip.Addr]model.PeerClass{peer: 1}, model.PeerClassInfo{Class: 1})
	id := model.TableID{1}
	denies.Policy.Tables[id].Sides[model.Ingress].Rows = immutable.MakeMap(map[model.PeerClass]*model.Row{1: {Cells: []model.Decision{{}, {Verdict: model.Allow}}}})
	k := newKernel()
	k.apply(t, allows)
	slot, _ := k.layout.Slot("a")
	was := k.Slots[slot]
	w, err := k.layout.Advance(denies, k.now)
	if err != nil {
		t.Fatal(err)
	}
	k.Entries.Execute(w)
	if is := k.Slots[slot]; is.Epoch == was.Epoch || k.Lookup(slot, model.Ingress, peer, model.TCP, 81) != model.Deny {
		t.Errorf("the slot was %+v and is %+v: flows of the peer go on", was, is)
	}
}

// TestClosedPorts checks rows that deny the class of closed ports and allow all ports without a
// class.
func TestClosedPorts(t *testing.T) {
	peer := netip.MustParseAddr("10.0.3.3")
	ports := []model.PortRange{{Protocol: model.TCP, First: 80, Last: 80, Class: model.ClosedPorts}, {Protocol: model.TCP, First: 90, Last: 90, Class: 1}}
	k := newKernel()
	k.apply(t, peered(ports, map[netip.Addr]model.PeerClass{peer: 1}, model.PeerClassInfo{Class: 1}))
	slot, _ := k.layout.Slot("a")
	for port, want := range map[uint16]model.Verdict{80: model.Deny, 81: model.Allow, 90: model.Deny} {
		if got := k.Lookup(slot, model.Ingress, peer, model.TCP, port); got != want {
			t.Errorf("port %d: %s, want %s", port, got, want)
		}
	}
}

// TestPodBit checks that only addresses in classes of known addresses count as pods.
// Packets to other addresses may be for a Service, and are decided after DNAT.
func TestPodBit(t *testing.T) {
	peer, node := netip.MustParseAddr("10.0.3.3"), netip.MustParseAddr("192.168.0.1")
	for kind, want := range map[model.AddressKind]bool{model.KindKnown: true, model.KindThisNode: false, model.KindOtherNode: false, model.KindUnknown: false} {
		s := peered(nil, map[netip.Addr]model.PeerClass{peer: 1, node: 1}, model.PeerClassInfo{Class: 1, Kind: kind})
		s.Fabric.NodeAddresses = []netip.Addr{node}
		k := newKernel()
		k.apply(t, s)
		if got := policymap.IsPod(s, peer); got != want || k.Pods[peer] != want {
			t.Errorf("%s: a pod %t, written as pod %t, want %t", kind, got, k.Pods[peer], want)
		}
		if policymap.IsPod(s, node) || k.Pods[node] {
			t.Errorf("%s: an address of the node counts as a pod's", kind)
		}
	}
}

// TestNumbersOfLeftOverVerdicts ends an agent between the removal of a table and that of its
// verdicts. A new table must not get the number of those verdicts.
func TestNumbersOfLeftOverVerdicts(t *testing.T) {
	peer := map[netip.Addr]model.PeerClass{netip.MustParseAddr("10.0.2.1"): 1}
	state := peered([]model.PortRange{{Protocol: model.TCP, First: 80, Last: 80, Class: 1}}, peer, model.PeerClassInfo{Class: 1})
	k := newKernel()
	k.apply(t, state)
	var old uint32
	for number := range k.Tables {
		old = number
	}
	if len(k.Verdicts[old]) == 0 {
		t.Fatalf("table %d has no verdicts", old)
	}
	delete(k.Tables, old)
	for n, s := range k.Slots {
		s.Table = policymap.DenyAll
		k.Slots[n] = s
	}
	k.Rows = policymap.UsedRows(k.Verdicts, k.row)
	k.layout, _ = policymap.Decode(k.Entries.Clone(), map[model.EndpointID]uint32{}, roomy) // reports the verdicts
	for _, table := range state.Policy.Tables {
		table.ID = model.TableID{2}
		state.Policy.Tables = map[model.TableID]*model.Table{table.ID: table}
		state.Policy.Endpoints = map[model.EndpointID]model.EndpointState{"a": {Table: table.ID}}
	}
	k.apply(t, state)
	for number := range k.Tables {
		if number>>2 <= old>>2 {
			t.Errorf("the new table has number %d, after verdicts of table %d were left", number, old)
		}
	}
}
