// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/model"
)

func mask(paths ...string) *fieldmaskpb.FieldMask { return &fieldmaskpb.FieldMask{Paths: paths} }

func at(second int64) time.Time { return time.Unix(second, 0) }

// numbered returns events 1 to n, one each second. Even ones are dropped flows; each fifth is a report of lost ones.
func numbered(n int) (list []Event) {
	for i := 1; i <= n; i++ {
		e := Event{Time: at(int64(i))}
		if i%5 == 0 {
			e.Lost = &flow.LostEvent{NumEventsLost: uint64(i), First: timestamppb.New(at(int64(i - 1)))}
		} else {
			e.Flow = &Kept{}
			e.Flow.message.Store(&flow.Flow{Uuid: fmt.Sprint(i), Verdict: flow.Verdict(1 + (i+1)%2)})
		}
		list = append(list, e)
	}
	return list
}

func TestPast(t *testing.T) {
	dropped := []*flow.FlowFilter{{Verdict: []flow.Verdict{flow.Verdict_DROPPED}}}
	ts := func(s int64) *timestamppb.Timestamp { return timestamppb.New(at(s)) }
	for _, c := range []struct {
		request *observer.GetFlowsRequest
		want    string
	}{
		{&observer.GetFlowsRequest{}, "1 2 3 4 L5 6 7 8 9 L10 11 12"},
		{&observer.GetFlowsRequest{Number: 3}, "9 L10 11 12"},
		{&observer.GetFlowsRequest{Number: 1e18}, "1 2 3 4 L5 6 7 8 9 L10 11 12"},
		{&observer.GetFlowsRequest{Number: 2, Whitelist: dropped}, "8 L10 12"},
		{&observer.GetFlowsRequest{Number: 2, Blacklist: dropped}, "9 L10 11"},
		{&observer.GetFlowsRequest{Number: 2, First: true}, "1 2"},
		{&observer.GetFlowsRequest{Number: 5, First: true}, "1 2 3 4 L5 6"},
		{&observer.GetFlowsRequest{First: true}, "1 2 3 4 L5 6 7 8 9 L10 11 12"},
		{&observer.GetFlowsRequest{Since: ts(11)}, "11 12"},
		{&observer.GetFlowsRequest{Since: ts(7), Number: 2}, "7 8"},
		{&observer.GetFlowsRequest{Since: ts(7), Number: 2, First: true}, "7 8"},
		{&observer.GetFlowsRequest{Until: ts(3)}, "1 2 3"},
		{&observer.GetFlowsRequest{Until: ts(8), Number: 2}, "7 8"},
		{&observer.GetFlowsRequest{Follow: true}, ""},
		{&observer.GetFlowsRequest{Follow: true, Number: 2}, "11 12"},
		{&observer.GetFlowsRequest{Follow: true, Since: ts(11), Number: 1}, "11 12"},
	} {
		q, err := NewQuery(c.request)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range q.past(numbered(12)) {
			if e.Lost != nil {
				got = append(got, fmt.Sprint("L", e.Lost.GetNumEventsLost()))
			} else {
				got = append(got, e.Flow.Message().GetUuid())
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%v: got %s, want %s", c.request, s, c.want)
		}
	}
	for want, r := range map[string]*observer.GetFlowsRequest{
		"first and follow: give one of them": {First: true, Follow: true},
		"since: ":                            {Since: &timestamppb.Timestamp{Nanos: -1}},
		"until: ":                            {Until: &timestamppb.Timestamp{Seconds: 1 << 60}},
		"whitelist entry 0: ":                {Whitelist: []*flow.FlowFilter{{SourceIp: []string{"x"}}}},
		"field_mask has":                     {FieldMask: mask(make([]string, 1000)...)},
	} {
		if _, err := NewQuery(r); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v: got %v, want %s", r, err, want)
		}
	}
}

// FuzzQuery feeds requests of clients.
func FuzzQuery(f *testing.F) {
	for _, r := range []*observer.GetFlowsRequest{{Number: 3, First: true}, {Follow: true, Since: timestamppb.New(at(3))}, {FieldMask: mask("source.pod_name", "l4")}} {
		bytes, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bytes)
	}
	f.Fuzz(func(t *testing.T, bytes []byte) {
		r := &observer.GetFlowsRequest{}
		if proto.Unmarshal(bytes, r) != nil {
			return
		}
		q, err := NewQuery(r)
		if err != nil {
			return
		}
		flows := uint64(0)
		for _, e := range q.past(numbered(12)) {
			if e.Flow != nil {
				q.Mask.Apply(e.Flow.Message())
				flows++
			}
		}
		if r.GetNumber() > 0 && !r.GetFollow() && flows > r.GetNumber() {
			t.Errorf("%v selects %d flows", r, flows)
		}
	})
}

