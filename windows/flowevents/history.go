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

// maxVersions bounds the kept States. Events are read a second or two late.
const maxVersions = 64

// version is a State that was being written or in force.
type version struct {
	// from is when its first write could take effect, and done when all had; zero until then.
	from, done time.Time
	state      *model.State
	owners     map[netip.Addr]model.EndpointID
}

// history holds the latest States, and the attached pods. It is safe for concurrent use.
type history struct {
	mu       sync.Mutex
	versions []version // oldest first
	attached map[model.EndpointID]dataplane.EndpointSpec
	// earlier are the attached pods at which HNS enforces the ACLs of an earlier agent until the first State.
	earlier map[model.EndpointID]bool
}

func newHistory() history {
	return history{attached: make(map[model.EndpointID]dataplane.EndpointSpec), earlier: make(map[model.EndpointID]bool)}
}

// begin records a State that is about to be written.
func (h *history) begin(s *model.State, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.versions); n > 0 && h.versions[n-1].state == s {
		return
	}
	v := version{from: now, state: s, owners: make(map[netip.Addr]model.EndpointID)}
	for id, e := range s.Policy.Endpoints {
		for _, a := range slices.Concat(e.IPs, e.Further) {
			v.owners[a] = id
		}
	}
	if len(h.versions) == maxVersions {
		h.versions = slices.Delete(h.versions, 0, 1)
	}
	h.versions = append(h.versions, v)
}

// applied records that the last State is in force.
func (h *history) applied(s *model.State, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.versions); n > 0 && h.versions[n-1].state == s && h.versions[n-1].done.IsZero() {
		h.versions[n-1].done = now
	}
}

// attach records a pod. earlier is true if its endpoint had ACLs that decide everything and stayed. They are those of an
// earlier agent unless this one has made the endpoint.
func (h *history) attach(s dataplane.EndpointSpec, earlier bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, known := h.attached[s.ID]
	h.earlier[s.ID] = earlier && (!known || h.earlier[s.ID])
	h.attached[s.ID] = s
}

func (h *history) detach(id model.EndpointID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.attached, id)
	delete(h.earlier, id)
}

// decision is who dropped a packet.
type decision uint8

// The decisions. A packet that nothing dropped, or that is of no pod of Isthmus, is of no interest.
const (
	byNothing decision = iota
	byPolicy
	byDenyList
)

// explain returns who dropped a packet, and its flow event if that is policy.
func (h *history) explain(p *packet) (model.FlowEvent, decision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := model.FlowEvent{Time: p.time, Direction: p.direction, Verdict: model.Deny, Src: p.src, Dst: p.dst, SrcPort: p.srcPort,
		DstPort: p.dstPort, Protocol: p.protocol}
	if p.protocol == model.ICMP || p.protocol == model.ICMPv6 {
		e.Detail = model.UnknownICMPType
	}
	versions := h.inForce(p.time)
	if e.Endpoint, e.Pod = h.owner(p.own(), versions); e.Endpoint == "" || p.allowed {
		return e, byNothing
	}
	for _, v := range versions {
		if p.direction == model.Ingress && v.state.Deny != nil && v.state.Deny.Denies(p.remote()) {
			return e, byDenyList
		}
	}
	for _, v := range versions {
		s := &v.state.Policy
		if d := s.Decide(e.Endpoint, p.direction, p.remote(), p.protocol, p.dstPort); d.Verdict == model.Deny {
			e.Cause, e.Class = d.Cause, s.Class(p.remote())
			return e, byPolicy
		}
	}
	if len(versions) == 0 && !h.earlier[e.Endpoint] {
		e.Cause = &model.Cause{Reason: model.ReasonPending, Direction: p.direction}
		return e, byPolicy
	}
	if p.blocked {
		return e, byPolicy // where the node denies more than the State, or by rules that are not known
	}
	return e, byNothing
}

// inForce returns the States that may have decided at a time, the newest first: the last that was begun, and those
// before it until one was in force completely.
func (h *history) inForce(t time.Time) (list []*version) {
	for i := len(h.versions) - 1; i >= 0; i-- {
		v := &h.versions[i]
		if v.from.After(t) && i > 0 {
			continue // events from before the first State are explained by it
		}
		list = append(list, v)
		if !v.done.IsZero() && !v.done.After(t) {
			break
		}
	}
	return list
}

// owner returns the endpoint that had an address.
func (h *history) owner(a netip.Addr, versions []*version) (model.EndpointID, model.PodID) {
	for _, v := range versions {
		if id, ok := v.owners[a]; ok {
			return id, v.state.Policy.Endpoints[id].Pod
		}
	}
	for id, s := range h.attached {
		if slices.Contains(s.IPs, a) {
			return id, s.Pod
		}
	}
	return "", model.PodID{}
}
