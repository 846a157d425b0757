// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// peer is a set of remote addresses that no side can tell apart.
type peer struct {
	// members are one or two of them: one may be the subject's own.
	members []netip.Addr
	// class is what the State says, mapped what the maps say.
	class, mapped model.PeerClass
}

// atlas is all addresses that have to be looked at: those that somebody has or
// some side lists, and one from every part of the rest that no side divides.
type atlas struct {
	singles map[netip.Addr]bool
	// cuts are the addresses at which a prefix begins or after which one ends.
	cuts   map[netip.Addr]bool
	points []netip.Addr // ascending, IPv4 first
	part   []int        // by point; parts are numbered from 0
	sizes  []int        // by part
}

func newAtlas() *atlas {
	return &atlas{singles: make(map[netip.Addr]bool), cuts: map[netip.Addr]bool{netip.IPv4Unspecified(): true, netip.IPv6Unspecified(): true}}
}

func (t *atlas) add(p netip.Prefix) {
	if p.IsSingleIP() {
		t.singles[p.Addr()] = true
		return
	}
	p = p.Masked()
	t.cuts[p.Addr()] = true
	if next := hns.LastAddr(p).Next(); next.IsValid() {
		t.cuts[next] = true
	}
}

// loopback addresses are on no packet that meets a policy, and stand for nobody
// in sets.
func noPacket(a netip.Addr) bool { return a.IsLoopback() || a.IsUnspecified() }

// layOut fixes the points.
func (t *atlas) layOut() {
	for a := range t.singles {
		if !noPacket(a) {
			t.points = append(t.points, a)
		}
	}
	cuts := make([]netip.Addr, 0, len(t.cuts))
	for a := range t.cuts {
		cuts = append(cuts, a)
	}
	slices.SortFunc(cuts, netip.Addr.Compare)
	for i, a := range cuts {
		end := netip.Addr{} // the first address of the next part
		if i+1 < len(cuts) && cuts[i+1].Is4() == a.Is4() {
			end = cuts[i+1]
		}
		for a.IsValid() && a != end && (t.singles[a] || noPacket(a)) {
			a = a.Next()
		}
		if a.IsValid() && a != end {
			t.points = append(t.points, a)
		}
	}
	slices.SortFunc(t.points, netip.Addr.Compare)
	t.points = slices.Compact(t.points)
}

// divide sets the first parts: points with equal keys.
func divide[K comparable](t *atlas, key func(netip.Addr) K) {
	numbers := make(map[K]int)
	t.part = make([]int, len(t.points))
	for i, a := range t.points {
		k := key(a)
		n, ok := numbers[k]
		if !ok {
			n = len(t.sizes)
			numbers[k] = n
			t.sizes = append(t.sizes, 0)
		}
		t.part[i] = n
		t.sizes[n]++
	}
}

// refine splits the parts of which a list of prefixes contains some members and
// not others.
func (t *atlas) refine(prefixes []netip.Prefix) {
	var inside []int
	for _, p := range prefixes {
		from, _ := slices.BinarySearchFunc(t.points, p.Addr(), netip.Addr.Compare)
		last := hns.LastAddr(p)
		for i := from; i < len(t.points) && t.points[i].Compare(last) <= 0; i++ {
			inside = append(inside, i)
		}
	}
	slices.Sort(inside)
	inside = slices.Compact(inside)
	counts := make(map[int]int)
	for _, i := range inside {
		counts[t.part[i]]++
	}
	moved := make(map[int]int)
	for _, i := range inside {
		was := t.part[i]
		if counts[was] == t.sizes[was] {
			continue // wholly inside
		}
		now, ok := moved[was]
		if !ok {
			now = len(t.sizes)
			moved[was] = now
			t.sizes = append(t.sizes, counts[was])
		}
		t.part[i] = now
	}
	for was := range moved {
		t.sizes[was] -= counts[was]
	}
}

