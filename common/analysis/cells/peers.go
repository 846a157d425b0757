// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"go4.org/netipx"
)

// peer is a set of remote addresses that no side can distinguish.
type peer struct {
	// members are one or two addresses of the set: one may be the subject's own.
	members []netip.Addr
	// remotes are the members with their owners; empty if the reference is omitted.
	remotes []policy.Remote
	// class is the peer class in the State, mapped the class in the maps.
	class, mapped model.PeerClass
}

// atlas is all addresses to compare: those with an owner, those that a side lists, and one
// from every undivided part of the rest.
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
	if next := netipx.PrefixLastIP(p).Next(); next.IsValid() {
		t.cuts[next] = true
	}
}

// noPacket reports whether no packet that meets a policy can have the address. A set may
// hold a loopback address to match nothing.
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
func (t *atlas) divide(key func(i int, a netip.Addr) originKey) {
	numbers := make(map[originKey]int)
	t.part = make([]int, len(t.points))
	for i, a := range t.points {
		k := key(i, a)
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

// refine splits the parts of which a list of prefixes contains some members but not all.
func (t *atlas) refine(prefixes []netip.Prefix) {
	var inside []int
	for _, p := range prefixes {
		from, _ := slices.BinarySearchFunc(t.points, p.Addr(), netip.Addr.Compare)
		last := netipx.PrefixLastIP(p)
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
			continue // the part is entirely inside
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

// originKey is everything that the reference reads of an address, and the classes of the
// address on the other sides.
type originKey struct {
	v6 bool
	// answers are those of all rules; ports are the named ports of the pod, if an egress
	// rule names one.
	answers, ports string
	kind           byte // of the owner: pod, node, none, or unknown pod
	node           string
	class, mapped  model.PeerClass
}

// findPeers divides the addresses.
func (c *comparison) findPeers() error {
	t := newAtlas()
	c.addOwned(t)
	c.addRuleBlocks(t)
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
	answers := make([][]policy.Answer, len(c.rules))
	named := false
	if c.reference != nil {
		points := c.reference.points(t.points)
		for i, r := range c.rules {
			answers[i] = c.reference.answers(r, points)
			named = named || namesPorts(r)
		}
	}
	nodes := make(map[string]bool)
	for i := range c.subjects {
		if p := c.subjects[i].pod; p != nil {
			nodes[p.Node] = true
		}
	}
	key := make([]byte, len(c.rules))
	t.divide(func(i int, a netip.Addr) originKey {
		k := originKey{v6: a.Is6(), class: c.node.State.Policy.Class(a)}
		if c.node.Maps != nil {
			k.mapped = c.node.Maps.Class(a)
		}
		for n := range answers {
			key[n] = byte(answers[n][i])
		}
		k.answers = string(key)
		if p := c.owners.Pods[a]; p != nil {
			if k.kind = 'p'; named {
				k.ports = fmt.Sprint(p.Ports)
			}
		} else if n := c.owners.Nodes[a]; n != nil {
			if k.kind = 'n'; nodes[n.Name] {
				k.node = n.Name
			}
		} else if c.node.Snapshot.PodRange(a) {
			k.kind = 'u'
		}
		return k
	})
	for _, m := range members {
		t.refine(m)
	}
	c.peersOf(t, answers)
	return nil
}

// addOwned adds the addresses that have an owner, or that the State or the maps list.
func (c *comparison) addOwned(t *atlas) {
	for a := range c.owners.Pods {
		t.singles[a] = true
	}
	for a := range c.owners.Nodes {
		t.singles[a] = true
	}
	for _, n := range c.node.Snapshot.Nodes.All() {
		for _, p := range n.PodCIDRs {
			t.add(p)
		}
	}
	for a := range c.node.State.Policy.Addresses.All() {
		t.singles[a] = true
	}
	for _, p := range c.node.State.Policy.Prefixes {
		t.add(p.Prefix)
	}
	if c.node.Maps == nil {
		return
	}
	for p := range c.node.Maps.Addresses() {
		t.add(p)
	}
}

// addRuleBlocks adds the prefixes by which the rules distinguish addresses.
func (c *comparison) addRuleBlocks(t *atlas) {
	for _, r := range c.rules {
		for _, peer := range r.Peers {
			if peer.Kind != model.PeerBlock {
				continue
			}
			t.add(peer.Block.CIDR)
			for _, e := range peer.Block.Except {
				t.add(e)
			}
		}
	}
}

// peersOf returns the parts of the atlas as peers, in order of the first address of each.
func (c *comparison) peersOf(t *atlas, answers [][]policy.Answer) {
	numbers := make(map[int]int, len(t.sizes))
	for i, part := range t.part {
		n, ok := numbers[part]
		if !ok {
			n = len(numbers)
			numbers[part] = n
		}
		t.part[i] = n
	}
	c.peers = make([]peer, len(numbers))
	c.answers = make([][]policy.Answer, len(c.rules))
	for n := range c.answers {
		c.answers[n] = make([]policy.Answer, len(c.peers))
	}
	for i, a := range t.points {
		p := &c.peers[t.part[i]]
		if len(p.members) == 0 {
			p.class = c.node.State.Policy.Class(a)
			if c.node.Maps != nil {
				p.mapped = c.node.Maps.Class(a)
			}
			for n := range c.answers {
				c.answers[n][t.part[i]] = answers[n][i]
			}
		}
		if len(p.members) < 2 {
			p.members = append(p.members, a)
			if c.reference != nil {
				p.remotes = append(p.remotes, c.reference.resolve(a))
			}
		}
	}
	for i := range c.peers {
		c.firsts = append(c.firsts, c.peers[i].members[0])
	}
	c.result.Peers = len(c.peers)
}

// listMembers returns the sets of addresses that the lists distinguish from others.
func (c *comparison) listMembers() ([][]netip.Prefix, error) {
	var all [][]netip.Prefix
	for _, l := range c.node.Lists {
		m, err := l.Members()
		if err != nil {
			return nil, err
		}
		all = append(all, m...)
	}
	return all, nil
}
