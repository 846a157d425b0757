// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// vocabulary is everything by which the rules in force on this node distinguish addresses
// and ports. Each entry has a use count and is removed with its last use.
type vocabulary struct {
	terms map[string]*term
	slots []*term // by bit
	free  []int   // bits without a term; the last is taken first
	// names are the port names that egress rules use. Pods on which a name has different
	// meanings are different peers.
	names map[portName]int
	// ranges are the ports that rules use, with names resolved.
	ranges map[portRange]int

	// The changes since the last call of changes.
	added, idle  []*term
	namesChanged bool
	portsChanged bool
}

// term is a condition on addresses; equal texts are one term.
type term struct {
	bit  int
	peer model.Peer
	text string
	uses int
	// closed: the term exceeds the limits, so that it might match any address.
	closed bool
	// holes are the exceptions of an address block; nil before the first use.
	holes map[netip.Prefix]bool
}

type portName struct {
	name     string
	protocol model.Protocol // AnyProtocol: all
}

type portRange struct {
	protocol    model.Protocol
	first, last uint16
}

func (r portRange) String() string {
	return model.PortMatch{Protocol: r.protocol, First: r.first, Last: r.last}.String()
}

func newVocabulary() *vocabulary {
	return &vocabulary{terms: make(map[string]*term), names: make(map[portName]int), ranges: make(map[portRange]int)}
}

func (v *vocabulary) use(p model.Peer) *term {
	text := p.String()
	t, ok := v.terms[text]
	if !ok {
		t = &term{peer: p, text: text, bit: len(v.slots)}
		if n := len(v.free) - 1; n >= 0 {
			t.bit = v.free[n]
			v.free = v.free[:n]
			v.slots[t.bit] = t
		} else {
			v.slots = append(v.slots, t)
		}
		v.terms[text] = t
		v.added = append(v.added, t)
	}
	t.uses++
	return t
}

func (v *vocabulary) drop(t *term) {
	if t.uses--; t.uses == 0 {
		v.idle = append(v.idle, t)
	}
}

// changes returns the terms that were added and removed since its last call. release then
// frees the bits of the removed ones.
func (v *vocabulary) changes() (added, removed []*term) {
	gone := make(map[*term]bool)
	for _, t := range v.idle {
		if t.uses == 0 && !gone[t] {
			gone[t] = true
			removed = append(removed, t)
			delete(v.terms, t.text)
		}
	}
	added = slices.DeleteFunc(v.added, func(t *term) bool { return gone[t] })
	v.added, v.idle = nil, nil
	return added, removed
}

func (v *vocabulary) release(removed []*term) {
	for _, t := range removed {
		v.slots[t.bit] = nil
		v.free = append(v.free, t.bit)
	}
}

func (v *vocabulary) useName(n portName, by int) {
	if count(v.names, n, by) {
		v.namesChanged = true
	}
}

func (v *vocabulary) useRange(r portRange, by int) {
	if count(v.ranges, r, by) {
		v.portsChanged = true
	}
}

func (v *vocabulary) usePorts(ports []model.NamedPort, by int) {
	for _, n := range ports {
		v.useRange(portRange{n.Protocol, n.Port, n.Port}, by)
	}
}

// count adds to a counter and reports whether the key was added or removed.
func count[K comparable](m map[K]int, k K, by int) bool {
	was := m[k]
	if m[k] += by; m[k] == 0 {
		delete(m, k)
	}
	return (was == 0) != (was+by == 0)
}

// resolved picks the named ports, sorted, that egress rules use.
func (v *vocabulary) resolved(ports []model.NamedPort) []model.NamedPort {
	var names []model.NamedPort
	for _, n := range ports {
		if v.names[portName{n.Name, n.Protocol}] > 0 || v.names[portName{n.Name, model.AnyProtocol}] > 0 {
			names = append(names, n)
		}
	}
	return names
}

// peerWords lists the texts of all terms and all port names, sorted: was, with the changes
// applied.
func (v *vocabulary) peerWords(was words, t turnover) words {
	w := words{terms: was.terms, names: was.names}
	if len(t.added)+len(t.removed) > 0 {
		w.terms = merge(was.terms, t.added, t.removed)
	}
	if t.namesChanged {
		w.names = nil
		for n := range v.names {
			w.names = append(w.names, n.name)
		}
		slices.Sort(w.names)
		w.names = slices.Compact(w.names)
	}
	return w
}

// merge returns a sorted list of texts with added and without removed texts. A text may be
// in both; then the term was replaced.
func merge(was []string, added, removed []*term) []string {
	come, gone := make([]string, len(added)), make(map[string]bool, len(removed))
	for i, t := range added {
		come[i] = t.text
	}
	slices.Sort(come)
	for _, t := range removed {
		gone[t.text] = true
	}
	all := make([]string, 0, max(0, len(was)+len(come)-len(gone)))
	for _, text := range was {
		if len(gone) > 0 && gone[text] {
			continue
		}
		for len(come) > 0 && come[0] < text {
			all, come = append(all, come[0]), come[1:]
		}
		all = append(all, text)
	}
	return append(all, come...)
}

func compareNamedPorts(a, b model.NamedPort) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// sortedPorts returns a sorted copy without repetition.
func sortedPorts(ports []model.NamedPort) []model.NamedPort {
	if len(ports) == 0 {
		return nil
	}
	return slices.Compact(slices.SortedFunc(slices.Values(ports), compareNamedPorts))
}

// nameTexts renders named ports in the form of PeerClassInfo.Names.
func nameTexts(names []model.NamedPort) []string {
	if len(names) == 0 {
		return nil
	}
	texts := make([]string, len(names))
	for i, n := range names {
		texts[i] = fmt.Sprintf("%s=%s %d", n.Name, n.Protocol, n.Port)
	}
	return texts
}
