// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/dataplane"
)

// matching is one assignment of interfaces to claims.
type matching struct {
	claims     *Claims
	observed   func(namespace string) bool
	candidates map[*claim][]*dataplane.Interface
	taken      map[string]bool // by handle
}

// decide gives claims with a single candidate their interface, until no more have one. A pod that gives itself
// the address of another has an address of its own, too: its claim takes its interface away from the other.
func (m *matching) decide(open []*claim, interfaces []dataplane.Interface, r *Result) {
	for again := true; again; {
		again = false
		var left []*claim
		for _, c := range open {
			free := m.free(c)
			if len(free) != 1 {
				left = append(left, c)
				continue
			}
			m.taken[free[0].Handle], again = true, true
			m.assign(c, free[0], r)
		}
		open = left
	}
	for _, c := range open {
		free := m.free(c)
		switch {
		case len(free) == 0:
			c.why = c.missing() + unknown(interfaces)
			for _, i := range interfaces {
				if i.Problem != "" && containsAll(i.Addresses, c.pod.IPs) {
					c.why = i.Problem
				}
			}
		case m.closeNewer(c, free, r):
		default:
			c.why = fmt.Sprintf("interfaces %s all have the address %s: remove it from those of other pods", names(free), join(c.pod.IPs))
		}
	}
}

// maxUnknown bounds the interfaces that a report about another thing names.
const maxUnknown = 3

// unknown names interfaces whose addresses are unknown, one of which may be that of a pod.
func unknown(interfaces []dataplane.Interface) (text string) {
	n := 0
	for _, i := range interfaces {
		if i.Problem != "" && len(i.Addresses) == 0 && i.Owner == "" && n < maxUnknown {
			text += "; or its interface is one that has a problem: " + i.Problem
			n++
		}
	}
	return text
}

func (m *matching) free(c *claim) (all []*dataplane.Interface) {
	for _, i := range m.candidates[c] {
		if !m.taken[i.Handle] {
			all = append(all, i)
		}
	}
	return all
}

// assign adopts an interface for a claim, or closes it if it may belong to the next pod.
func (m *matching) assign(c *claim, i *dataplane.Interface, r *Result) {
	if m.outdated(c, i) {
		m.close(c, i, r)
		return
	}
	if i.Problem != "" {
		c.why = i.Problem
		return
	}
	c.why = "it is being attached"
	r.Adopt = append(r.Adopt, Match{Pod: c.pod, Interface: *i, Since: c.began()})
}

// closeNewer closes the candidates of a claim if it is older than all of them.
func (m *matching) closeNewer(c *claim, free []*dataplane.Interface, r *Result) bool {
	for _, i := range free {
		if !m.outdated(c, i) {
			return false
		}
	}
	for _, i := range free {
		m.close(c, i, r)
	}
	return true
}

// outdated reports whether a claim cannot be about an interface: the API made it before the interface existed, or
// the pod had another.
func (m *matching) outdated(c *claim, i *dataplane.Interface) bool {
	return c.ended || i.ClosedFor == c.key() || m.claims.appeared[i.Handle] > c.round
}

// close closes an interface that may belong to the next pod. If the pods of the namespace are observed, it stays open.
func (m *matching) close(c *claim, i *dataplane.Interface, r *Result) {
	c.held = !c.ended || !i.Closed || i.ClosedFor == c.key()
	observed, effect := m.observed(c.pod.Namespace), "it drops every packet"
	if observed {
		effect = "its packets pass without a verdict"
	}
	c.why = fmt.Sprintf("interface %s got the address %s after the API gave it to the pod: %s until the API says which pod has the address; if it is this pod, restart it", i.Name, join(c.pod.IPs), effect)
	if !i.Closed && !observed {
		r.Close = append(r.Close, Closing{*i, c.pod.PodID, c.key()})
	}
}
