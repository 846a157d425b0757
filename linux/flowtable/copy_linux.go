// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// Copy copies the flows of a table into an empty one, conns4 or conns6. It returns an error if not
// all of them fit.
func Copy(from, to *ebpf.Map, v6 bool) error {
	next, size := uint32(0), to.MaxEntries()
	put := func(version *uint32, e any) error {
		if next == size {
			return errors.New("copy the present flows: give the map more entries, or drain the node first")
		}
		*version = generation(*version)
		next++
		return to.Put(next-1, e)
	}
	if v6 {
		return Read6(from, func(_ uint32, e *bpfobj.PodConnEntry6) error { return put(&e.Conn.Version, e) })
	}
	return Read4(from, func(_ uint32, e *bpfobj.PodConnEntry4) error { return put(&e.Conn.Version, e) })
}

// Index writes the index of every flow of a table into an empty conn_index4 or conn_index6.
func Index(table, index *ebpf.Map, v6 bool) error {
	put := func(key any, at uint32) error {
		if err := index.Put(key, bpfobj.PodConnIndex{Index: at}); err != nil {
			return fmt.Errorf("write the index of a flow: %w", err)
		}
		return nil
	}
	if v6 {
		return Read6(table, func(i uint32, e *bpfobj.PodConnEntry6) error { return put(&e.Key, i) })
	}
	return Read4(table, func(i uint32, e *bpfobj.PodConnEntry4) error { return put(&e.Key, i) })
}
