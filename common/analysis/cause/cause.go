// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// Part is a part of a reach.Change for which the same edits are responsible.
type Part struct {
	From, To []*reach.Group
	// Cells are the indices of the cells of ports, ascending.
	Cells   []int
	Was, Is model.Verdict
	By      []reach.Side
	// Edits are the responsible policies, in order of their origins.
	Edits []reach.Edit
	// Objects is set if pods, namespaces or nodes that differ are responsible too: labels,
	// named ports or addresses.
	Objects bool
	// Unsure is set if the limit of Finder prevented the search. Edits are then all that
	// select an end.
	Unsure bool
}

// MaxVerdicts is the default limit of verdicts that a Finder evaluates.
const MaxVerdicts = 200_000

// Finder finds responsible edits between two versions. It belongs to one goroutine.
type Finder struct {
	// Verdicts is how many more verdicts Split may evaluate.
	Verdicts int

	partition *reach.Partition
	snapshots [2]*model.Snapshot
	reference [2]*policy.Evaluator
	policies  [2][]*model.Policy
	edits     []reach.Edit
	// objects is set if pods, namespaces or nodes differ.
	objects bool
	// ends caches what is known about the pods of a group.
	ends map[*reach.Group]*end
	// stamps are the last turn that found each edit.
	stamps []int
	turn   int
}

// end is what a Finder knows about a group.
type end struct {
	// candidates are the edits that may concern the group, by direction.
	candidates [2][]int
	// addrs are an address in each version.
	addrs [2]netip.Addr
	// pod has them; nil if the group has no pods.
	pod *model.PodID
	// policies are those of each version that select the pod in some version. They are valid
	// once loaded is set.
	policies [2][]*model.Policy
	loaded   bool
}

// New prepares the search for a partition of the two versions.
func New(p *reach.Partition, was, is *model.Snapshot) *Finder {
	f := &Finder{Verdicts: MaxVerdicts, partition: p, snapshots: [2]*model.Snapshot{was, is}, ends: make(map[*reach.Group]*end)}
	for i, s := range f.snapshots {
		f.reference[i] = policy.NewEvaluator(s)
		f.policies[i] = s.SortedPolicies()
	}
	f.edits = reach.Edits(f.policies[0], f.policies[1])
	f.stamps = make([]int, len(f.edits))
	f.objects = objectsDiffer(was, is)
	return f
}

// objectsDiffer reports whether anything but policies differs that both versions have.
func objectsDiffer(was, is *model.Snapshot) bool {
	for id, p := range was.Pods.All() {
		if q, ok := is.Pods.Get(id); ok && p != q &&
			(p.Labels != q.Labels || p.Node != q.Node || p.Policed() != q.Policed() || !slices.Equal(p.Ports, q.Ports)) {
			return true
		}
	}
	return differ(was.Namespaces.Len(), is.Namespaces.Len(), maps.Collect(was.Namespaces.All()), maps.Collect(is.Namespaces.All())) ||
		differ(was.Nodes.Len(), is.Nodes.Len(), maps.Collect(was.Nodes.All()), maps.Collect(is.Nodes.All()))
}

func differ[V any](a, b int, was, is map[string]V) bool {
	return a != b || !reflect.DeepEqual(was, is)
}

// Split divides a change into parts, each flow into one of them.
func (f *Finder) Split(c reach.Change) []Part {
	cells := f.partition.Members(c.Ports)
	whole := Part{From: c.From, To: c.To, Cells: cells, Was: c.Was, Is: c.Is, By: c.By}
	candidates, need := f.estimate(c, len(cells))
	if !f.objects && len(candidates) == 1 {
		whole.Edits = f.pick(candidates)
		return []Part{whole}
	}
	if need > f.Verdicts {
		whole.Edits, whole.Objects, whole.Unsure = f.pick(candidates), f.objects, true
		return []Part{whole}
	}
	f.Verdicts -= need
	var parts []*Part
	joined := make(map[string]*Part)
	for _, from := range c.From {
		rows := make(map[string]*Part)
		var order []string
		for _, to := range c.To {
			for _, one := range f.pair(&c, from, to, cells) {
				key := one.key(len(cells))
				if rows[key] == nil {
					rows[key] = &one
					order = append(order, key)
				}
				rows[key].To = append(rows[key].To, to)
			}
		}
		for _, key := range order {
			row := rows[key]
			key += groupsKey(row.To)
			if joined[key] == nil {
				joined[key] = row
				parts = append(parts, row)
			}
			joined[key].From = append(joined[key].From, from)
		}
	}
	all := make([]Part, len(parts))
	for i, p := range parts {
		all[i] = *p
	}
	return all
}

