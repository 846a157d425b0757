// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// retiredSuffix is the suffix of the directory of an older layout that is no longer in force
// and will be removed.
const retiredSuffix = "-retired"

// older is the data path of an older layout that is in force beside ours.
type older struct {
	name, dir string
	// marks says that its programs leave records and marks like ours, and both share them.
	// Otherwise its programs decide everything before the host stack.
	marks     bool
	endpoints map[int]bpfobj.PodEndpoint
	flows     []flowSource
	migrated  Migrated
	// alone says that our programs are attached everywhere.
	alone bool
}

func (o *older) close() error {
	if o == nil {
		return nil
	}
	var errs []error
	for _, c := range o.flows {
		errs = append(errs, c.from.Close())
	}
	return errors.Join(errs...)
}

// FindLayouts searches for layouts of other versions that are in force. It returns the name of
// an older layout, "" if there is none. A newer layout is an error, because this version cannot
// read it. Two older ones are an error, because an upgrade starts from one layout. The error
// names the remedy.
func FindLayouts(dir string) (string, error) {
	own, err := layoutNumber(LayoutVersion)
	if err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("list bpffs directory %s: %w", dir, err)
	}
	var found []string
	for _, e := range entries {
		n, err := layoutNumber(e.Name())
		switch {
		case err != nil || n == own || !e.IsDir(): // not the directory of another layout
		case n > own:
			return "", fmt.Errorf("%s holds the maps and programs of a newer agent, with layout %s, which are in force, and this one has layout %s: "+
				"run that agent, or drain the node and remove the directory", filepath.Join(dir, e.Name()), e.Name(), LayoutVersion)
		default:
			found = append(found, e.Name())
		}
	}
	if len(found) > 1 {
		return "", fmt.Errorf("%s holds maps and programs of the older layouts %s, as an upgrade was not finished: run the agent of the last of them "+
			"until it has finished, or drain the node and remove these directories", dir, strings.Join(found, ", "))
	}
	if len(found) == 0 {
		return "", nil
	}
	return found[0], nil
}

// layoutNumber parses the name of a layout directory.
func layoutNumber(name string) (int, error) {
	digits, ok := strings.CutPrefix(name, "v")
	if !ok {
		return 0, fmt.Errorf("%q is not the version of a layout", name)
	}
	return strconv.Atoi(digits)
}

// removeRetired completes an earlier RemoveOlder that was interrupted.
func removeRetired(dir string) error {
	retired, err := filepath.Glob(filepath.Join(dir, "v*"+retiredSuffix))
	for _, r := range retired {
		err = errors.Join(err, os.RemoveAll(r))
	}
	return err
}

// openOlder reads what an upgrade needs from an older layout. It changes nothing.
func openOlder(dir, name string, spec *ebpf.CollectionSpec) (*older, error) {
	o := &older{name: name, dir: filepath.Join(dir, name)}
	err := o.readEndpoints(spec)
	for v6, f := range []string{"conns4", "conns6"} {
		if err == nil {
			err = o.openFlows(f, v6 == 1, spec)
		}
	}
	if err == nil {
		o.marks, err = o.sharesRecords(spec)
	}
	if err != nil {
		o.close()
		return nil, fmt.Errorf("%s holds the maps and programs of an older agent, with layout %s, which are in force, and this one, with layout %s, "+
			"cannot migrate them: %w: run that agent, or drain the node and remove the directory", o.dir, name, LayoutVersion, err)
	}
	return o, nil
}

// openMap opens a map of the older layout, with the BTF types that it was created with.
func (o *older) openMap(name string) (*ebpf.Map, *btf.Spec, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(o.dir, name), nil)
	if err != nil {
		return nil, nil, fmt.Errorf("open pinned map %s: %w", name, err)
	}
	h, err := m.Handle()
	if err != nil {
		m.Close()
		return nil, nil, fmt.Errorf("map %s has no BTF to describe its content: %w", name, err)
	}
	defer h.Close()
	types, err := h.Spec(nil)
	if err != nil {
		m.Close()
		return nil, nil, fmt.Errorf("read BTF of map %s: %w", name, err)
	}
	return m, types, nil
}

// convert computes how to convert a struct of the older layout into ours.
func convert(types *btf.Spec, now btf.Type, size uint32, required ...string) (*policymap.Conversion, error) {
	to, err := shapeOf(now)
	if err != nil {
		return nil, err
	}
	from, err := shapeByName(types, now.TypeName())
	if err != nil {
		return nil, err
	}
	if from.Size != int(size) {
		return nil, fmt.Errorf("struct %s has %d bytes, the map's have %d", now.TypeName(), from.Size, size)
	}
	c, err := policymap.NewConversion(from, to, required...)
	if err != nil {
		return nil, fmt.Errorf("struct %s: %w", now.TypeName(), err)
	}
	return c, nil
}

func shapeByName(types *btf.Spec, name string) (policymap.Shape, error) {
	var found *btf.Struct
	if err := types.TypeByName(name, &found); err != nil {
		return policymap.Shape{}, fmt.Errorf("find struct %s: %w", name, err)
	}
	return shapeOf(found)
}

// shapeOf lists the fields of a struct, including those of nested structs.
func shapeOf(t btf.Type) (policymap.Shape, error) {
	size, err := btf.Sizeof(t)
	if err != nil {
		return policymap.Shape{}, err
	}
	fields, err := fieldsOf(t, "", 0)
	return policymap.Shape{Size: size, Fields: fields}, err
}

