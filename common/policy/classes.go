// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// peerClass is a set of addresses that no rule can tell apart.
type peerClass struct {
	number model.PeerClass
	signature
	// matches is indexed by term.
	matches []match
	ports   []model.NamedPort // what egress port names mean on these pods
}

// classifier finds the class of an address from two parts, what matches its
// pod's labels (or its node's) and what matches the prefix it is in. Each part
// is worked out once per distinct label set and once per prefix.
type classifier struct {
	*compiler
	labels   map[labelKey]*partial
	prefixes map[netip.Prefix]*partial
	lengths  [2][]int // prefix lengths in use, longest first; index 1 is IPv6
	classes  map[classKey]*peerClass
	byText   map[string]*peerClass
	outside  *partial
}

// labelKey is all that pod selectors and port names can see of a pod.
type labelKey struct {
	namespace string
	labels    model.Labels
	names     string
}

// partial is what is known about an address from one side.
type partial struct {
	terms []int // sorted
	kind  model.AddressKind
	ports []model.NamedPort
}

type classKey struct {
	owner, prefix *partial
}

// classifyAddresses finds the classes of all pods, nodes and prefixes.
func (c *compiler) classifyAddresses() {
	k := &classifier{
		compiler: c,
		labels:   make(map[labelKey]*partial),
		prefixes: make(map[netip.Prefix]*partial),
		classes:  make(map[classKey]*peerClass),
		byText:   make(map[string]*peerClass),
		outside:  &partial{},
	}
	k.collectPrefixes()
	addresses := make(map[netip.Addr]*peerClass)
	owners := c.snapshot.Owners()
	for a, n := range owners.Nodes {
		addresses[a] = k.class(k.node(n), k.covering(a))
	}
	for a, p := range owners.Pods {
		addresses[a] = k.class(k.pod(p), k.covering(a))
	}
	prefixes := make(map[netip.Prefix]*peerClass, len(k.prefixes))
	for p, part := range k.prefixes {
		prefixes[p] = k.class(k.outside, part)
	}
	k.class(k.outside, k.outside) // World is always there
	k.numberPeers(addresses, prefixes)

	numbers := make(map[netip.Addr]model.PeerClass, len(addresses))
	for a, class := range addresses {
		numbers[a] = class.number
	}
	c.addresses = model.MakeMap(numbers)
	for p, class := range prefixes {
		c.prefixes = append(c.prefixes, model.PrefixClass{Prefix: p, Class: class.number})
	}
	slices.SortFunc(c.prefixes, func(a, b model.PrefixClass) int { return model.ComparePrefixes(a.Prefix, b.Prefix) })
}

// collectPrefixes finds what matches each prefix that a rule names or that a
// node's pods have their addresses from.
func (k *classifier) collectPrefixes() {
	inPodRange := make(map[netip.Prefix]bool)
	for _, p := range k.terms.peers {
		if p.Kind == model.PeerBlock {
			k.prefixes[p.Block.CIDR] = nil
			for _, e := range p.Block.Except {
				k.prefixes[e] = nil
			}
		}
	}
	for _, n := range k.snapshot.Nodes.All() {
		for _, cidr := range n.PodCIDRs {
			k.prefixes[cidr] = nil
			inPodRange[cidr] = true
		}
	}
	for p := range k.prefixes {
		part := &partial{}
		for cidr := range inPodRange {
			if cidr.Bits() <= p.Bits() && cidr.Contains(p.Addr()) {
				part.kind = model.KindUnknown
			}
		}
		for t, peer := range k.terms.peers {
			if peer.Kind == model.PeerBlock && covers(peer.Block, p) {
				part.terms = append(part.terms, t)
			}
		}
		k.prefixes[p] = part
		v6 := 0
		if p.Addr().Is6() {
			v6 = 1
		}
		if !slices.Contains(k.lengths[v6], p.Bits()) {
			k.lengths[v6] = append(k.lengths[v6], p.Bits())
		}
	}
	for _, l := range k.lengths {
		slices.SortFunc(l, func(a, b int) int { return b - a })
	}
}

// covers reports whether the block contains all of the prefix that is not in a
// longer prefix of its own: the holes of a block have entries of their own.
func covers(b model.IPBlock, p netip.Prefix) bool {
	within := func(outer netip.Prefix) bool { return outer.Bits() <= p.Bits() && outer.Contains(p.Addr()) }
	return within(b.CIDR) && !slices.ContainsFunc(b.Except, within)
}

// covering returns the part of the longest prefix that contains the address.
func (k *classifier) covering(a netip.Addr) *partial {
	v6 := 0
	if a.Is6() {
		v6 = 1
	}
	for _, bits := range k.lengths[v6] {
		p, err := a.Prefix(bits)
		if err != nil {
			continue
		}
		if part, ok := k.prefixes[p]; ok {
			return part
		}
	}
	return k.outside
}

