// SPDX-License-Identifier: Apache-2.0

package events

import (
	"slices"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// Slot is the meaning of a slot during a period.
type Slot struct {
	Endpoint model.EndpointID
	Pod      model.PodID
	// Table and Epoch are the word of the slot.
	Table, Epoch uint32
}

// Version is the content of the maps from a time on.
type Version struct {
	// From is by the clock of Record.Time.
	From  time.Duration
	Slots map[uint32]Slot
	State *model.State
}

// versions is the number of versions that a History keeps, enough for the steps of a few policy changes.
// Records are read a fraction of a second late.
const versions = 16

// History holds the latest versions. Any goroutine may use it.
type History struct {
	mutex    sync.Mutex
	versions []Version // oldest first
	// forgot is true if there were older ones.
	forgot bool
}

// Add records the policy that holds from now on. Call it before the maps are written, so that
// every record finds its version.
func (h *History) Add(v Version) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if len(h.versions) == versions {
		h.versions, h.forgot = slices.Delete(h.versions, 0, 1), true
	}
	h.versions = append(h.versions, v)
}

// Resolve converts a record to a flow event with the given wall-clock time.
func (h *History) Resolve(r Record, when time.Time) model.FlowEvent {
	e := model.FlowEvent{Time: when, Direction: r.Direction, Src: r.Src, Dst: r.Dst, SrcPort: r.SrcPort, DstPort: r.DstPort,
		Protocol: r.Protocol, Service: r.Service, Masquerade: r.Masquerade, Table: policymap.TableNumber(r.Table), Epoch: r.Epoch, Class: r.Class, Detail: r.Detail}
	verdict, decided := r.Verdict()
	e.Observed = r.Table&bpfobj.TableObserved != 0 && (!decided || verdict == model.Deny)
	if decided {
		e.Verdict = verdict
	} else {
		e.Drop = bpfobj.DropReasons[r.ID]
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	known := !decided
	for _, v := range h.decidedBy(r) {
		s := v.Slots[r.Slot]
		if e.Endpoint == "" {
			e.Endpoint = s.Endpoint
		}
		if e.Endpoint == s.Endpoint && e.Pod == (model.PodID{}) { // a slot that was read back has no pod
			e.Pod = s.Pod
		}
		if !known {
			e.Cause, known = cause(v.State, s, r, verdict)
		}
	}
	if e.Endpoint != "" {
		return e
	}
	if v := h.at(r.Time); v != nil {
		if s, ok := v.Slots[r.Slot]; ok && (!decided || owns(v.State, s.Endpoint, r)) {
			e.Endpoint, e.Pod = s.Endpoint, s.Pod
		}
	}
	return e
}

// decidedBy returns the versions that can explain a record, the best first. The best are those in which the slot had its
// epoch. Next are those with the same table, which stands for the same rules, although a start assigns new epochs. A
// record from before all kept versions has none: its rules are not known any more.
func (h *History) decidedBy(r Record) []*Version {
	if r.Epoch == 0 { // the program read no slot
		return nil
	}
	if h.forgot && r.Time < h.versions[0].From {
		return nil
	}
	return append(h.since(r, func(s Slot) bool { return s.Table == r.Table && s.Epoch == r.Epoch }),
		h.since(r, func(s Slot) bool { return s.Table == r.Table && policymap.TableNumber(s.Table) != policymap.DenyAll })...)
}

// since returns the version of the time of a record, among those whose slot is wanted, and then the later ones, the oldest
// first. A later version did not decide, but stands for a State without causes that was read back after a start. A newer
// one than needed may have other rules in the same table.
func (h *History) since(r Record, wanted func(Slot) bool) (list []*Version) {
	for i := range h.versions {
		v := &h.versions[i]
		if s, ok := v.Slots[r.Slot]; !ok || !wanted(s) {
			continue
		}
		if v.From <= r.Time {
			list = list[:0] // an earlier version did not decide
		}
		list = append(list, v)
	}
	return list
}

// at returns the version of a time, or the oldest version.
func (h *History) at(t time.Duration) *Version {
	for i := len(h.versions) - 1; i >= 0; i-- {
		if h.versions[i].From <= t || i == 0 {
			return &h.versions[i]
		}
	}
	return nil
}

// owns reports whether the pod's end of the flow has an address of the endpoint. The slot may
// have belonged to another endpoint when the record was written.
func owns(s *model.State, id model.EndpointID, r Record) bool {
	e := s.Policy.Endpoints[id]
	return slices.Contains(e.IPs, r.own()) || slices.Contains(e.Further, r.own())
}

// cause finds the cause of a verdict in a State; nil if the State has another verdict, as while a table changes. It
// returns false if the State has no causes, as after a restart.
func cause(s *model.State, slot Slot, r Record, verdict model.Verdict) (c *model.Cause, known bool) {
	endpoint, ok := s.Policy.Endpoints[slot.Endpoint]
	table := s.Policy.Tables[endpoint.Table]
	if !ok || table == nil {
		if verdict == model.Deny {
			return &model.Cause{Reason: model.ReasonPending, Direction: r.Direction}, true
		}
		return nil, false
	}
	port := r.DstPort
	if !r.Protocol.HasPorts() {
		port = 0 // for ICMP it is the identifier
	}
	d := table.Sides[r.Direction].Row(r.Class).Cell(s.Policy.PortClass(r.Protocol, port))
	if d.Verdict != verdict {
		return nil, d.Cause != nil
	}
	return d.Cause, d.Cause != nil
}
