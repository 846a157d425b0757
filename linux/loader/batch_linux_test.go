// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

func sandbox(t *testing.T) *DataPath {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: make test runs it")
	}
	d, err := OpenSandbox()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// oneByOne makes a DataPath write as on a kernel without batches.
func (d *DataPath) oneByOne() {
	o := &d.objects
	d.single = []*ebpf.Map{o.Rows, o.Tables, o.Verdicts, o.Peers4, o.Peers6, o.Prefixes4, o.Prefixes6}
}

// manyWrites returns writes that fill the maps. more removes half of the entries, and also
// entries that do not exist.
func manyWrites() (first, more *policymap.Writes) {
	first, more = &policymap.Writes{}, &policymap.Writes{}
	for i := range uint32(3 * batchSize / 2) {
		v4 := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		v6 := netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)})
		first.Verdicts = append(first.Verdicts, policymap.VerdictWrite{VerdictKey: policymap.VerdictKey{Table: 4 + i%8, Peer: i}, VerdictRow: policymap.VerdictRow{Row: i % 7}})
		first.Peers = append(first.Peers, policymap.PeerWrite{Addr: v4, Class: i}, policymap.PeerWrite{Addr: v6, Class: i + 1})
		first.Prefixes = append(first.Prefixes, policymap.PrefixWrite{Prefix: netip.PrefixFrom(v4, 32), Class: i}, policymap.PrefixWrite{Prefix: netip.PrefixFrom(v6, 128), Class: i})
		if i < 500 {
			first.Rows = append(first.Rows, policymap.RowWrite{Index: 2 + i, Row: bpfobj.PodRow{Allow: [16]uint64{uint64(i)}}})
			first.Verdicts[i].Row = 2 + i
			first.Tables = append(first.Tables, policymap.TableWrite{Number: 4 + i, ID: model.TableID{byte(i), 1}})
		}
		if i%2 == 0 {
			more.Unlist = append(more.Unlist, policymap.VerdictKey{Table: 4 + i%8, Peer: i}, policymap.VerdictKey{Table: 99, Peer: i})
			more.DropPeers = append(more.DropPeers, v4, v6, v4)
			more.DropPrefixes = append(more.DropPrefixes, netip.PrefixFrom(v6, 128), netip.PrefixFrom(v4, 32), netip.PrefixFrom(v4, 24))
			more.DropTables = append(more.DropTables, 4+i%900)
		} else {
			more.DropVerdicts = append(more.DropVerdicts, policymap.VerdictKey{Table: 4 + i%8, Peer: i})
		}
		more.Peers = append(more.Peers, policymap.PeerWrite{Addr: v6.Next(), Class: 7})
	}
	first.Slots = []policymap.SlotWrite{{Index: 3, Slot: bpfobj.PodSlot{Table: 5, Epoch: 9}}}
	return first, more
}

// TestBatchesWriteWhatSingleWritesDo compares batches, single writes and the entries in memory.
// Some deletions concern entries that do not exist.
func TestBatchesWriteWhatSingleWritesDo(t *testing.T) {
	first, more := manyWrites()
	for _, single := range []bool{false, true} {
		d := sandbox(t)
		if single {
			d.oneByOne()
		}
		want := policymap.NewEntries()
		for _, w := range []*policymap.Writes{first, more} {
			if err := d.Execute(w); err != nil {
				t.Fatal(err)
			}
			want.Execute(w)
			got, err := d.Read()
			if err != nil {
				t.Fatal(err)
			}
			for n := range want.Rows { // rows are never deleted
				if got.Rows[n] != want.Rows[n] && got.Rows[n] != (bpfobj.PodRow{}) {
					t.Errorf("row %d: %v, want %v", n, got.Rows[n], want.Rows[n])
				}
			}
			got.Rows, want.Rows = nil, map[uint32]bpfobj.PodRow{}
			if diff := cmp.Diff(fmt.Sprint(want.Verdicts), fmt.Sprint(got.Verdicts)); diff != "" {
				t.Fatalf("single=%t: verdicts: %s", single, diff)
			}
			for name, c := range map[string][2]any{"peers": {want.Peers, got.Peers}, "prefixes": {want.Prefixes, got.Prefixes},
				"tables": {want.Tables, got.Tables}, "slots": {want.Slots, got.Slots}} {
				if a, b := fmt.Sprint(c[0]), fmt.Sprint(c[1]); a != b {
					t.Errorf("single=%t: %s are not as in memory", single, name)
				}
			}
		}
		if !single && len(d.single) > 0 {
			t.Errorf("this kernel has batches, and %d maps were written one by one", len(d.single))
		}
	}
}

// TestBatchStopsWhereAMapIsFull checks which entry the error names.
func TestBatchStopsWhereAMapIsFull(t *testing.T) {
	d := sandbox(t)
	most := int(d.objects.Tables.MaxEntries())
	keys, ids := make([]bpfobj.PodTableNumber, most+10), make([]bpfobj.PodTableId, most+10)
	for i := range keys {
		keys[i].Table = uint32(i)
	}
	e := putAll(d, d.objects.Tables, keys, ids)
	if e == nil || e.at != most {
		t.Fatalf("stopped with %+v, want at %d", e, most)
	}
}
