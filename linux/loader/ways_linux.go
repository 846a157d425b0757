// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// nodeSuffix is that of the pins of from_node's links.
const nodeSuffix = "-from_node"

func (d *DataPath) nodePin(name string) string {
	return filepath.Join(d.dir, "links", name+nodeSuffix)
}

// FromNode is the program for devices that lead to other nodes, for hooks that
// take no links.
func (d *DataPath) FromNode() *ebpf.Program { return d.objects.FromNode }

// AttachNode puts from_node on a device that leads to other nodes, if it is not
// there already.
func (d *DataPath) AttachNode(name string, ifindex int) error {
	path := d.nodePin(name)
	attached, err := d.attachedAt(path, ifindex)
	if err != nil || attached {
		return err
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: d.objects.FromNode, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return fmt.Errorf("attach from_node to %s: %w", name, err)
	}
	defer l.Close()
	if err := l.Pin(path); err != nil {
		return fmt.Errorf("pin from_node of %s: %w", name, err)
	}
	return nil
}

// DetachNode takes it off a device. What is not there is no error.
func (d *DataPath) DetachNode(name string) error {
	if err := os.Remove(d.nodePin(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unpin from_node of %s: %w", name, err)
	}
	return nil
}

// NodeLinks names the devices that from_node is pinned for.
func (d *DataPath) NodeLinks() (names []string, err error) {
	entries, err := os.ReadDir(filepath.Join(d.dir, "links"))
	if err != nil {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), nodeSuffix); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// Way is how a pod range of another node is reached: by the interface with that index,
// which must have from_node if packets may bypass the stack (Direct).
type Way struct {
	Index  int
	Direct bool
}

// SetWays says how pod ranges of other nodes are reached; their packets may come by no
// other interface. Flows that are known go on past the stack until there are no direct
// ways at all.
func (d *DataPath) SetWays(want map[netip.Prefix]Way) error {
	have, err := d.ways()
	if err != nil {
		return err
	}
	var direct uint32
	for _, w := range want {
		if w.Direct {
			direct = 1
		}
	}
	if err := d.objects.ForwardDirect.Set(direct); err != nil {
		return fmt.Errorf("set forward_direct: %w", err)
	}
	for p, w := range want {
		if now, ok := have[p]; ok && now == w {
			continue
		}
		entry := bpfobj.PodWay{Ifindex: uint32(w.Index)}
		if w.Direct {
			entry.Direct = 1
		}
		m, key := d.wayKey(p)
		if err := m.Put(key, entry); err != nil {
			return fmt.Errorf("write way to %s: %w", p, err)
		}
	}
	for p := range have {
		if _, ok := want[p]; ok {
			continue
		}
		m, key := d.wayKey(p)
		if err := drop(m, key); err != nil {
			return fmt.Errorf("remove way to %s: %w", p, err)
		}
	}
	return nil
}

// ways reads what SetWays wrote.
func (d *DataPath) ways() (map[netip.Prefix]Way, error) {
	all := make(map[netip.Prefix]Way)
	note := func(p netip.Prefix, v bpfobj.PodWay) { all[p] = Way{Index: int(v.Ifindex), Direct: v.Direct != 0} }
	return all, errors.Join(
		each(d.objects.Ways4, func(k bpfobj.PodPrefix4, v bpfobj.PodWay) {
			note(netip.PrefixFrom(netip.AddrFrom4(k.Addr), int(k.Bits)), v)
		}),
		each(d.objects.Ways6, func(k bpfobj.PodPrefix6, v bpfobj.PodWay) {
			note(netip.PrefixFrom(netip.AddrFrom16(k.Addr), int(k.Bits)), v)
		}))
}

func (d *DataPath) wayKey(p netip.Prefix) (*ebpf.Map, any) {
	if p.Addr().Is6() {
		return d.objects.Ways6, bpfobj.PodPrefix6{Bits: uint32(p.Bits()), Addr: p.Addr().As16()}
	}
	return d.objects.Ways4, bpfobj.PodPrefix4{Bits: uint32(p.Bits()), Addr: p.Addr().As4()}
}

// DropOlderNodeLinks takes the programs of an older layout off devices that lead
// to other nodes. The flows that they delivered go through the stack then.
func (d *DataPath) DropOlderNodeLinks() error {
	if d.older == nil {
		return nil
	}
	pins, err := filepath.Glob(filepath.Join(d.older.dir, "links", "*"+nodeSuffix))
	for _, p := range pins {
		if gone := os.Remove(p); gone != nil && !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("remove pin %s: %w", p, gone))
		}
	}
	return err
}
