// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/flowtable"
	"github.com/isthmus-net/isthmus/linux/migrate"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// Sizes holds the requested number of entries of maps, by name. Other maps keep their size, or
// get the default: that of the programs, and for flows one that depends on the memory of the
// node.
type Sizes map[string]int

// Validate reports all invalid sizes.
func (s Sizes) Validate() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(s)) {
		errs = append(errs, policymap.CheckSize(name, s[name]))
	}
	return errors.Join(errs...)
}

// flowMemory is the divisor for the memory of flows: they get 1/768 of the node's memory.
const flowMemory = 768

// flowSizes returns the sizes of conns4 and conns6 for a memory size in bytes. An entry takes
// 224 or 264 bytes, including its index and its hint. IPv4 gets two thirds of the memory.
func flowSizes(memory uint64) Sizes {
	budget := memory / flowMemory
	bounded := func(n uint64) int { return int(min(max(n, 8192), 1<<20)) }
	return Sizes{"conns4": bounded(budget * 2 / 3 / 224), "conns6": bounded(budget / 3 / 264)}
}

func nodeMemory() (uint64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("read the memory size of the node: %w", err)
	}
	return uint64(info.Totalram) * uint64(info.Unit), nil
}

// resized is a copy that replaces a pinned map.
type resized struct {
	name string
	*ebpf.Map
}

// size sets the sizes of the maps in spec. It copies pinned maps whose size differs from the
// requested one. The caller gives the copies to the programs, then pins them with replace. A
// missing map gets its size in an older layout, if there is one.
func (s Sizes) size(spec *ebpf.CollectionSpec, dir string, o *migrate.Layout) (copies []resized, err error) {
	memory, err := nodeMemory()
	if err != nil {
		return nil, err
	}
	standard := flowSizes(memory)
	defer func() {
		if err != nil {
			for _, c := range copies {
				c.Close()
			}
		}
	}()
	for _, name := range policymap.Sizeable() {
		m := spec.Maps[name]
		if n, ok := standard[name]; ok {
			m.MaxEntries = uint32(n)
		}
		if n, ok := o.Size(name); ok {
			m.MaxEntries = n
		}
		asked, explicit := s[name]
		if explicit {
			m.MaxEntries = uint32(asked)
		}
		old, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return copies, fmt.Errorf("open pinned map %s: %w", name, err)
		}
		if !explicit || int(old.MaxEntries()) == asked {
			m.MaxEntries = old.MaxEntries()
			old.Close()
			continue
		}
		c, err := copySized(name, old, m)
		old.Close()
		if err != nil {
			return copies, fmt.Errorf("resize map %s to %d entries: %w", name, asked, err)
		}
		copies = append(copies, resized{name, c})
	}
	for table := range flowtable.Derived {
		fresh, err := renewDerived(spec, dir, table, copies)
		copies = append(copies, fresh...)
		if err != nil {
			return copies, err
		}
	}
	return copies, nil
}

// renewDerived gives the index and the hints of a flow table its size. It returns a new index
// and new hints if the table is new or a copy, or has another size than those that are pinned.
func renewDerived(spec *ebpf.CollectionSpec, dir, table string, copies []resized) (fresh []resized, err error) {
	size := spec.Maps[table].MaxEntries
	names := flowtable.Derived[table]
	copied := slices.ContainsFunc(copies, func(c resized) bool { return c.name == table })
	usable, none := !copied, true // a copy has its flows elsewhere
	for _, name := range names {
		spec.Maps[name].MaxEntries = size
		pinned, err := pinnedSize(dir, name)
		if err != nil {
			return nil, err
		}
		usable, none = usable && pinned == size, none && pinned == 0
	}
	from, err := pinnedOrCopied(dir, table, copies)
	if err != nil {
		return nil, fmt.Errorf("open map %s: %w", table, err)
	}
	defer from.Close()
	if from != nil && usable || from == nil && none {
		return nil, nil
	}
	for _, name := range names {
		m, err := newMap(spec.Maps[name])
		if err != nil {
			return fresh, fmt.Errorf("create map %s: %w", name, err)
		}
		fresh = append(fresh, resized{name, m})
		if from != nil && m.Type() == ebpf.Hash {
			if err := flowtable.Index(from, m, table == "conns6"); err != nil {
				return fresh, fmt.Errorf("create map %s for map %s: %w", name, table, err)
			}
		}
	}
	return fresh, nil
}

// pinnedSize returns the size of a pinned map, 0 if there is none.
func pinnedSize(dir, name string) (uint32, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), nil)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open pinned map %s: %w", name, err)
	}
	defer m.Close()
	return m.MaxEntries(), nil
}

// pinnedOrCopied returns the copy of a map if there is one, otherwise the pinned map, nil if
// neither exists.
func pinnedOrCopied(dir, name string, copies []resized) (*ebpf.Map, error) {
	for _, c := range copies {
		if c.name == name {
			return c.Clone()
		}
	}
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return m, err
}

// copySized creates a map of another size with the content of an old one.
func copySized(name string, old *ebpf.Map, spec *ebpf.MapSpec) (*ebpf.Map, error) {
	if flowtable.Derived[name] == nil {
		return copyMap(old, spec)
	}
	m, err := newMap(spec)
	if err != nil {
		return nil, err
	}
	if err := flowtable.Copy(old, m, name == "conns6"); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// copyMap creates a map with the content of another one. It returns an error if not all entries
// fit.
func copyMap(old *ebpf.Map, spec *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := newMap(spec)
	if err != nil {
		return nil, err
	}
	var key, value []byte
	all := old.Iterate()
	for all.Next(&key, &value) {
		if m.Type() == ebpf.Array && !slices.ContainsFunc(value, func(b byte) bool { return b != 0 }) {
			continue // zero entries need no copy
		}
		if err := m.Put(key, value); err != nil {
			m.Close()
			return nil, fmt.Errorf("copy the present entries: %w: give the map more entries, or drain the node first", err)
		}
	}
	if err := all.Err(); err != nil {
		m.Close()
		return nil, fmt.Errorf("read the present entries: %w", err)
	}
	return m, nil
}

// replace pins a copy in place of the original map, by one atomic rename. Until their programs
// are replaced, pods use the original, which has the same content.
func (c resized) replace(dir string) error {
	path := filepath.Join(dir, c.name)
	fresh := path + "_new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", fresh, err)
	}
	if err := c.Pin(fresh); err != nil {
		return fmt.Errorf("pin %s: %w", fresh, err)
	}
	if err := os.Rename(fresh, path); err != nil {
		return fmt.Errorf("replace the pinned map %s: %w", c.name, err)
	}
	return nil
}

// Memory returns the kernel memory of the maps in bytes, by name, as far as the kernel accounts
// for it.
func (d *DataPath) Memory() (map[string]uint64, error) {
	taken := make(map[string]uint64)
	for name, m := range d.maps() {
		info, err := m.Info()
		if err != nil {
			return nil, fmt.Errorf("inspect map %s: %w", name, err)
		}
		bytes, known := info.Memlock()           // 0, as of an empty trie, is not known either
		if !known && info.Type == ebpf.RingBuf { // before Linux 6.4
			bytes, known = uint64(info.MaxEntries), true
		}
		if !known && info.Type != ebpf.LPMTrie {
			return nil, fmt.Errorf("inspect map %s: the kernel does not report its memory", name)
		}
		taken[name] = bytes
	}
	return taken, nil
}
