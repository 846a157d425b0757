// SPDX-License-Identifier: Apache-2.0

package migrate_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/migrate"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

func TestConversionGoesByNameAndSize(t *testing.T) {
	from := migrate.Shape{Size: 14, Fields: []migrate.Field{{"flags", 0, 1}, {"seen", 2, 4}, {"gone", 6, 2}, {"wide", 8, 2}, {"side", 10, 2}}}
	to := migrate.Shape{Size: 16, Fields: []migrate.Field{{"seen", 0, 4}, {"side", 4, 2}, {"fresh", 6, 2}, {"wide", 8, 4}, {"flags", 12, 1}}}
	c, err := migrate.NewConversion(from, to, "seen", "side")
	if err != nil {
		t.Fatal(err)
	}
	got := c.Convert([]byte{1, 99, 2, 3, 4, 5, 98, 98, 97, 97, 6, 7, 96, 96})
	if want := []byte{2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}; !bytes.Equal(got, want) {
		t.Errorf("converted %v, want %v", got, want)
	}
	if !c.Copies("flags", "side") || c.Copies("flags", "wide") || c.Copies("fresh") {
		t.Error("flags and side are copied; wide has another size, and fresh is new")
	}
	if at := c.From("side"); at != 10 {
		t.Errorf("side comes from %d", at)
	}
	if got := c.Convert(make([]byte, 13)); got != nil {
		t.Errorf("a struct of another size became %v", got)
	}
	for _, name := range []string{"wide", "fresh", "nowhere"} {
		if _, err := migrate.NewConversion(from, to, name); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is required: %v", name, err)
		}
	}
	for _, bad := range []migrate.Field{{"a", 13, 2}, {"a", -1, 1}, {"a", 0, 0}, {"seen", 0, 1}, {"a", 0, 1 << 62}, {"a", 1 << 62, 1}} {
		broken := migrate.Shape{Size: 14, Fields: append(slices.Clone(from.Fields), bad)}
		if _, err := migrate.NewConversion(broken, to); err == nil {
			t.Errorf("a struct with %+v is taken", bad)
		}
	}
}

func TestShapesAreEqual(t *testing.T) {
	a := migrate.Shape{Size: 6, Fields: []migrate.Field{{"x", 0, 4}, {"y", 4, 2}}}
	if !a.Equal(migrate.Shape{Size: 6, Fields: []migrate.Field{{"y", 4, 2}, {"x", 0, 4}}}) {
		t.Error("the order in which fields are listed matters")
	}
	for _, b := range []migrate.Shape{
		{Size: 8, Fields: a.Fields}, {Size: 6, Fields: a.Fields[:1]},
		{Size: 6, Fields: []migrate.Field{{"x", 0, 4}, {"z", 4, 2}}}, {Size: 6, Fields: []migrate.Field{{"y", 0, 2}, {"x", 2, 4}}},
	} {
		if a.Equal(b) {
			t.Errorf("%v is equal to %v", a, b)
		}
	}
}

