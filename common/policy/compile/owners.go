// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// owner is a set of holders of addresses that rules cannot distinguish. It is one of
// three: the pods with one set of labels and named ports in one namespace, the nodes with
// one set of labels, or the addresses without pod and node.
type owner struct {
	ownerKey
	uses int // pods and nodes
	kind model.AddressKind
	// bits are the PeerPods or PeerNodes terms that match.
	bits bitset
	// ports are all named ports, sorted; names are those that egress rules use.
	ports, names []model.NamedPort
	texts        []string // of names
	groups       map[*cover]*group
}

// ownerKey is all that selectors and port names can match.
type ownerKey struct {
	role      role
	namespace string
	labels    model.Labels
	ports     string
}

type role uint8

const (
	external role = iota
	somePods
	someNodes
	thisNode
)

// namespace is one with pods: terms match its labels once.
type namespace struct {
	*model.Namespace
	owners map[*owner]bool
	// terms are those that may match pods of the namespace.
	terms map[*term]bool
}

// entry is an address that pods or nodes claim.
type entry struct {
	addr   netip.Addr
	pods   []*model.Pod // pods with policies
	nodes  []*model.Node
	owner  *owner
	prefix *prefix
	group  *group
	links  [2]link // in prefix.entries and group.entries
}

// podOwner returns the owner that stands for a pod.
func (p *peers) podOwner(pod *model.Pod) *owner {
	key := ownerKey{role: somePods, namespace: pod.Namespace, labels: pod.Labels}
	var ports []model.NamedPort
	if len(pod.Ports) > 0 {
		ports = sortedPorts(pod.Ports)
		p.scratch = appendPorts(p.scratch[:0], ports)
		key.ports = string(p.scratch)
	}
	o, ok := p.owners[key]
	if !ok {
		o = &owner{ownerKey: key, ports: ports, groups: make(map[*cover]*group)}
		p.addOwner(o)
	}
	return o
}

func appendPorts(b []byte, ports []model.NamedPort) []byte {
	for _, n := range ports {
		b = append(append(b, n.Name...), 0, byte(n.Protocol))
		b = binary.BigEndian.AppendUint16(b, n.Port)
	}
	return b
}

func (p *peers) nodeOwner(n *model.Node) *owner {
	key := ownerKey{role: someNodes, labels: n.Labels}
	if n.Name == p.node {
		key.role = thisNode
	}
	o, ok := p.owners[key]
	if !ok {
		o = &owner{ownerKey: key, groups: make(map[*cover]*group)}
		if key.role == thisNode {
			o.kind = model.KindThisNode
		}
		p.addOwner(o)
	}
	return o
}

func (p *peers) addOwner(o *owner) {
	p.owners[o.ownerKey] = o
	if o.role != somePods {
		for _, t := range p.words.terms {
			p.matchNodes(o, t)
		}
		return
	}
	ns := p.namespaces[o.namespace]
	if ns == nil {
		ns = &namespace{Namespace: p.cluster.Namespace(o.namespace), owners: make(map[*owner]bool), terms: make(map[*term]bool)}
		p.namespaces[o.namespace] = ns
		for _, t := range p.words.terms {
			p.matchNamespace(ns, t)
		}
	}
	ns.owners[o] = true
	for t := range ns.terms {
		o.bits.set(t.bit, t.peer.Pods.Pods.Matches(o.labels))
	}
	p.resolve(o)
}

// use counts the pods and nodes of an owner; an owner without any is removed.
func (p *peers) use(o *owner, by int) {
	if o.uses += by; o.uses > 0 {
		return
	}
	delete(p.owners, o.ownerKey)
	p.words.usePorts(o.names, -1)
	if o.role != somePods {
		return
	}
	ns := p.namespaces[o.namespace]
	delete(ns.owners, o)
	if len(ns.owners) == 0 {
		delete(p.namespaces, o.namespace)
	}
}

// resolve computes the meaning, on the pods, of the port names that egress rules use.
func (p *peers) resolve(o *owner) {
	names := p.words.resolved(o.ports)
	if slices.Equal(names, o.names) {
		return
	}
	p.words.usePorts(names, 1)
	p.words.usePorts(o.names, -1)
	o.names, o.texts = names, nameTexts(names)
	p.touch(o)
}

func (p *peers) matchNamespace(ns *namespace, t *term) bool {
	matches := t.peer.Kind == model.PeerPods && t.peer.Pods.MatchesNamespace(ns.Namespace)
	if matches {
		ns.terms[t] = true
	}
	return matches
}

func (p *peers) matchNodes(o *owner, t *term) {
	if t.peer.Kind == model.PeerNodes && t.peer.Nodes.Matches(o.labels) && o.bits.set(t.bit, true) {
		p.touch(o)
	}
}

