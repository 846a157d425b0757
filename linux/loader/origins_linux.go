// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// Owner names the owner of the addresses in a prefix on this node.
type Owner uint32

// The owners.
const (
	// NodeOwns marks addresses of this node's interfaces.
	NodeOwns Owner = Owner(bpfobj.OwnerNode)
	// PodsOwn marks this node's pod ranges, and addresses of its pods outside these ranges.
	PodsOwn Owner = Owner(bpfobj.OwnerPod)
	// Broadcast is a flag for broadcast and anycast addresses by which this node receives. They keep their owner, if any.
	Broadcast Owner = Owner(bpfobj.OwnerBroadcast)
)

// SetOwners sets the addresses that belong to this node. The programs drop packets from
// elsewhere with such a source, and those of pods to the node by broadcast or anycast. Prefixes in both the old and the new list stay in force
// throughout.
func (d *DataPath) SetOwners(want map[netip.Prefix]Owner) error {
	o := &d.objects
	entries := make(map[netip.Prefix]bpfobj.PodOwnerEntry, len(want))
	for p, owner := range want {
		entries[p] = bpfobj.PodOwnerEntry{Owner: uint32(owner)}
	}
	d.want.owners = entries
	if err := setPrefixes(o.Owners4, o.Owners6, entries); err != nil {
		return fmt.Errorf("write the owners of addresses: %w", err)
	}
	return nil
}

// TunnelNode is a node that sends tunneled packets: its underlay addresses, and the inner
// sources it may use.
type TunnelNode struct {
	Name     string
	Underlay []netip.Addr
	Sources  []netip.Prefix
}

// SetTunnelNodes sets which node may send which inner sources; the programs drop all other
// tunneled packets. Entries in both the old and the new list stay in force throughout.
func (d *DataPath) SetTunnelNodes(nodes []TunnelNode) error {
	underlay := make(map[bpfobj.PodAddr6]bpfobj.EgressTunnelNode)
	sources := make(map[netip.Prefix]bpfobj.EgressTunnelNode)
	for _, n := range nodes {
		sum := sha256.Sum256([]byte(n.Name))
		id := bpfobj.EgressTunnelNode{Id: binary.NativeEndian.Uint64(sum[:])}
		for _, a := range n.Underlay {
			underlay[outerKey(a)] = id
		}
		for _, p := range n.Sources {
			sources[p] = id
		}
	}
	t := &d.egress.tunnels
	d.want.senders, d.want.sources = underlay, sources
	if err := errors.Join(setPrefixes(t.Sources4, t.Sources6, sources), setEntries(t.Nodes, underlay)); err != nil {
		return fmt.Errorf("write the tunnel nodes: %w", err)
	}
	return nil
}

// TunnelKind is a kind of tunneled packets.
type TunnelKind struct {
	Protocol uint8
	Port     uint16 // of UDP, else 0
}

// SetTunnelKinds sets the kinds of tunneled packets that devices of this node receive, with the index of one such
// device. The programs drop those that pods send to addresses other than those of pods.
func (d *DataPath) SetTunnelKinds(kinds map[TunnelKind]int) error {
	entries := make(map[bpfobj.PodTunnelKind]bpfobj.PodIfindex, len(kinds))
	for k, index := range kinds {
		entries[bpfobj.PodTunnelKind{Kind: uint32(k.Protocol)<<16 | uint32(k.Port)}] = bpfobj.PodIfindex{Ifindex: uint32(index)}
	}
	d.want.kinds = entries
	if err := setEntries(d.objects.TunnelKinds, entries); err != nil {
		return fmt.Errorf("write the kinds of tunnels: %w", err)
	}
	return nil
}

// outerKey returns the key of tunnel_nodes for an address: IPv4 uses the last four bytes.
func outerKey(a netip.Addr) (k bpfobj.PodAddr6) {
	if a.Is4() {
		four := a.As4()
		copy(k.Addr[12:], four[:])
		return k
	}
	return bpfobj.PodAddr6{Addr: a.As16()}
}

// setPrefixes makes the tries of both IP versions hold exactly these entries.
func setPrefixes[V comparable](four, six *ebpf.Map, want map[netip.Prefix]V) error {
	want4, want6 := byFamily(want)
	return errors.Join(setEntries(four, want4), setEntries(six, want6))
}

// byFamily converts prefixes to keys, by IP version.
func byFamily[V any](all map[netip.Prefix]V) (map[bpfobj.PodPrefix4]V, map[bpfobj.PodPrefix6]V) {
	all4, all6 := make(map[bpfobj.PodPrefix4]V), make(map[bpfobj.PodPrefix6]V)
	for p, v := range all {
		if p.Addr().Is4() {
			all4[bpfobj.PodPrefix4{Bits: uint32(p.Bits()), Addr: p.Addr().As4()}] = v
		} else {
			all6[bpfobj.PodPrefix6{Bits: uint32(p.Bits()), Addr: p.Addr().As16()}] = v
		}
	}
	return all4, all6
}

// setEntries makes a map hold exactly these entries. It adds before it removes.
func setEntries[K, V comparable](m *ebpf.Map, want map[K]V) error {
	have := make(map[K]V)
	if err := ReadMap(m, func(k K, v V) { have[canonical(k)] = v }); err != nil {
		return err
	}
	for k, v := range want {
		if now, ok := have[k]; ok && now == v {
			continue
		}
		if err := m.Put(k, v); err != nil {
			return fmt.Errorf("write entry %v of map %s: %w", k, m, err)
		}
	}
	for k := range have {
		if _, ok := want[k]; ok {
			continue
		}
		if err := drop(m, k); err != nil {
			return fmt.Errorf("remove entry %v of map %s: %w", k, m, err)
		}
	}
	return nil
}

// canonical clears the bits after the prefix in the key of a trie. The kernel stores them, but
// ignores them in lookups.
func canonical[K comparable](key K) K {
	switch k := any(&key).(type) {
	case *bpfobj.PodPrefix4:
		k.Addr = prefix4(*k).Addr().As4()
	case *bpfobj.PodPrefix6:
		k.Addr = prefix6(*k).Addr().As16()
	}
	return key
}