// originKey is all that the reference sees of an address, and what the other
// sides say of it.
type originKey struct {
	v6            bool
	pod           podKey
	kind          byte // of the owner: pod, node, nobody, a pod that is not known
	node          string
	within        netip.Prefix // the longest prefix that a rule names
	class, mapped model.PeerClass
}

// findPeers divides the addresses.
func (c *comparison) findPeers() error {
	t := newAtlas()
	owners := c.node.Snapshot.Owners()
	for a := range owners.Pods {
		t.singles[a] = true
	}
	for a := range owners.Nodes {
		t.singles[a] = true
	}
	named := newPrefixes()
	named.addPolicies(c.node.Snapshot)
	for p := range named.all {
		t.add(p)
	}
	for _, n := range c.node.Snapshot.Nodes.All() {
		for _, p := range n.PodCIDRs {
			t.add(p)
		}
	}
	for a := range c.node.State.Addresses.All() {
		t.singles[a] = true
	}
	for _, p := range c.node.State.Prefixes {
		t.add(p.Prefix)
	}
	if c.node.Entries != nil {
		for a := range c.node.Entries.Peers {
			t.singles[a] = true
		}
		for p := range c.node.Entries.Prefixes {
			t.add(p)
		}
	}
	members, err := c.listMembers()
	if err != nil {
		return err
	}
	for _, m := range members {
		for _, p := range m {
			t.add(p)
		}
	}
	t.layOut()
	pods := make(map[*model.Pod]podKey, len(owners.Pods))
	divide(t, func(a netip.Addr) originKey {
		k := originKey{v6: a.Is6(), within: named.longest(a), class: c.node.State.Class(a)}
		if c.node.Entries != nil {
			k.mapped = c.node.Entries.Class(a)
		}
		if p := owners.Pods[a]; p != nil {
			key, ok := pods[p]
			if !ok {
				key = keyOf(p)
				pods[p] = key
			}
			k.kind, k.pod = 'p', key
		} else if n := owners.Nodes[a]; n != nil {
			k.kind, k.node = 'n', n.Name
		} else if c.node.Snapshot.PodRange(a) {
			k.kind = 'u'
		}
		return k
	})
	for _, m := range members {
		t.refine(m)
	}
	c.peersOf(t)
	return nil
}

// peersOf takes the parts of the atlas as peers.
func (c *comparison) peersOf(t *atlas) {
	c.peers = make([]peer, len(t.sizes))
	for i, a := range t.points {
		p := &c.peers[t.part[i]]
		if len(p.members) == 0 {
			p.class = c.node.State.Class(a)
			if c.node.Entries != nil {
				p.mapped = c.node.Entries.Class(a)
			}
		}
		if len(p.members) < 2 {
			p.members = append(p.members, a)
		}
	}
	c.result.Peers = len(c.peers)
}

// listMembers returns what the address members of all ACLs stand for, each
// distinct one once.
func (c *comparison) listMembers() ([][]netip.Prefix, error) {
	var all [][]netip.Prefix
	for _, l := range c.node.Lists {
		seen := make(map[string]bool)
		for _, list := range distinct(l.Programme.Lists) {
			for _, a := range list {
				for _, text := range []string{a.LocalAddresses, a.RemoteAddresses} {
					if text == "" || seen[text] {
						continue
					}
					seen[text] = true
					m, err := members(text, l.Programme.Sets)
					if err != nil {
						return nil, err
					}
					all = append(all, m...)
				}
			}
		}
	}
	return all, nil
}

// members reads an address member: its prefixes, and each set that it names.
func members(text string, sets map[string][]netip.Addr) ([][]netip.Prefix, error) {
	list, err := hns.ParseAddresses(text)
	if err != nil {
		return nil, err
	}
	all := [][]netip.Prefix{list.Prefixes}
	for _, id := range list.Sets {
		var set []netip.Prefix
		for _, a := range sets[id] {
			set = append(set, netip.PrefixFrom(a, a.BitLen()))
		}
		all = append(all, set)
	}
	return all, nil
}
