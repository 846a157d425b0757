// SPDX-License-Identifier: Apache-2.0

package flowevents

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// maxPages bounds the kept States. Events are read a second or two late.
const maxPages = 64

// page is a State that was being written or in force.
type page struct {
	// from is when its first write could take effect, and done when all had; zero until then.
	from, done time.Time
	state      *model.State
	owners     map[netip.Addr]model.EndpointID
}

// book holds the latest States, and the attached pods. It is safe for concurrent use.
type book struct {
	mu       sync.Mutex
	pages    []page // oldest first
	attached map[model.EndpointID]dataplane.EndpointSpec
}

// begin records a State that is about to be written.
func (b *book) begin(s *model.State, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.pages); n > 0 && b.pages[n-1].state == s {
		return
	}
	p := page{from: now, state: s, owners: make(map[netip.Addr]model.EndpointID)}
	for id, e := range s.Policy.Endpoints {
		for _, a := range e.IPs {
			p.owners[a] = id
		}
	}
	if len(b.pages) == maxPages {
		b.pages = slices.Delete(b.pages, 0, 1)
	}
	b.pages = append(b.pages, p)
}

// applied records that the last State is in force.
func (b *book) applied(s *model.State, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.pages); n > 0 && b.pages[n-1].state == s && b.pages[n-1].done.IsZero() {
		b.pages[n-1].done = now
	}
}

func (b *book) attach(s dataplane.EndpointSpec) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attached[s.ID] = s
}

func (b *book) detach(id model.EndpointID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.attached, id)
}

// explain returns the flow event of a packet. It returns false for a packet of no pod of Isthmus, one that policy
// allowed, and one that a deny list dropped, as such drops are only counted.
func (b *book) explain(p *packet) (model.FlowEvent, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := model.FlowEvent{Time: p.time, Direction: p.direction, Verdict: model.Deny, Src: p.src, Dst: p.dst, SrcPort: p.srcPort,
		DstPort: p.dstPort, Protocol: p.protocol}
	if p.protocol == model.ICMP || p.protocol == model.ICMPv6 {
		e.Detail = model.UnknownICMPType
	}
	pages := b.inForce(p.time)
	if e.Endpoint, e.Pod = b.owner(p.own(), pages); e.Endpoint == "" || p.allowed {
		return e, false
	}
	for _, page := range pages {
		if p.direction == model.Ingress && page.state.Deny != nil && page.state.Deny.Denies(p.remote()) {
			return e, false
		}
	}
	for _, page := range pages {
		s := &page.state.Policy
		if d := s.Decide(e.Endpoint, p.direction, p.remote(), p.protocol, p.dstPort); d.Verdict == model.Deny {
			e.Cause, e.Class = d.Cause, s.Class(p.remote())
			return e, true
		}
	}
	if len(pages) == 0 {
		e.Cause = &model.Cause{Reason: model.ReasonPending, Direction: p.direction}
		return e, true
	}
	return e, p.blocked
}

// inForce returns the States that may have decided at a time, the newest first: the last that was begun, and those
// before it until one was in force completely.
func (b *book) inForce(t time.Time) (list []*page) {
	for i := len(b.pages) - 1; i >= 0; i-- {
		p := &b.pages[i]
		if p.from.After(t) && i > 0 {
			continue // events from before the first State are explained by it
		}
		list = append(list, p)
		if !p.done.IsZero() && !p.done.After(t) {
			break
		}
	}
	return list
}

// owner returns the endpoint that had an address.
func (b *book) owner(a netip.Addr, pages []*page) (model.EndpointID, model.PodID) {
	for _, p := range pages {
		if id, ok := p.owners[a]; ok {
			return id, p.state.Policy.Endpoints[id].Pod
		}
	}
	for id, s := range b.attached {
		if slices.Contains(s.IPs, a) {
			return id, s.Pod
		}
	}
	return "", model.PodID{}
}
