// SPDX-License-Identifier: Apache-2.0

package events_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/events"
)

// raw encodes an event as its generated Go struct defines it.
func raw(t testing.TB, e bpfobj.PodEvent) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := binary.Write(&b, binary.NativeEndian, e); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func word(a string) (w [4]uint32) {
	addr := netip.MustParseAddr(a)
	var b [16]byte
	if addr.Is4() {
		four := addr.As4()
		copy(b[12:], four[:])
	} else {
		b = addr.As16()
	}
	for i := range w {
		w[i] = binary.NativeEndian.Uint32(b[i*4:])
	}
	return w
}

// sample returns the event of a flow to a Service.
func sample() (e bpfobj.PodEvent) {
	e.Time, e.Slot, e.Table, e.Epoch, e.Class, e.Id = 5e9, 3, 9, 17, 4, uint8(bpfobj.CountEgressDeny)
	e.Flags = bpfobj.EventEgress | bpfobj.EventTranslated
	e.Flow.Src.Word, e.Flow.Dst.Word, e.Flow.SrcPort, e.Flow.DstPort, e.Flow.Protocol = word("10.1.0.1"), word("10.1.0.2"), 1000, 8080, 6
	e.Service.Word, e.ServicePort = word("10.96.0.1"), 80
	return e
}

func TestDecode(t *testing.T) {
	if s := binary.Size(bpfobj.PodEvent{}); s != events.Size {
		t.Fatalf("struct event has %d bytes, not %d", s, events.Size)
	}
	want := events.Record{Time: 5 * time.Second, ID: bpfobj.CountEgressDeny, Direction: model.Egress, Src: netip.MustParseAddr("10.1.0.1"),
		Dst: netip.MustParseAddr("10.1.0.2"), SrcPort: 1000, DstPort: 8080, Protocol: model.TCP,
		Service: netip.MustParseAddrPort("10.96.0.1:80"), Slot: 3, Table: 9, Epoch: 17, Class: 4}
	if got, err := events.Decode(raw(t, sample())); err != nil || got != want {
		t.Errorf("decoded %+v, %v", got, err)
	}
	e := sample()
	e.Flags = bpfobj.EventMasqueraded
	e.Id = uint8(bpfobj.CountIngressDeny)
	want.ID, want.Direction, want.Service, want.Masquerade = bpfobj.CountIngressDeny, model.Ingress, netip.AddrPort{}, want.Service
	if got, err := events.Decode(raw(t, e)); err != nil || got != want {
		t.Errorf("decoded %+v, %v", got, err)
	}
	e = sample()
	e.Flags = bpfobj.EventV6
	e.Flow.Src.Word, e.Flow.Dst.Word, e.Flow.Protocol, e.Id, e.Detail = word("fd00::1"), word("fd00::2"), 58, uint8(bpfobj.DropSpoofed), 128
	want = events.Record{Time: want.Time, ID: bpfobj.DropSpoofed, Src: netip.MustParseAddr("fd00::1"), Dst: netip.MustParseAddr("fd00::2"),
		SrcPort: 1000, DstPort: 8080, Protocol: model.ICMPv6, Detail: 128, Slot: 3, Table: 9, Epoch: 17, Class: 4}
	if got, err := events.Decode(raw(t, e)); err != nil || got != want {
		t.Errorf("decoded %+v, %v", got, err)
	}
	e.Id = uint8(bpfobj.Counters)
	for what, b := range map[string][]byte{"unknown kind": raw(t, e), "short": raw(t, sample())[1:], "long": append(raw(t, sample()), 0), "nothing": nil} {
		if _, err := events.Decode(b); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// For any bytes in the ring, decoding and interpreting never panic, and never invent a pod or a
// policy.
func FuzzDecode(f *testing.F) {
	f.Add(raw(f, sample()))
	f.Add(make([]byte, events.Size))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := events.Decode(b)
		if err != nil {
			return
		}
		if len(b) != events.Size || r.ID >= bpfobj.Counters || r.Src.IsValid() != r.Dst.IsValid() || r.Time < 0 {
			t.Errorf("decoded %x as %+v", b, r)
		}
		e := history().Resolve(r, time.Unix(0, 0))
		if _, decided := r.Verdict(); decided == (e.Drop != model.NotDropped) {
			t.Errorf("resolved %+v from %+v", e, r)
		}
		if e.Cause != nil && (r.Slot != 3 || r.Epoch == 0 || r.Table != 9 && r.Table != 13) {
			t.Errorf("made up the cause %v of %+v", e.Cause, r)
		}
	})
}

var web = model.PodID{Namespace: "shop", Name: "web"}

// state returns a State with one endpoint, whose table denies egress, with or without the
// cause.
func state(cause *model.Cause) *model.State {
	row := func(v model.Verdict) *model.Row {
		return &model.Row{Cells: []model.Decision{{Verdict: v, Cause: cause}}}
	}
	id := model.TableID{1}
	return &model.State{
		Policy: model.PolicyState{Endpoints: map[model.EndpointID]model.EndpointState{"a:eth0": {Pod: web, IPs: []netip.Addr{netip.MustParseAddr("10.1.0.1")}, Table: id}},
			Tables: map[model.TableID]*model.Table{id: {ID: id, Sides: [2]model.Side{{Default: row(model.Allow)}, {Default: row(model.Deny)}}}}},
	}
}

var (
	old   = &model.Cause{Reason: model.ReasonIsolated, Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "old"}, Direction: model.Egress}
	fresh = &model.Cause{Reason: model.ReasonIsolated, Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "fresh"}, Direction: model.Egress}
)

