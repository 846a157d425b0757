// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/denymap"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// denyMaps are the maps of the deny list.
type denyMaps struct {
	Prefilter4 *ebpf.Map `ebpf:"deny_prefilter4"`
	Prefilter6 *ebpf.Map `ebpf:"deny_prefilter6"`
	Singles4   *ebpf.Map `ebpf:"deny4"`
	Singles6   *ebpf.Map `ebpf:"deny6"`
	Prefixes4  *ebpf.Map `ebpf:"deny_prefixes4"`
	Prefixes6  *ebpf.Map `ebpf:"deny_prefixes6"`
}

func (m *denyMaps) all() []*ebpf.Map {
	return []*ebpf.Map{m.Prefilter4, m.Prefilter6, m.Singles4, m.Singles6, m.Prefixes4, m.Prefixes6}
}

// named returns the maps by the names of their pins.
func (m *denyMaps) named() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{"deny_prefilter4": m.Prefilter4, "deny_prefilter6": m.Prefilter6, "deny4": m.Singles4, "deny6": m.Singles6,
		"deny_prefixes4": m.Prefixes4, "deny_prefixes6": m.Prefixes6}
}

// read returns the content of the maps.
func (m *denyMaps) read() (*denymap.Entries, error) {
	e := denymap.NewEntries()
	return e, errors.Join(
		loader.ReadMap(m.Singles4, func(k bpfobj.XdpAddr4, v bpfobj.XdpDenyEntry) {
			e.Singles[netip.AddrFrom4(k.Addr)] = denymap.Action(v.Action)
		}),
		loader.ReadMap(m.Singles6, func(k bpfobj.XdpAddr6, v bpfobj.XdpDenyEntry) {
			e.Singles[netip.AddrFrom16(k.Addr)] = denymap.Action(v.Action)
		}),
		loader.ReadMap(m.Prefixes4, func(k bpfobj.XdpPrefix4, v bpfobj.XdpDenyEntry) {
			e.Prefixes[netip.PrefixFrom(netip.AddrFrom4(k.Addr), int(k.Bits)).Masked()] = denymap.Action(v.Action) == denymap.Deny
		}),
		loader.ReadMap(m.Prefixes6, func(k bpfobj.XdpPrefix6, v bpfobj.XdpDenyEntry) {
			e.Prefixes[netip.PrefixFrom(netip.AddrFrom16(k.Addr), int(k.Bits)).Masked()] = denymap.Action(v.Action) == denymap.Deny
		}))
}

// execute makes the writes in order.
func (m *denyMaps) execute(w *denymap.Writes) error {
	var add4 pairs[bpfobj.XdpAddr4]
	var add6 pairs[bpfobj.XdpAddr6]
	for _, s := range w.Singles {
		if s.Addr.Is4() {
			add4.add(bpfobj.XdpAddr4{Addr: s.Addr.As4()}, s.Action)
		} else {
			add6.add(bpfobj.XdpAddr6{Addr: s.Addr.As16()}, s.Action)
		}
	}
	if err := errors.Join(add4.put(m.Singles4), add6.put(m.Singles6)); err != nil {
		return err
	}
	wide4, wide6 := splitPrefixes(w.Prefixes)
	if err := errors.Join(wide4.put(m.Prefixes4), wide6.put(m.Prefixes6)); err != nil {
		return err
	}
	wide4, wide6 = splitPrefixes(w.DropPrefixes)
	if err := errors.Join(wide4.drop(m.Prefixes4), wide6.drop(m.Prefixes6)); err != nil {
		return err
	}
	var drop4 pairs[bpfobj.XdpAddr4]
	var drop6 pairs[bpfobj.XdpAddr6]
	for _, a := range w.DropSingles {
		if a.Is4() {
			drop4.add(bpfobj.XdpAddr4{Addr: a.As4()}, 0)
		} else {
			drop6.add(bpfobj.XdpAddr6{Addr: a.As16()}, 0)
		}
	}
	return errors.Join(drop4.drop(m.Singles4), drop6.drop(m.Singles6))
}

