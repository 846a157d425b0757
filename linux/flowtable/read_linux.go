// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// batchSize is the number of entries that one system call reads.
const batchSize = 512

// Read4 calls f for every flow of conns4. See Read.
func Read4(m *ebpf.Map, f func(index uint32, e *bpfobj.PodConnEntry4) error) error {
	var e bpfobj.PodConnEntry4
	return Read(m, int(unsafe.Offsetof(e.Conn)+unsafe.Offsetof(e.Conn.Version)), func(index uint32, value []byte) error {
		if _, err := binary.Decode(value, binary.NativeEndian, &e); err != nil {
			return err
		}
		return f(index, &e)
	})
}

// Read6 calls f for every flow of conns6. See Read.
func Read6(m *ebpf.Map, f func(index uint32, e *bpfobj.PodConnEntry6) error) error {
	var e bpfobj.PodConnEntry6
	return Read(m, int(unsafe.Offsetof(e.Conn)+unsafe.Offsetof(e.Conn.Version)), func(index uint32, value []byte) error {
		if _, err := binary.Decode(value, binary.NativeEndian, &e); err != nil {
			return err
		}
		return f(index, &e)
	})
}

// Read calls f for the entry of every flow in an array of entries, which have their version at
// an offset. Programs may write meanwhile: each value is one flow that the table had during the
// call. Flows that begin or end meanwhile may be missing. The value is valid during the call.
//
// It reads each entry three times. If the first and the last copy have the same generation, all
// of the copy between them is of one flow.
func Read(m *ebpf.Map, version int, f func(index uint32, value []byte) error) error {
	n, size := min(batchSize, int(m.MaxEntries())), int(m.ValueSize())
	if version < 0 || version+4 > size {
		return fmt.Errorf("read map %s: no version at offset %d of an entry", m, version)
	}
	keys := make([]uint32, n)
	var copies [3]reflect.Value
	var at [3]ebpf.MapBatchCursor
	for i := range copies {
		copies[i] = reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(size, reflect.TypeFor[byte]())), n, n)
	}
	versionOf := func(copy, i int) uint32 {
		return binary.NativeEndian.Uint32(copies[copy].Index(i).Slice(version, version+4).Bytes())
	}
	for done := false; !done; {
		for i := range copies {
			got, err := m.BatchLookup(&at[i], keys, copies[i].Interface(), nil)
			if done = errors.Is(err, ebpf.ErrKeyNotExist); err != nil && !done {
				return fmt.Errorf("read map %s: %w", m, err)
			}
			n = got
		}
		for i := range n {
			before := versionOf(0, i)
			if !Live(before) || generation(before) != generation(versionOf(2, i)) {
				continue
			}
			if err := f(keys[i], copies[1].Index(i).Bytes()); err != nil {
				return err
			}
		}
	}
	return nil
}

func generation(version uint32) uint32 {
	return version &^ uint32(bpfobj.PodConnVersionVERSION_HOLDERS)
}
