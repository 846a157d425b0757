// SPDX-License-Identifier: Apache-2.0

package flowtable_test

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/flowtable"
)

// tables are private maps of a flow table for IPv4.
type tables struct {
	t             *testing.T
	conns, larger *ebpf.Map
	index, small  *ebpf.Map
}

func newTables(t *testing.T, size uint32) *tables {
	t.Helper()
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	spec, err := bpfobj.LoadPod()
	if err != nil {
		t.Fatal(err)
	}
	made := func(name string, size uint32) *ebpf.Map {
		s := spec.Maps[name]
		s.Pinning, s.MaxEntries = ebpf.PinNone, size
		m, err := ebpf.NewMap(s)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return m
	}
	return &tables{t: t, conns: made("conns4", size), larger: made("conns4", 2*size), small: made("conns4", 2), index: made("conn_index4", size)}
}

// fill writes entries, and returns the generations of those with a flow by the port in their key.
func (t *tables) fill(rng *rand.Rand) map[uint16]uint32 {
	t.t.Helper()
	want := make(map[uint16]uint32)
	for i := range t.conns.MaxEntries() {
		e := bpfobj.PodConnEntry4{Key: bpfobj.PodConnKey4{Port: [2]uint16{uint16(i)}}, Conn: bpfobj.PodConn{Version: rng.Uint32(), Seen: i}}
		if e.Conn.Version>>8&1 == 1 {
			want[uint16(i)] = e.Conn.Version >> 8
		}
		if err := t.conns.Put(i, e); err != nil {
			t.t.Fatal(err)
		}
	}
	return want
}

func (t *tables) read(m *ebpf.Map) map[uint16]uint32 {
	t.t.Helper()
	got := make(map[uint16]uint32)
	if err := flowtable.Read4(m, func(_ uint32, e *bpfobj.PodConnEntry4) error {
		if e.Conn.Seen != uint32(e.Key.Port[0]) {
			t.t.Errorf("flow %d has the content of flow %d", e.Key.Port[0], e.Conn.Seen)
		}
		got[e.Key.Port[0]] = e.Conn.Version >> 8
		return nil
	}); err != nil {
		t.t.Fatal(err)
	}
	return got
}

// Flows are the entries of an odd generation, whatever else an entry holds.
func TestRead(t *testing.T) {
	for _, size := range []uint32{3, 511, 512, 513, 2000} {
		at := newTables(t, size)
		want := at.fill(rand.New(rand.NewPCG(uint64(size), 1)))
		if got := at.read(at.conns); !maps.Equal(got, want) {
			t.Errorf("size %d: %d flows, want %d", size, len(got), len(want))
		}
	}
	at := newTables(t, 4)
	if err := flowtable.Read(at.conns, 126, func(uint32, []byte) error { return nil }); err == nil {
		t.Error("a version outside of the entry is accepted")
	}
}

// A copy has all flows, whose entries nothing holds. The index has the place of each.
func TestCopy(t *testing.T) {
	at := newTables(t, 1000)
	want := at.fill(rand.New(rand.NewPCG(1, 2)))
	if err := flowtable.Copy(at.conns, at.larger, false); err != nil {
		t.Fatal(err)
	}
	if got := at.read(at.larger); !maps.Equal(got, want) {
		t.Errorf("%d flows, want %d", len(got), len(want))
	}
	if err := flowtable.Index(at.larger, at.index, false); err != nil {
		t.Fatal(err)
	}
	indexes := 0
	var k bpfobj.PodConnKey4
	var v bpfobj.PodConnIndex
	for all := at.index.Iterate(); all.Next(&k, &v); indexes++ {
		var e bpfobj.PodConnEntry4
		if err := at.larger.Lookup(v.Index, &e); err != nil || e.Key != k || e.Conn.Version&0xff != 0 {
			t.Errorf("index %d of flow %d: %+v, %v", v.Index, k.Port[0], e, err)
		}
	}
	if indexes != len(want) {
		t.Errorf("%d indexes of %d flows", indexes, len(want))
	}
	if err := flowtable.Copy(at.conns, at.small, false); err == nil || !strings.Contains(err.Error(), "give the map more entries") {
		t.Errorf("%d flows fit into 2 entries: %v", len(want), err)
	}
}

// A flow that programs replace while it is read is whole, or missing.
func TestReadWhileWritten(t *testing.T) {
	at := newTables(t, 1)
	memory, err := at.conns.Memory()
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	done := make(chan error)
	go func() {
		const key, version, seen = 8, 16, 20 // offsets: the first port, and fields of the flow
		write := func(at int64, v uint32) error {
			_, err := memory.WriteAt(binary.NativeEndian.AppendUint32(nil, v), at)
			return err
		}
		var err error
		for n := uint32(0); err == nil; n++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			for _, w := range [][2]uint32{{version, n<<9 | 0xff}, {key, n & 0xffff}, {seen, n & 0xffff}, {version, n<<9 | 0x100}} {
				if err == nil {
					err = write(int64(w[0]), w[1])
				}
			}
		}
		<-stop
		done <- err
	}()
	found := 0
	for range 20000 {
		found += len(at.read(at.conns)) // read compares key and flow
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d flows were read", found)
}