// Roles stay, under an epoch that no slot has. Flows with unknown values are rejected.
func TestConvertFlow(t *testing.T) {
	v2 := migrate.FlowFields{Backend: true}
	old := bpfobj.PodCarriedFlow{Seen: 7, State: 1, Side: [2]uint8{1, 6}, Flags: 3, Packets: [2]uint64{3, 1 << 40}, BackendPort: 80, Backend: [16]byte{15: 2}}
	got, ok := migrate.ConvertFlow(old, v2)
	want := bpfobj.PodConn{Seen: 7, State: 1, FlowFlags: bpfobj.ConnDirect | bpfobj.ConnTranslated, Sent: [2]uint32{3, math.MaxUint32},
		End: ends(policymap.MigratedEpoch, bpfobj.RoleOpened, bpfobj.RoleAccepted|bpfobj.RoleRevoked), BackendPort: 80, Backend: [16]byte{15: 2}}
	if !ok || got != want {
		t.Errorf("carried %+v, %t, want %+v", got, ok, want)
	}
	got, _ = migrate.ConvertFlow(old, migrate.FlowFields{})
	if want.FlowFlags, want.BackendPort, want.Backend = bpfobj.ConnDirect, 0, [16]byte{}; got != want {
		t.Errorf("without a backend carried %+v, want %+v", got, want)
	}
	old.Flags = 0xfd
	if got, _ := migrate.ConvertFlow(old, v2); got.FlowFlags != bpfobj.ConnDirect {
		t.Errorf("flags 0xfd were carried as %#x", got.FlowFlags)
	}
	for _, change := range []func(*bpfobj.PodCarriedFlow){
		func(c *bpfobj.PodCarriedFlow) { c.State = 3 }, func(c *bpfobj.PodCarriedFlow) { c.Side[0] = 8 }, func(c *bpfobj.PodCarriedFlow) { c.Side[1] = 0x81 },
	} {
		odd := old
		change(&odd)
		if _, ok := migrate.ConvertFlow(odd, v2); ok {
			t.Errorf("%+v was carried", odd)
		}
	}
	v3 := migrate.FlowFields{End: true, Backend: true, Client: true}
	now := bpfobj.PodCarriedFlow{Seen: 7, State: 2, End: ends(40, bpfobj.RoleAccepted|bpfobj.RoleOfHost, 0), Sent: [2]uint32{3, 4},
		FlowFlags: bpfobj.ConnRemote | bpfobj.ConnMasqueraded | bpfobj.ConnOutside, Client: [16]byte{15: 9}, ClientPort: 5000}
	got, ok = migrate.ConvertFlow(now, v3)
	want = bpfobj.PodConn{Seen: 7, State: 2, Sent: [2]uint32{3, 4}, FlowFlags: bpfobj.ConnMasqueraded, Client: [16]byte{15: 9}, ClientPort: 5000,
		End: ends(policymap.MigratedEpoch, bpfobj.RoleAccepted|bpfobj.RoleOfHost, 0)}
	if !ok || got != want {
		t.Errorf("carried %+v, %t, want %+v", got, ok, want)
	}
	if now.End[1].Authorised = 16; ok {
		if _, ok := migrate.ConvertFlow(now, v3); ok {
			t.Error("a role that means nothing was carried")
		}
	}
	// The first epoch that a layout assigns is a later one.
	slot, err := policymap.NewLayout(policymap.Capacity{Slots: 1}).AddSlot("a")
	if err != nil || slot.Slot.Epoch <= policymap.MigratedEpoch {
		t.Errorf("the first slot is %+v, %v", slot, err)
	}
}

func TestMergeFlow(t *testing.T) {
	const live, revoked = 12, bpfobj.RoleRevoked
	carried := func(seen uint32, a, b uint8) bpfobj.PodConn {
		return bpfobj.PodConn{Seen: seen, End: ends(policymap.MigratedEpoch, a, b)}
	}
	used := func(seen uint32, a, b uint8) bpfobj.PodConn {
		return bpfobj.PodConn{Seen: seen, End: ends(live, a, b)}
	}
	at := func(c bpfobj.PodConn) bpfobj.PodConn {
		c.Place = [2]uint32{1<<31 | 7, 1<<31 | 8}
		return c
	}
	for _, c := range []struct {
		name           string
		carried, there bpfobj.PodConn
		want           bpfobj.PodConn
		write          bool
	}{
		{"the same", carried(5, 1, 0), carried(5, 1, 0), carried(5, 1, 0), false},
		{"went on under the old programs", carried(9, 1, 2), carried(5, 1, 0), carried(9, 1, 2), true},
		{"went on while the clock came round", carried(3, 1, 2), carried(1<<32-4, 1, 0), carried(3, 1, 2), true},
		{"used, nothing to add", carried(5, 1, 2), used(9, 1, 2), used(9, 1, 2), false},
		{"used, a role to add", carried(5, 1, 2), used(9, 1, 0), carried(9, 1, 2), true},
		{"decided the wrong way round", carried(5, 1, 2), used(9, 0, 1), carried(9, 1, 3), true},
		{"refused by the policy in force", carried(5, 1, 2), used(9, 1, 2|revoked), used(9, 1, 2|revoked), false},
		{"revoked before, allowed now", carried(5, 1, 2|revoked), used(9, 1, 2), used(9, 1, 2), false},
		{"between two pods, whose slots adopt_flow has found", carried(9, 1, 2), at(carried(5, 1, 2)), at(carried(9, 1, 2)), true},
		{"between two pods, the same", carried(5, 1, 2), at(carried(5, 1, 2)), at(carried(5, 1, 2)), false},
	} {
		got, write := migrate.MergeFlow(c.carried, c.there)
		if write != c.write || write && got != c.want {
			t.Errorf("%s: %+v, %t, want %+v, %t", c.name, got, write, c.want, c.write)
		}
	}
}

