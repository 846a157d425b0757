// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Options are what no source settles.
type Options struct {
	// Block and Allow are the texts of the types of rules. NoTypes leaves the map out of the manifest.
	Block, Allow string
	NoTypes      bool
	// NoFilter ignores the filter of event ids.
	NoFilter bool
}

// buffered bounds the events that a session holds.
const buffered = 8192

// Record is an event in a session.
type Record struct {
	ID   uint16
	Time time.Time
	Data []byte
}

// Host has the sessions of a host. It is safe for concurrent use.
type Host struct {
	options Options

	mu       sync.Mutex
	sessions map[string]*session
}

type session struct {
	ids     []uint16 // nil before the provider is enabled
	enabled bool
	events  []Record
	lost    uint32
	// more is closed when there are events, or the session ends.
	more  chan struct{}
	ended bool
}

// New returns a host without sessions.
func New(o Options) *Host { return &Host{options: o, sessions: make(map[string]*session)} }

// English are the options of a host in English.
func English() Options { return Options{Block: "Block ", Allow: "Allow "} }

// Codes of Windows.
const (
	codeExists  = 0x800700B7 // ERROR_ALREADY_EXISTS
	codeMissing = 0x80071069 // ERROR_WMI_INSTANCE_NOT_FOUND
)

// Start starts a session.
func (h *Host) Start(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sessions[name] != nil {
		return hns.NewError("StartTrace", codeExists, "the session exists")
	}
	h.sessions[name] = &session{more: make(chan struct{})}
	return nil
}

// Enable lets the provider write events with some ids, or all without any.
func (h *Host) Enable(name string, ids []uint16) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[name]
	if s == nil {
		return missing(name)
	}
	s.enabled, s.ids = true, ids
	return nil
}

// Stop ends a session. Next returns what is left.
func (h *Host) Stop(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[name]
	if s == nil {
		return missing(name)
	}
	delete(h.sessions, name)
	s.ended = true
	s.wake()
	return nil
}

// Lost returns how many events of a session did not fit.
func (h *Host) Lost(name string) (uint32, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.sessions[name]; s != nil {
		return s.lost, nil
	}
	return 0, missing(name)
}

func missing(name string) error {
	return hns.NewError("ControlTrace", codeMissing, fmt.Sprintf("no session %q", name))
}

func (s *session) wake() {
	select {
	case <-s.more:
	default:
		close(s.more)
	}
}

// Reader reads the events of a session, also after its end.
type Reader struct {
	host *Host
	s    *session
}

// Open returns a Reader.
func (h *Host) Open(name string) (*Reader, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.sessions[name]; s != nil {
		return &Reader{h, s}, nil
	}
	return nil, missing(name)
}

// Next waits for events until the context is done. It returns false after the last.
func (r *Reader) Next(ctx context.Context) ([]Record, bool) {
	r.host.mu.Lock()
	more := r.s.more
	r.host.mu.Unlock()
	select {
	case <-more:
	case <-ctx.Done():
	}
	r.host.mu.Lock()
	defer r.host.mu.Unlock()
	list := r.s.events
	r.s.events = nil
	if !r.s.ended {
		r.s.more = make(chan struct{})
	}
	return list, len(list) > 0 || !r.s.ended
}

// Packet writes the events of a packet at a port.
func (h *Host) Packet(t vfp.Trace) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.sessions) == 0 {
		return
	}
	rule, family := uint16(ruleEvent), "IPV4"
	if t.Src.Is6() {
		rule, family = ruleEventV6, "IPV6"
	}
	direction := "OUT"
	if t.Direction == hns.In {
		direction = "IN"
	}
	switch v := (values{layer: "ACL_ENDPOINT_LAYER", group: "ACL_ENDPOINT_GROUP_" + family + "_" + direction, rule: "8A0A6F22-1B1F-4B52-9D3C-6D1B9E1F3A01"}); {
	case t.Rule && t.Pass:
		v.ruleType = typeAllow
		h.write(rule, &t, v)
	case t.Rule:
		v.ruleType, v.status = typeBlock, 0xC0000022
		h.write(rule, &t, v)
	default:
		h.write(noMatchEvent, &t, v)
	}
	if t.Pass && t.Direction == hns.Out {
		h.write(rule, &t, values{layer: "VNET_PA_ROUTE_LAYER", group: "VNET_GROUP_PA_ROUTE_" + family + "_OUT", rule: "PA_ROUTE", ruleType: typeRoute})
	}
	h.write(doneEvent, &t, values{})
}

func (h *Host) write(id uint16, t *vfp.Trace, v values) {
	var data []byte
	for _, s := range h.sessions {
		if !s.enabled || !h.options.NoFilter && len(s.ids) > 0 && !slices.Contains(s.ids, id) {
			continue
		}
		if len(s.events) == buffered {
			s.lost++
			continue
		}
		if data == nil {
			data = encode(id, t, v)
		}
		s.events = append(s.events, Record{id, t.Time, data})
		s.wake()
	}
}

// Enabled reports whether the provider writes to a session.
func (h *Host) Enabled(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[name]
	return s != nil && s.enabled
}
