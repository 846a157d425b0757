// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"slices"

	"github.com/cilium/ebpf"
)

// batchSize is the number of entries that one system call writes. The kernel writes them one by
// one, in the given order, each atomically. So a caller may rely on the order also within a
// batch.
const batchSize = 4096

// entryError names the entry of a list at which writing stopped.
type entryError struct {
	at  int
	err error
}

// putAll sets entries in order.
func putAll[K, V any](d *DataPath, m *ebpf.Map, keys []K, values []V) *entryError {
	for done := 0; done < len(keys); {
		n := min(batchSize, len(keys)-done)
		made, err := d.inBatches(m, n, func() (int, error) {
			return m.BatchUpdate(keys[done:done+n], values[done:done+n], nil)
		}, func(i int) error { return m.Put(keys[done+i], values[done+i]) })
		if done += made; err != nil {
			return &entryError{done, err}
		}
	}
	return nil
}

// dropAll deletes entries in order. A missing entry is not an error.
func dropAll[K any](d *DataPath, m *ebpf.Map, keys []K) *entryError {
	for done := 0; done < len(keys); {
		n := min(batchSize, len(keys)-done)
		made, err := d.inBatches(m, n, func() (int, error) {
			return m.BatchDelete(keys[done:done+n], nil)
		}, func(i int) error { return m.Delete(keys[done+i]) })
		done += made
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			done++ // the kernel stops at a missing entry
		case err != nil:
			return &entryError{done, err}
		}
	}
	return nil
}

// inBatches makes n writes by batch system calls, or one by one for a map without batch support
// (hashes have it since Linux 5.6, tries since 5.14). It returns the number of writes before
// the error.
func (d *DataPath) inBatches(m *ebpf.Map, n int, batch func() (int, error), one func(int) error) (int, error) {
	if !slices.Contains(d.single, m) {
		made, err := batch()
		switch {
		case err == nil:
			return n, nil
		case !errors.Is(err, ebpf.ErrNotSupported):
			return made, err
		}
		d.single = append(d.single, m)
	}
	for i := range n {
		if err := one(i); err != nil {
			return i, err
		}
	}
	return n, nil
}