func fieldsOf(t btf.Type, prefix string, at int) (all []policymap.Field, err error) {
	s, ok := btf.UnderlyingType(t).(*btf.Struct)
	if !ok {
		return nil, fmt.Errorf("type %s is not a struct", t.TypeName())
	}
	for _, m := range s.Members {
		if m.BitfieldSize > 0 {
			continue // occurs in no layout so far
		}
		name, offset := prefix+m.Name, at+int(m.Offset.Bytes())
		if _, nested := btf.UnderlyingType(m.Type).(*btf.Struct); nested {
			inner, err := fieldsOf(m.Type, name+".", offset)
			if err != nil {
				return nil, err
			}
			all = append(all, inner...)
			continue
		}
		size, err := btf.Sizeof(m.Type)
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", name, err)
		}
		all = append(all, policymap.Field{Name: name, Offset: offset, Size: size})
	}
	return all, nil
}

// readEndpoints reads the interfaces of the older programs and the endpoints behind them. An
// older layout may lack the MAC of the host end.
func (o *older) readEndpoints(spec *ebpf.CollectionSpec) error {
	m, types, err := o.openMap("endpoints")
	if err != nil {
		return err
	}
	defer m.Close()
	key, err := convert(types, spec.Maps["endpoints"].Key, m.KeySize(), "ifindex")
	if err != nil {
		return err
	}
	value, err := convert(types, spec.Maps["endpoints"].Value, m.ValueSize(), "ip4", "ip6", "mac", "slot")
	if err != nil {
		return err
	}
	o.endpoints = make(map[int]bpfobj.PodEndpoint)
	var k, v []byte
	all := m.Iterate()
	for all.Next(&k, &v) {
		var index bpfobj.PodIfindex
		var e bpfobj.PodEndpoint
		if err := errors.Join(decode(key.Convert(k), &index), decode(value.Convert(v), &e)); err != nil {
			return err
		}
		o.endpoints[int(index.Ifindex)] = e
	}
	return all.Err()
}

func decode(b []byte, to any) error {
	_, err := binary.Decode(b, binary.NativeEndian, to)
	return err
}

// sharesRecords reports whether programs of the older layout leave verdicts to the hooks after
// DNAT. If they do, both layouts must share the records, because for a while each sees packets
// of the other.
func (o *older) sharesRecords(spec *ebpf.CollectionSpec) (bool, error) {
	m, types, err := o.openMap("pending")
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer m.Close()
	if m.MaxEntries() != spec.Maps["pending"].MaxEntries {
		return false, fmt.Errorf("map pending has %d entries, here it has %d", m.MaxEntries(), spec.Maps["pending"].MaxEntries)
	}
	return true, sameMap(m, types, spec.Maps["pending"])
}

// sameMap returns an error if programs of both layouts cannot share a map.
func sameMap(m *ebpf.Map, types *btf.Spec, now *ebpf.MapSpec) error {
	if m.Type() != now.Type || m.Flags() != now.Flags || m.KeySize() != now.KeySize || m.ValueSize() != now.ValueSize {
		return fmt.Errorf("map %s has another type or size", now.Name)
	}
	for _, t := range []btf.Type{now.Key, now.Value} {
		if _, ok := btf.UnderlyingType(t).(*btf.Struct); !ok {
			continue
		}
		is, err := shapeOf(t)
		if err != nil {
			return err
		}
		was, err := shapeByName(types, t.TypeName())
		if err != nil {
			return err
		}
		if !is.Equal(was) {
			return fmt.Errorf("struct %s differs", t.TypeName())
		}
	}
	return nil
}

// share pins the maps that programs of both layouts use into our directory, unless they are
// pinned there already.
func (o *older) share(dir string, spec *ebpf.CollectionSpec) error {
	var names []string
	if o.marks {
		names = append(names, "pending", "pending_count")
	}
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			continue
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(o.dir, name), nil)
		if err != nil {
			return fmt.Errorf("open pinned map %s: %w", name, err)
		}
		second, err := m.Clone() // a clone has no pin yet
		m.Close()
		if err != nil {
			return err
		}
		err = second.Pin(filepath.Join(dir, name))
		second.Close()
		if err != nil {
			return fmt.Errorf("pin map %s a second time: %w", name, err)
		}
	}
	return nil
}

// Older returns the name of the layout that is still in force beside ours, "" if there is none.
func (d *DataPath) Older() string {
	if d.older == nil {
		return ""
	}
	return d.older.name
}

// OlderEndpoints returns the interfaces that programs of the older layout are or were attached
// to, by index, with their endpoints.
func (d *DataPath) OlderEndpoints() map[int]bpfobj.PodEndpoint {
	if d.older == nil {
		return nil
	}
	return d.older.endpoints
}

// OlderFilters returns the paths of the pinned filters of the older layout. nftables rules must
// match them while the older programs leave verdicts to them. Empty paths mean that there are
// none.
func (d *DataPath) OlderFilters() (f Filters) {
	if d.older == nil || d.older.alone {
		return f
	}
	pinned := func(names ...string) string {
		for _, name := range names {
			path := filepath.Join(d.older.dir, name)
			if _, err := os.Lstat(path); err == nil {
				return path
			}
		}
		return ""
	}
	// Up to v2, one filter served both hooks.
	return Filters{
		Forward:  pinned(hookNames[forward]+"_filter", egressFilter),
		LocalIn:  pinned(hookNames[localIn]+"_filter", egressFilter),
		LocalOut: pinned(hookNames[localOut] + "_filter"),
	}
}

// OlderLinked reports whether links of the older layout are attached to an interface.
func (d *DataPath) OlderLinked(name string) (bool, error) {
	if d.older == nil {
		return false, nil
	}
	pins, err := filepath.Glob(filepath.Join(d.older.dir, "links", name+"-*"))
	return slices.ContainsFunc(pins, func(p string) bool {
		return slices.ContainsFunc(d.hooks(), func(h hook) bool { return filepath.Base(p) == name+h.suffix })
	}), err
}