// pod returns what matches a pod by its labels.
func (k *classifier) pod(p *model.Pod) *partial {
	ports := k.terms.resolved(p)
	key := labelKey{p.Namespace, p.Labels, strings.Join(nameTexts(ports), "\n")}
	if part, ok := k.labels[key]; ok {
		return part
	}
	part := &partial{ports: ports}
	ns := k.snapshot.Namespace(p.Namespace)
	for t, peer := range k.terms.peers {
		if peer.Kind == model.PeerPods && peer.Pods.MatchesNamespace(ns) && peer.Pods.Pods.Matches(p.Labels) {
			part.terms = append(part.terms, t)
		}
	}
	k.labels[key] = part
	return part
}

// node returns what matches a node by its labels.
func (k *classifier) node(n *model.Node) *partial {
	part := &partial{kind: model.KindKnown}
	if n.Name == k.compiler.node {
		part.kind = model.KindThisNode
	}
	for t, peer := range k.terms.peers {
		if peer.Kind == model.PeerNodes && peer.Nodes.Matches(n.Labels) {
			part.terms = append(part.terms, t)
		}
	}
	return part
}

// class combines the two parts. An owner is known, whatever the prefix says.
func (k *classifier) class(owner, prefix *partial) *peerClass {
	key := classKey{owner, prefix}
	if class, ok := k.classes[key]; ok {
		return class
	}
	class := &peerClass{ports: owner.ports, matches: make([]match, len(k.terms.peers))}
	class.kind = owner.kind
	if owner == k.outside {
		class.kind = prefix.kind
	}
	for t, peer := range k.terms.peers {
		if peer.Kind == model.PeerUnknown || peer.Kind == model.PeerPods && class.kind == model.KindUnknown {
			class.matches[t] = maybe
		}
	}
	for _, part := range []*partial{owner, prefix} {
		for _, t := range part.terms {
			class.matches[t] = yes
			class.terms = append(class.terms, k.terms.texts[t])
		}
	}
	slices.Sort(class.terms)
	class.names = nameTexts(owner.ports)
	if same, ok := k.byText[class.key()]; ok {
		class = same
	} else {
		k.byText[class.key()] = class
		k.compiler.peerClasses = append(k.compiler.peerClasses, class)
	}
	k.classes[key] = class
	return class
}

// numberPeers gives every class its number: that of the previous State where
// it means the same, else one that was never used.
func (k *classifier) numberPeers(addresses map[netip.Addr]*peerClass, prefixes map[netip.Prefix]*peerClass) {
	c := k.compiler
	slices.SortFunc(c.peerClasses, func(a, b *peerClass) int { return strings.Compare(a.key(), b.key()) })
	c.vocabulary = k.words()
	index := make(map[*peerClass]int)
	var found []signature
	for i, class := range c.peerClasses {
		index[class] = i
		found = append(found, class.signature)
	}
	var previous []numbered
	for _, info := range c.previous.PeerClasses {
		if info.Class != model.World {
			previous = append(previous, numbered{uint32(info.Class), signature{info.Kind, info.Terms, info.Names}})
		}
	}
	type pair struct {
		class  int
		number uint32
	}
	var overlaps map[pair]int
	overlap := func(i int, number uint32) int {
		if overlaps == nil {
			overlaps = make(map[pair]int)
			for a, class := range addresses {
				overlaps[pair{index[class], uint32(c.previous.Class(a))}]++
			}
			for p, class := range prefixes {
				overlaps[pair{index[class], uint32(c.previous.PrefixClass(p))}]++
			}
		}
		return overlaps[pair{i, number}]
	}
	before := vocabulary{c.previous.PeerTerms, c.previous.PeerNames}
	numbers := inherit(found, c.vocabulary, previous, before, overlap)
	c.nextPeer = max(c.previous.NextPeerClass, model.World+1)
	for i, class := range c.peerClasses {
		switch {
		case class.key() == "":
			class.number = model.World
		case numbers[i] != none:
			class.number = model.PeerClass(numbers[i])
		default:
			class.number = c.nextPeer
			c.nextPeer++
		}
		c.peerInfo = append(c.peerInfo, model.PeerClassInfo{Class: class.number, Kind: class.kind, Terms: class.terms, Names: class.names})
	}
	slices.SortFunc(c.peerInfo, func(a, b model.PeerClassInfo) int { return int(a.Class) - int(b.Class) })
}

// words lists what the rules can tell peers apart by.
func (k *classifier) words() vocabulary {
	v := vocabulary{terms: slices.Clone(k.terms.texts)}
	for n := range k.terms.egressNames {
		v.names = append(v.names, n.name)
	}
	slices.Sort(v.terms)
	slices.Sort(v.names)
	v.names = slices.Compact(v.names)
	return v
}