func version(from time.Duration, table, epoch uint32, s *model.State) events.Version {
	return events.Version{From: from, State: s, Slots: map[uint32]events.Slot{3: {Endpoint: "a:eth0", Pod: web, Table: table, Epoch: epoch}}}
}

// history starts as after a restart, with a State without causes. Then the policies become known,
// then they change.
func history() *events.History {
	b := &events.History{}
	b.Add(version(time.Second, 9, 17, state(nil)))
	b.Add(version(6*time.Second, 9, 17, state(old)))
	b.Add(version(8*time.Second, 13, 18, state(fresh)))
	return b
}

func TestResolve(t *testing.T) {
	record := func(at time.Duration, table, epoch uint32, id int) events.Record {
		r, err := events.Decode(raw(t, sample()))
		if err != nil {
			t.Fatal(err)
		}
		r.Time, r.Table, r.Epoch, r.ID = at, table, epoch, id
		return r
	}
	for name, c := range map[string]struct {
		record events.Record
		pod    model.PodID
		cause  *model.Cause
	}{
		"before the policies were known, under the same epoch": {record(5*time.Second, 9, 17, bpfobj.CountEgressDeny), web, old},
		"by the rules of that time":                            {record(7*time.Second, 9, 17, bpfobj.CountEgressDeny), web, old},
		"by the new rules":                                     {record(9*time.Second, 13, 18, bpfobj.CountEgressDeny), web, fresh},
		"under the same table, of an epoch before the start":   {record(time.Millisecond, 9, 4, bpfobj.CountEgressDeny), web, old},
		"by unknown rules":                                     {record(9*time.Second, 8, 16, bpfobj.CountEgressDeny), web, nil},
		"another verdict than the rules give":                  {record(9*time.Second, 13, 18, bpfobj.CountEgressAllow), web, nil},
		"a drop":                                               {record(9*time.Second, 0, 0, bpfobj.DropSpoofed), web, nil},
	} {
		e := history().Resolve(c.record, time.Unix(7, 0))
		if e.Pod != c.pod || e.Cause != c.cause || !e.Time.Equal(time.Unix(7, 0)) {
			t.Errorf("%s: pod %s, cause %v, want %s, %v", name, e.Pod, e.Cause, c.pod, c.cause)
		}
	}
	// Neither the slot nor its epoch is known: the address must be the pod's.
	r := record(9*time.Second, 8, 16, bpfobj.CountEgressDeny)
	r.Src = netip.MustParseAddr("10.1.0.77")
	if e := history().Resolve(r, time.Time{}); e.Pod != (model.PodID{}) {
		t.Errorf("flow of 10.1.0.77 is said to be of pod %s", e.Pod)
	}
	if e := history().Resolve(record(0, 0, 0, bpfobj.DropRevoked), time.Time{}); e.Drop != model.DropRevoked || !e.Denied() {
		t.Errorf("resolved %+v from a packet of a revoked flow", e)
	}
	// Until a State contains an endpoint, its table denies everything.
	b := &events.History{}
	b.Add(version(0, 9, 5, &model.State{}))
	if e := b.Resolve(record(1, 9, 5, bpfobj.CountEgressDeny), time.Time{}); e.Cause == nil || e.Cause.Reason != model.ReasonPending {
		t.Errorf("denied by %v, want that policy is not known yet", e.Cause)
	}
}

// TestResolveAfterEdits checks that rules of a later edit never explain an event, although table and epoch stay.
// The causes may be unknown after a start, or so many versions may have followed that those of the event are gone.
func TestResolveAfterEdits(t *testing.T) {
	resolve := func(h *events.History, at time.Duration) model.FlowEvent {
		t.Helper()
		r, err := events.Decode(raw(t, sample()))
		if err != nil {
			t.Fatal(err)
		}
		r.Time, r.Table, r.Epoch, r.ID = at, 9, 17, bpfobj.CountEgressDeny
		return h.Resolve(r, time.Time{})
	}
	h := &events.History{}
	first := version(1*time.Second, 9, 17, state(nil))
	first.Slots[3] = events.Slot{Endpoint: "a:eth0", Table: 9, Epoch: 17} // maps name no pods
	h.Add(first)
	h.Add(version(2*time.Second, 9, 17, state(old)))
	h.Add(version(4*time.Second, 9, 17, state(fresh)))
	for at, want := range map[time.Duration]*model.Cause{time.Second / 2: old, time.Second: old, 3 * time.Second: old, 5 * time.Second: fresh} {
		if e := resolve(h, at); e.Cause != want || e.Pod != web {
			t.Errorf("an event after %s: pod %s, cause %v, want %v", at, e.Pod, e.Cause, want)
		}
	}
	for n := range 15 { // the versions of 1 and 2 s are gone
		h.Add(version(time.Duration(10+n)*time.Second, 9, 17, state(fresh)))
	}
	for at, want := range map[time.Duration]*model.Cause{3 * time.Second: nil, 5 * time.Second: fresh} {
		if e := resolve(h, at); e.Cause != want {
			t.Errorf("an event after %s, of which versions are gone: cause %v, want %v", at, e.Cause, want)
		}
	}
	// Another pod has the slot later, with the same table.
	h = &events.History{}
	h.Add(version(1*time.Second, 9, 17, state(old)))
	later := version(2*time.Second, 9, 18, state(old))
	later.Slots[3] = events.Slot{Endpoint: "b:eth0", Pod: model.PodID{Namespace: "shop", Name: "b"}, Table: 9, Epoch: 18}
	h.Add(later)
	if e := resolve(h, 1500*time.Millisecond); e.Pod != web || e.Cause != old {
		t.Errorf("before another pod had the slot: pod %s, cause %v", e.Pod, e.Cause)
	}
}