// TestRing reads with many readers of different speed while a writer goes on. Each event is read once or counted
// as lost, in order.
func TestRing(t *testing.T) {
	const total = 20000
	r := NewRing(64)
	var readers sync.WaitGroup
	for i := range 16 {
		readers.Go(func() {
			var next Cursor
			var count, missed uint64 // of flows
			for count+missed < total {
				list, following, lost, more := r.Read(next, 1+i)
				missed += lost
				for _, e := range list {
					if e.Lost != nil {
						count += e.Lost.GetNumEventsLost()
						continue
					}
					if count++; e.Time != at(int64(count+missed)) {
						t.Errorf("reader %d got flow %s as number %d", i, e.Time, count+missed)
					}
				}
				next = following
				if count+missed < total {
					<-more
				}
				if i > 12 {
					time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
				}
			}
			if count+missed != total || i > 12 && missed == 0 {
				t.Errorf("reader %d counts %d and missed %d", i, count, missed)
			}
		})
	}
	for i := 1; i <= total; i++ {
		if i%100 == 1 && i+10 <= total { // stands for ten flows
			i += 9
			r.Add(Event{Time: at(int64(i)), Lost: &flow.LostEvent{NumEventsLost: 10}})
			continue
		}
		r.Add(Event{Time: at(int64(i)), Flow: &Kept{}})
	}
	readers.Wait()
}

func TestStats(t *testing.T) {
	r := NewRing(8)
	if s := r.Stats(at(0)); s.Kept != 0 || s.Rate != 0 || s.Size != 8 {
		t.Errorf("an empty ring has %+v", s)
	}
	add := func(second int64, namespace string) {
		r.Add(Event{Time: at(second), Flow: &Kept{local: &flow.Endpoint{Namespace: namespace}}})
	}
	add(10, "old")
	add(100, "a")
	r.Add(Event{Time: at(101), Lost: &flow.LostEvent{}})
	add(110, "b")
	if s := r.Stats(at(120)); s.Kept != 3 || s.Seen != 3 || s.Rate != 2.0/60 || len(s.Namespaces) != 3 {
		t.Errorf("got %+v", s)
	}
	for range 20 {
		add(118, "c")
	}
	if s := r.Stats(at(120)); s.Kept != 8 || s.Seen != 23 || s.Rate != 4 || len(s.Namespaces) != 1 {
		t.Errorf("a full ring has %+v", s)
	}
}

// TestRingCountsReports checks that a report of lost flows that the ring has overwritten counts with these flows.
func TestRingCountsReports(t *testing.T) {
	r := NewRing(2)
	_, start, _, _ := r.Read(Cursor{}, 1)
	r.Add(Event{Lost: &flow.LostEvent{NumEventsLost: 10}}, Event{Flow: &Kept{}}, Event{Flow: &Kept{}}, Event{Flow: &Kept{}})
	list, next, lost, _ := r.Read(start, 9)
	if len(list) != 2 || lost != 11 {
		t.Errorf("read %d events after %d lost flows, want 2 after 11", len(list), lost)
	}
	if _, _, lost, _ := r.Read(next, 9); lost != 0 {
		t.Errorf("%d flows are lost at the end", lost)
	}
}

// TestMessages checks that messages are made of what was known when the flow came, and are the same after the ring
// released them. It keeps those of the newest flows only.
func TestMessages(t *testing.T) {
	known := cluster()
	m := NewMapper("n1", "1.2.3", time.Unix(0, 0), func() *model.Snapshot { return known })
	r := NewRing(3 * recent)
	var all []*Kept
	var first []*flow.Flow
	for range 2*recent + 5 {
		k := m.Keep(denied())
		all, first = append(all, k), append(first, k.Message())
		r.Add(Event{Flow: k})
	}
	known = model.MakeSnapshot(nil, nil, nil, nil)
	m.Keep(denied())
	for i, k := range all {
		if has, want := k.message.Load() != nil, i >= len(all)-recent; has != want {
			t.Fatalf("flow %d of %d has a message: %t, want %t", i, len(all), has, want)
		}
		if again := k.Message(); !proto.Equal(again, first[i]) || len(again.GetSource().GetWorkloads()) == 0 {
			t.Fatalf("flow %d was\n%v\nand is\n%v", i, first[i], again)
		}
	}
	if all[0].message.Load() != nil {
		t.Error("the ring keeps a message that it has released")
	}
}
