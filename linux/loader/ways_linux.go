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
	attached, err := d.attachedAt(path, ifindex, ebpf.AttachTCXIngress)
	if err != nil || attached {
		return err
	}
	return d.attachAt(path, ifindex, d.nodeHook())
}

// DetachNode takes it off a device. What is not there is no error.
func (d *DataPath) DetachNode(name string) error {
	return d.pins.Drop(d.nodePin(name))
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
	entries := make(map[netip.Prefix]bpfobj.PodWay, len(want))
	for p, w := range want {
		entry := bpfobj.PodWay{Ifindex: uint32(w.Index)}
		if w.Direct {
			entry.Direct = 1
		}
		entries[p] = entry
	}
	d.want.ways = entries
	if err := d.objects.ForwardDirect.Set(direct(entries)); err != nil {
		return fmt.Errorf("set forward_direct: %w", err)
	}
	if err := setPrefixes(d.objects.Ways4, d.objects.Ways6, entries); err != nil {
		return fmt.Errorf("write the ways to other nodes: %w", err)
	}
	return nil
}

// direct is 1 if packets bypass the stack on any way.
func direct(ways map[netip.Prefix]bpfobj.PodWay) uint32 {
	for _, w := range ways {
		if w.Direct != 0 {
			return 1
		}
	}
	return 0
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