// ends returns both ends of a flow, with one epoch.
func ends(epoch uint32, a, b uint8) [2]bpfobj.PodApproval {
	return [2]bpfobj.PodApproval{{Epoch: epoch, Authorised: a}, {Epoch: epoch, Authorised: b}}
}

// FuzzConversion derives shapes from the fuzz input, converts, and compares with a copy field
// by field.
func FuzzConversion(f *testing.F) {
	f.Add([]byte{8, 0, 0, 4, 1, 4, 2}, []byte{8, 1, 0, 2, 0, 4, 4}, []byte{1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte{4, 0, 1, 200}, []byte{4, 0, 0, 4}, []byte{1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, from, to, data []byte) {
		old, now := shapeOf(from), shapeOf(to)
		c, err := migrate.NewConversion(old, now)
		if err != nil {
			return
		}
		got := c.Convert(data)
		if len(data) != old.Size {
			if got != nil {
				t.Fatalf("%d bytes of a struct of %d became %v", len(data), old.Size, got)
			}
			return
		}
		want := make([]byte, now.Size)
		for _, n := range now.Fields {
			for _, o := range old.Fields {
				if o.Name == n.Name && o.Size == n.Size {
					copy(want[n.Offset:], data[o.Offset:o.Offset+o.Size])
				}
			}
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("converted %v, want %v", got, want)
		}
		var flow bpfobj.PodCarriedFlow
		var there bpfobj.PodConn
		if len(got) < max(binary.Size(flow), binary.Size(there)) {
			return
		}
		if _, err := binary.Decode(got, binary.NativeEndian, &flow); err != nil {
			t.Fatal(err)
		}
		if _, err := binary.Decode(got, binary.NativeEndian, &there); err != nil {
			t.Fatal(err)
		}
		if carried, ok := migrate.ConvertFlow(flow, migrate.FlowFields{End: data[0]%2 == 0, Backend: data[0]%4 == 0, Client: data[0]%8 == 0}); ok {
			wantRevalidated(t, carried)
			if merged, _ := migrate.MergeFlow(carried, there); merged.End[0].Authorised != there.End[0].Authorised || merged.End[1].Authorised != there.End[1].Authorised {
				wantRevalidated(t, merged)
			}
		}
	})
}

// wantRevalidated requires that no slot can confirm a role without a new verdict.
func wantRevalidated(t *testing.T, c bpfobj.PodConn) {
	t.Helper()
	if c.End[0].Epoch != policymap.MigratedEpoch || c.End[1].Epoch != policymap.MigratedEpoch {
		t.Fatalf("roles of %+v have other epochs", c)
	}
}

// shapeOf decodes the size, then number, offset and size of fields.
func shapeOf(b []byte) (s migrate.Shape) {
	if len(b) == 0 {
		return s
	}
	s.Size = int(b[0])
	for b = b[1:]; len(b) >= 3; b = b[3:] {
		s.Fields = append(s.Fields, migrate.Field{Name: fmt.Sprint("f", b[0]), Offset: int(b[1]), Size: int(b[2])})
	}
	return s
}
