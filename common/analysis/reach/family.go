// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sort"

	"github.com/isthmus-net/isthmus/common/model"
)

// family is the ends of one address family.
type family struct {
	p    *Partition
	ends []*end
	// groups are numbered by index; those from firstNode on are nodes.
	groups    []*Group
	firstNode int
	groupOf   []int32 // by end
	all       set     // of the groups
	views     []*view // by version
	// moved are the groups that some unchanged rule matches in one version only.
	moved set
	sides map[string]*side
	pairs map[string]*pair
}

// view is the matches of one version's rules in a family.
type view struct {
	*version
	f *family
	// sorted are the ends in order of their addresses.
	sorted []int32
	// endOf is the end of each pod of the version, or -1.
	endOf   []int32
	unknown set            // ends
	terms   map[string]set // ends, by text of a peer
	// rules are the rules in force, with their matches as sets of groups; unsure are the
	// groups that are in a pod range.
	rules  map[*model.Rule]*rule
	unsure set
	// names numbers the meanings, on the pods of a group, of the port names that egress
	// rules use; 0 is none.
	names []int32
	ports [][]model.NamedPort // by that number
}

func (p *Partition) newFamily(v6 bool) *family {
	f := &family{p: p, sides: make(map[string]*side), pairs: make(map[string]*pair)}
	f.ends = append(p.podEnds(v6), p.rangeEnds(v6)...)
	nodes := p.nodeEnds(v6)
	f.ends = append(f.ends, nodes...)
	for i, v := range p.versions {
		f.views = append(f.views, f.view(v, i))
	}
	f.group(v6)
	f.firstNode = len(f.groups) - len(nodes)
	f.all = fullSet(len(f.groups))
	for i, w := range f.views {
		w.prepare(i)
	}
	f.findSides()
	f.findMoved()
	return f
}

func (f *family) view(v *version, i int) *view {
	w := &view{version: v, f: f, endOf: slices.Repeat([]int32{-1}, len(v.list)), unknown: newSet(len(f.ends)), terms: make(map[string]set)}
	for n, e := range f.ends {
		w.sorted = append(w.sorted, int32(n))
		if e.member != nil {
			w.endOf[v.index[e.member.ID]] = int32(n)
		}
		if e.rng != nil && e.unknown[i] {
			w.unknown.add(n)
		}
	}
	slices.SortFunc(w.sorted, func(a, b int32) int { return model.ComparePrefixes(f.ends[a].at[i], f.ends[b].at[i]) })
	for _, p := range v.policies {
		for _, rules := range p.rules {
			for _, r := range rules {
				for _, peer := range r.Peers {
					if text := peer.String(); w.terms[text] == nil {
						w.terms[text] = w.match(peer, i)
					}
				}
			}
		}
	}
	return w
}

// match returns the ends that a peer certainly matches.
func (w *view) match(p model.Peer, i int) set {
	found := newSet(len(w.f.ends))
	switch p.Kind {
	case model.PeerPods:
		for n := range w.labels.selected(p.Pods).all() {
			if e := w.endOf[n]; e >= 0 {
				found.add(int(e))
			}
		}
	case model.PeerBlock:
		w.addWithin(found, p.Block.CIDR, i)
		holes := newSet(len(w.f.ends))
		for _, e := range p.Block.Except {
			w.addWithin(holes, e, i)
		}
		found.remove(holes)
	case model.PeerNodes:
		for n, e := range w.f.ends {
			if e.node != "" && p.Nodes.Matches(e.nodes[i].Labels) {
				found.add(n)
			}
		}
	}
	return found
}

// addWithin adds the ends that are in a prefix. A range is either entirely inside or
// entirely outside, because ranges are cut at every prefix.
func (w *view) addWithin(to set, p netip.Prefix, i int) {
	at := func(n int) netip.Prefix { return w.f.ends[w.sorted[n]].at[i] }
	first := sort.Search(len(w.sorted), func(n int) bool { return model.ComparePrefixes(at(n), p) >= 0 })
	for n := first; n < len(w.sorted) && p.Contains(at(n).Addr()); n++ {
		to.add(int(w.sorted[n]))
	}
}

// group joins the ends that nothing distinguishes.
func (f *family) group(v6 bool) {
	class := make([]int32, len(f.ends))
	first := make(map[string]int32)
	for n, e := range f.ends {
		key := f.endKey(e, n)
		id, ok := first[key]
		if !ok {
			id = int32(len(first))
			first[key] = id
		}
		class[n] = id
	}
	c := newClasses(class, len(first), len(f.ends))
	for _, w := range f.views {
		for _, t := range w.terms {
			c.split(t.all())
		}
	}
	groups := make(map[int32]*Group)
	f.groupOf = make([]int32, len(f.ends))
	for n, e := range f.ends {
		g := groups[c.class[n]]
		if g == nil {
			g = f.newGroup(e, v6)
			groups[c.class[n]] = g
		}
		if e.member != nil {
			g.Pods = append(g.Pods, e.member)
		}
		if e.rng != nil {
			g.Ranges = append(g.Ranges, e.rng)
		}
		f.groupOf[n] = int32(g.id)
	}
}

// endKey is a text that two ends share unless something besides peers distinguishes them:
// the kind of end and, for pods, namespace, operating system of the node, and policies.
func (f *family) endKey(e *end, n int) string {
	var key []byte
	switch {
	case e.member != nil:
		key = append(append(key, "pod "...), e.member.ID.Namespace...)
		for i, w := range f.views {
			pod := e.pods[i]
			key = append(append(key, '\n'), osOf(w.snapshot, pod)...)
			key = append(key, '\n')
			policies := w.selecting[w.index[pod.PodID]]
			for _, n := range policies {
				key = binary.LittleEndian.AppendUint32(key, uint32(n))
			}
			key = appendPorts(append(key, "\nin "...), w.ingressPorts(policies, pod))
			key = appendPorts(append(key, "\nout "...), w.egressPorts(pod))
		}
	case e.rng != nil:
		key = append(key, "range"...)
		for _, unknown := range e.unknown {
			if unknown {
				key = append(key, '?')
			} else {
				key = append(key, '.')
			}
		}
	default:
		key = binary.LittleEndian.AppendUint32(append(key, "node "...), uint32(n))
	}
	return string(key)
}

func (f *family) newGroup(e *end, v6 bool) *Group {
	g := &Group{V6: v6, id: len(f.groups)}
	for i, w := range f.views {
		os := model.OS("")
		switch {
		case e.member != nil:
			os = osOf(w.snapshot, e.pods[i])
		case e.node != "":
			os = e.nodes[i].OS
		}
		g.OS = append(g.OS, os)
	}
	if e.member != nil {
		g.Namespace = e.member.ID.Namespace
	}
	if e.node != "" {
		g.Node, g.Addr = e.node, e.at[0].Addr()
	}
	f.groups = append(f.groups, g)
	return g
}

// osOf is the operating system of the node that enforces for a pod.
func osOf(s *model.Snapshot, pod *model.Pod) model.OS {
	if n, ok := s.Nodes.Get(pod.Node); ok && n.OS != "" {
		return n.OS
	}
	return model.Linux
}

// appendPorts appends bytes that only equal lists share.
func appendPorts(b []byte, ports []model.NamedPort) []byte {
	for _, n := range ports {
		b = append(append(b, n.Name...), 0, byte(n.Protocol))
		b = binary.BigEndian.AppendUint16(b, n.Port)
	}
	return b
}