// key identifies the ports and causes of a part of a change with some number of cells.
func (p *Part) key(all int) string {
	key := []byte{flag(p.Objects), flag(p.Unsure)}
	if len(p.Cells) < all {
		key = fmt.Append(key, p.Cells)
	}
	for _, e := range p.Edits {
		o := e.Origin()
		key = append(append(append(append(key, '\n'), o.Kind...), '/'), o.Namespace...)
		key = append(append(key, '/'), o.Name...)
	}
	return string(key)
}

func flag(b bool) byte {
	if b {
		return '1'
	}
	return '0'
}

func groupsKey(groups []*reach.Group) string {
	var key []byte
	for _, g := range groups {
		key = binary.LittleEndian.AppendUint64(key, uint64(reflect.ValueOf(g).Pointer()))
	}
	return string(key)
}

// pair divides the ports of two groups, without setting From and To.
func (f *Finder) pair(c *reach.Change, from, to *reach.Group, cells []int) []Part {
	ends := [2]*end{model.Egress: f.end(from), model.Ingress: f.end(to)}
	var candidates []int
	for _, s := range c.By {
		candidates = append(candidates, ends[s.Direction].candidates[s.Direction]...)
	}
	slices.Sort(candidates)
	candidates = slices.Compact(candidates)
	part := func(cells []int) Part { return Part{Cells: cells, Was: c.Was, Is: c.Is, By: c.By} }
	if !f.objects && len(candidates) == 1 {
		p := part(cells)
		p.Edits = f.pick(candidates)
		return []Part{p}
	}
	var parts []Part
	index := make(map[string]int)
	for _, cell := range cells {
		p := part(nil)
		f.blame(&p, from, to, f.partition.Cells()[cell], candidates)
		key := p.key(len(cells) + 1)
		n, ok := index[key]
		if !ok {
			n = len(parts)
			index[key] = n
			parts = append(parts, p)
		}
		parts[n].Cells = append(parts[n].Cells, cell)
	}
	return parts
}

// estimate returns the edits that may be responsible for some part of a change, and how many
// verdicts the search takes at most.
func (f *Finder) estimate(c reach.Change, cells int) (candidates []int, verdicts int) {
	f.turn++
	tries := len(c.From) * len(c.To)
	for _, s := range c.By {
		own, others := c.From, c.To
		if s.Direction == model.Ingress {
			own, others = c.To, c.From
		}
		for _, g := range own {
			found := f.end(g).candidates[s.Direction]
			tries += len(found) * len(others)
			for _, n := range found {
				if f.stamps[n] != f.turn {
					f.stamps[n] = f.turn
					candidates = append(candidates, n)
				}
			}
		}
	}
	slices.Sort(candidates)
	return candidates, 2 * tries * cells
}

func (f *Finder) pick(indices []int) []reach.Edit {
	all := make([]reach.Edit, len(indices))
	for i, n := range indices {
		all[i] = f.edits[n]
	}
	return all
}

// blame finds what is responsible for the change of one flow: every edit that changes
// the first version alone, and every edit that the second version needs.
func (f *Finder) blame(p *Part, from, to *reach.Group, at reach.Cell, candidates []int) {
	v := &variants{f: f, from: f.end(from), to: f.end(to), at: at}
	if from == to { // flows between two pods of a group
		v.to = f.podEnd(to.Pods[1])
	}
	v.from.load(f)
	v.to.load(f)
	for _, n := range candidates {
		e := f.edits[n]
		if v.verdict(0, 0, e.Was, e.Is) != p.Was || v.verdict(1, 1, e.Is, e.Was) != p.Is {
			p.Edits = append(p.Edits, e)
		}
	}
	p.Objects = f.objects && (v.verdict(1, 0, nil, nil) != p.Was || v.verdict(0, 1, nil, nil) != p.Is)
	if len(p.Edits) == 0 && !p.Objects {
		p.Edits, p.Objects = f.pick(candidates), f.objects
	}
}

// variants are clusters between the two versions, for one flow.
type variants struct {
	f        *Finder
	from, to *end
	at       reach.Cell
}

// verdict decides the flow among the objects of one version, with the policies of a
// version in which one policy replaces another. Either may be nil.
func (v *variants) verdict(objects, policies int, without, with *model.Policy) model.Verdict {
	var list []*model.Policy
	seen := make(map[*model.Policy]bool)
	for _, e := range []*end{v.from, v.to} {
		for _, p := range e.policies[policies] {
			if p != without && !seen[p] {
				seen[p] = true
				list = append(list, p)
			}
		}
	}
	if with != nil {
		list = append(list, with)
	}
	protocol := v.at.Protocol
	if protocol == model.AnyProtocol {
		protocol = model.ICMP
		if v.from.addrs[objects].Is6() {
			protocol = model.ICMPv6
		}
	}
	egress, ingress := v.f.reference[objects].With(list).Flow(model.Flow{Src: v.from.addrs[objects], Dst: v.to.addrs[objects],
		Protocol: protocol, Port: v.at.First})
	return min(egress.Verdict, ingress.Verdict)
}