// matchOwners evaluates new terms, once per namespace and once per owner.
func (p *peers) matchOwners(added []*term) {
	if len(added) == 0 {
		return
	}
	for _, ns := range p.namespaces {
		for _, t := range added {
			if !p.matchNamespace(ns, t) {
				continue
			}
			for o := range ns.owners {
				if t.peer.Pods.Pods.Matches(o.labels) && o.bits.set(t.bit, true) {
					p.touch(o)
				}
			}
		}
	}
	for _, o := range p.owners {
		if o.role == someNodes || o.role == thisNode {
			for _, t := range added {
				p.matchNodes(o, t)
			}
		}
	}
}

// forgetOwners removes terms that are no longer in use.
func (p *peers) forgetOwners(removed []*term) {
	if len(removed) == 0 {
		return
	}
	for _, ns := range p.namespaces {
		for _, t := range removed {
			delete(ns.terms, t)
		}
	}
	for _, o := range p.owners {
		for _, t := range removed {
			if o.bits.set(t.bit, false) {
				p.touch(o)
			}
		}
	}
}

// namespaceChanged evaluates all terms again for the pods of a namespace.
func (p *peers) namespaceChanged(name string) {
	ns := p.namespaces[name]
	if ns == nil {
		return
	}
	is := p.cluster.Namespace(name)
	if is.Labels == ns.Labels {
		return
	}
	ns.Namespace = is
	clear(ns.terms)
	for _, t := range p.words.terms {
		p.matchNamespace(ns, t)
	}
	for o := range ns.owners {
		var bits bitset
		for t := range ns.terms {
			bits.set(t.bit, t.peer.Pods.Pods.Matches(o.labels))
		}
		if !bits.sameOutside(o.bits, nil) {
			o.bits = bits
			p.touch(o)
		}
	}
}

// touch marks the groups of an owner.
func (p *peers) touch(o *owner) {
	for _, g := range o.groups {
		p.mark(g)
	}
}

// podChanged moves the claims of a pod from one version to the next, each with the addresses
// that it really has; either may be nil.
func (p *peers) podChanged(was *model.Pod, wasIPs []netip.Addr, is *model.Pod, isIPs []netip.Addr) {
	if was != nil && !was.Policed() {
		was = nil
	}
	if is != nil && !is.Policed() {
		is = nil
	}
	if was == nil {
		wasIPs = nil
	}
	if is == nil {
		isIPs = nil
	} else {
		p.use(p.podOwner(is), 1)
	}
	for _, a := range isIPs {
		e := p.entry(a)
		if i := slices.Index(e.pods, was); was != nil && i >= 0 {
			e.pods[i] = is
		} else if !slices.Contains(e.pods, is) {
			e.pods = append(e.pods, is)
		}
		p.resolveEntry(e)
	}
	for _, a := range wasIPs {
		if e := p.entries[a]; e != nil && !slices.Contains(isIPs, a) {
			e.pods = slices.DeleteFunc(e.pods, func(q *model.Pod) bool { return q == was })
			p.resolveEntry(e)
		}
	}
	if was != nil {
		p.use(p.podOwner(was), -1)
	}
}

// nodeChanged does the same for a node.
func (p *peers) nodeChanged(was, is *model.Node) {
	if is != nil {
		p.use(p.nodeOwner(is), 1)
		for _, a := range is.Addresses {
			if e := p.entry(a); !slices.Contains(e.nodes, is) {
				e.nodes = append(e.nodes, is)
				p.resolveEntry(e)
			}
		}
	}
	if was != nil {
		for _, a := range was.Addresses {
			if e := p.entries[a]; e != nil {
				e.nodes = slices.DeleteFunc(e.nodes, func(n *model.Node) bool { return n == was })
				p.resolveEntry(e)
			}
		}
		p.use(p.nodeOwner(was), -1)
	}
}

func (p *peers) entry(a netip.Addr) *entry {
	e, ok := p.entries[a]
	if !ok {
		e = &entry{addr: a}
		p.entries[a] = e
	}
	return e
}

// resolveEntry finds the owner of an address. Of two pods with policies that claim it, the
// younger wins, then the one whose name sorts last. Without such a pod, of two nodes the one
// whose name sorts last wins.
func (p *peers) resolveEntry(e *entry) {
	e.owner = nil
	switch {
	case len(e.pods) > 0:
		e.owner = p.podOwner(slices.MaxFunc(e.pods, func(a, b *model.Pod) int {
			return cmp.Or(cmp.Compare(a.Created, b.Created), a.PodID.Compare(b.PodID))
		}))
	case len(e.nodes) > 0:
		e.owner = p.nodeOwner(slices.MaxFunc(e.nodes, func(a, b *model.Node) int { return cmp.Compare(a.Name, b.Name) }))
	default:
		p.removeEntry(e)
		return
	}
	if e.prefix == nil {
		e.prefix = p.longest(e.addr)
		e.prefix.entries.push(e, inPrefix)
	}
	p.place(e)
}
