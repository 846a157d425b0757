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

// nodeSuffix is the suffix of the pins of from_node's links.
const nodeSuffix = "-from_node"

func (d *DataPath) nodePin(name string) string {
	return filepath.Join(d.dir, "links", name+nodeSuffix)
}

// FromNode returns the program for devices that lead to other nodes, for hooks without links.
func (d *DataPath) FromNode() *ebpf.Program { return d.objects.FromNode }

// AttachNode attaches from_node to a device that leads to other nodes, if it is not attached
// already.
func (d *DataPath) AttachNode(name string, ifindex int) error {
	path := d.nodePin(name)
	attached, err := d.attachedAt(path, ifindex, ebpf.AttachTCXIngress)
	if err != nil || attached {
		return err
	}
	return d.attachAt(path, ifindex, d.nodeHook())
}

// DetachNode detaches from_node from a device. A missing link is not an error.
func (d *DataPath) DetachNode(name string) error {
	return d.pins.Drop(d.nodePin(name))
}

// NodeLinks lists the devices for which a link of from_node is pinned.
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

// NodeRoute is the node route to a pod range of another node: the index of its interface. The
// interface must have from_node if packets may use the fast path (Direct).
type NodeRoute struct {
	Index  int
	Direct bool
}

// SetNodeRoutes sets the node routes to the pod ranges of other nodes. Their packets may arrive by no
// other interface. Known flows continue on the fast path until no node route is Direct.
func (d *DataPath) SetNodeRoutes(want map[netip.Prefix]NodeRoute) error {
	entries := make(map[netip.Prefix]bpfobj.PodNodeRoute, len(want))
	for p, w := range want {
		entry := bpfobj.PodNodeRoute{Ifindex: uint32(w.Index)}
		if w.Direct {
			entry.FastPath = 1
		}
		entries[p] = entry
	}
	d.want.routes = entries
	if err := d.objects.ForwardDirect.Set(direct(entries)); err != nil {
		return fmt.Errorf("set forward_direct: %w", err)
	}
	if err := setPrefixes(d.objects.NodeRoutes4, d.objects.NodeRoutes6, entries); err != nil {
		return fmt.Errorf("write the node routes: %w", err)
	}
	return nil
}

// direct is 1 if any node route allows the fast path.
func direct(routes map[netip.Prefix]bpfobj.PodNodeRoute) uint32 {
	for _, w := range routes {
		if w.FastPath != 0 {
			return 1
		}
	}
	return 0
}

// DropOlderNodeLinks detaches the programs of an older layout from devices that lead to other
// nodes. Their flows then use the host stack.
func (d *DataPath) DropOlderNodeLinks() error {
	if d.older == nil {
		return nil
	}
	pins, err := filepath.Glob(filepath.Join(d.older.Dir, "links", "*"+nodeSuffix))
	for _, p := range pins {
		if gone := os.Remove(p); gone != nil && !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("remove pin %s: %w", p, gone))
		}
	}
	return err
}