func splitPrefixes(all []netip.Prefix) (v4 pairs[bpfobj.XdpPrefix4], v6 pairs[bpfobj.XdpPrefix6]) {
	for _, p := range all {
		if p.Addr().Is4() {
			v4.add(bpfobj.XdpPrefix4{Bits: uint32(p.Bits()), Addr: p.Addr().As4()}, denymap.Deny)
		} else {
			v6.add(bpfobj.XdpPrefix6{Bits: uint32(p.Bits()), Addr: p.Addr().As16()}, denymap.Deny)
		}
	}
	return v4, v6
}

// writePrefilter writes the words of the prefilter that differ, each by stores that programs read as a
// whole.
func (m *denyMaps) writePrefilter(want [2]denymap.Prefilter) error {
	const size = 16 // struct prefilter
	for family, prefilter := range []*ebpf.Map{m.Prefilter4, m.Prefilter6} {
		memory, err := prefilter.Memory()
		if err != nil {
			return fmt.Errorf("map the memory of the prefilter: %w", err)
		}
		have := make([]byte, denymap.Words*size)
		if _, err := memory.ReadAt(have, 0); err != nil {
			return fmt.Errorf("read prefilter: %w", err)
		}
		for i, word := range want[family] {
			at := have[i*size : (i+1)*size]
			if binary.NativeEndian.Uint64(at) == word.Singles && binary.NativeEndian.Uint64(at[8:]) == word.Prefixes {
				continue
			}
			binary.NativeEndian.PutUint64(at, word.Singles)
			binary.NativeEndian.PutUint64(at[8:], word.Prefixes)
			if _, err := memory.WriteAt(at, int64(i*size)); err != nil {
				return fmt.Errorf("write word %d of the prefilter: %w", i, err)
			}
		}
	}
	return nil
}

// comparePrefilter counts the words of the prefilter that differ.
func (m *denyMaps) comparePrefilter(want [2]denymap.Prefilter) (wrong int, err error) {
	const size = 16 // struct prefilter
	for family, prefilter := range []*ebpf.Map{m.Prefilter4, m.Prefilter6} {
		memory, err := prefilter.Memory()
		if err != nil {
			return 0, fmt.Errorf("map the memory of the prefilter: %w", err)
		}
		have := make([]byte, denymap.Words*size)
		if _, err := memory.ReadAt(have, 0); err != nil {
			return 0, fmt.Errorf("read prefilter: %w", err)
		}
		for i, word := range want[family] {
			at := have[i*size : (i+1)*size]
			if binary.NativeEndian.Uint64(at) != word.Singles || binary.NativeEndian.Uint64(at[8:]) != word.Prefixes {
				wrong++
			}
		}
	}
	return wrong, nil
}

// pairs are keys and values of writes to one map.
type pairs[K any] struct {
	keys   []K
	values []bpfobj.XdpDenyEntry
}

func (p *pairs[K]) add(k K, a denymap.Action) {
	p.keys = append(p.keys, k)
	p.values = append(p.values, bpfobj.XdpDenyEntry{Action: uint32(a)})
}

// chunk is the maximum number of entries in one system call.
const chunk = 4096

func (p *pairs[K]) put(m *ebpf.Map) error {
	for from := 0; from < len(p.keys); from += chunk {
		to := min(from+chunk, len(p.keys))
		_, err := m.BatchUpdate(p.keys[from:to], p.values[from:to], nil)
		if errors.Is(err, ebpf.ErrNotSupported) {
			for i := from; i < to && (i == from || err == nil); i++ {
				err = m.Put(p.keys[i], p.values[i])
			}
		}
		if err != nil {
			return fmt.Errorf("write map %s: %w", m, err)
		}
	}
	return nil
}

// drop deletes entries one by one: a batch stops at the first missing key.
func (p *pairs[K]) drop(m *ebpf.Map) error {
	for _, k := range p.keys {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove from map %s: %w", m, err)
		}
	}
	return nil
}
