// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"net/netip"

	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
)

// end returns what is known about a group.
func (f *Finder) end(g *reach.Group) *end {
	if e := f.ends[g]; e != nil {
		return e
	}
	e := &end{}
	switch {
	case len(g.Pods) > 0:
		e = f.podEnd(g.Pods[0])
		f.addCandidates(e)
	case g.Node != "":
		e.addrs = [2]netip.Addr{g.Addr, g.Addr}
	default:
		a := f.partition.Free(g.Ranges[0])
		e.addrs = [2]netip.Addr{a, a}
	}
	f.ends[g] = e
	return e
}

func (f *Finder) podEnd(m *reach.Member) *end {
	return &end{addrs: [2]netip.Addr(m.Addrs), pod: &m.ID}
}

// selects reports whether a policy selects a pod in some version.
func (f *Finder) selects(p *model.Policy, id model.PodID) bool {
	if p.Subject.Namespace != "" && p.Subject.Namespace != id.Namespace {
		return false
	}
	for i, s := range f.snapshots {
		if pod, ok := s.Pods.Get(id); ok && f.reference[i].Selects(p.Subject, pod) {
			return true
		}
	}
	return false
}

// addCandidates finds the edits that may concern a pod.
func (f *Finder) addCandidates(e *end) {
	for n, edit := range f.edits {
		for _, d := range model.Directions {
			for _, p := range []*model.Policy{edit.Was, edit.Is} {
				if p != nil && (p.Isolates[d] || len(p.Rules[d]) > 0) && f.selects(p, *e.pod) {
					e.candidates[d] = append(e.candidates[d], n)
					break
				}
			}
		}
	}
}

// load finds the policies that may concern a pod.
func (e *end) load(f *Finder) {
	if e.loaded || e.pod == nil {
		return
	}
	e.loaded = true
	for i, all := range f.policies {
		for _, p := range all {
			if f.selects(p, *e.pod) {
				e.policies[i] = append(e.policies[i], p)
			}
		}
	}
}
