// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/relay"
)

var start = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// event is a flow from a pod of shop/web to port of an address.
func event(n int, port uint32, verdict flow.Verdict) *observer.GetFlowsResponse {
	at := timestamppb.New(start.Add(time.Duration(n) * time.Second))
	f := &flow.Flow{Time: at, Verdict: verdict, Uuid: fmt.Sprint(n), NodeName: "n1", TrafficDirection: flow.TrafficDirection_EGRESS,
		IP:          &flow.IP{Source: fmt.Sprintf("10.0.0.%d", n%200), Destination: "192.0.2.1", IpVersion: flow.IPVersion_IPv4},
		L4:          &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{SourcePort: uint32(40000 + n), DestinationPort: port}}},
		Source:      &flow.Endpoint{Namespace: "shop", PodName: fmt.Sprintf("web-%d", n), Labels: []string{"k8s:app=web"}, Workloads: []*flow.Workload{{Name: "web", Kind: "Deployment"}}},
		Destination: &flow.Endpoint{Identity: 2}}
	return &observer.GetFlowsResponse{Time: at, NodeName: "n1", ResponseTypes: &observer.GetFlowsResponse_Flow{Flow: f}}
}

func lostEvents(n uint64) *observer.GetFlowsResponse {
	return &observer.GetFlowsResponse{Time: timestamppb.New(start), NodeName: "n1", ResponseTypes: &observer.GetFlowsResponse_LostEvents{
		LostEvents: &flow.LostEvent{Source: flow.LostEventSource_PERF_EVENT_RING_BUFFER, NumEventsLost: n}}}
}

func TestAggregate(t *testing.T) {
	var a Aggregator
	for n := range 10 {
		a.Add(event(n, 443, flow.Verdict_FORWARDED))
	}
	a.Add(event(10, 80, flow.Verdict_FORWARDED))
	a.Add(event(11, 443, flow.Verdict_DROPPED))
	named := event(12, 443, flow.Verdict_FORWARDED)
	named.GetFlow().Source.Workloads = nil
	a.Add(named)
	byPolicy := event(13, 443, flow.Verdict_FORWARDED)
	byPolicy.GetFlow().EgressAllowedBy = []*flow.Policy{{Name: "p"}}
	a.Add(byPolicy)
	a.Add(lostEvents(3))
	a.Add(lostEvents(4))
	var got []string
	for _, m := range a.Flush() {
		line, err := encode(m)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(line))
	}
	shop, to := `"source":{"namespace":"shop","workloads":[{"name":"web","kind":"Deployment"}]},"destination":{"identity":2}`, `"node_name":"n1"`
	line := func(verdict, source string, port, n, second int, more string) string {
		at := start.Add(time.Duration(second) * time.Second).Format(time.RFC3339)
		return fmt.Sprintf(`{"flow":{"time":%q,"verdict":%q,"IP":{"destination":"192.0.2.1","ipVersion":"IPv4"},"l4":{"TCP":{"destination_port":%d}},%s,%s,`+
			`"traffic_direction":"EGRESS"%s,"aggregate":{"egress_flow_count":%d}},"node_name":"n1","time":%q}`+"\n", at, verdict, port, source, to, more, n, at)
	}
	want := []string{
		`{"lost_events":{"source":"PERF_EVENT_RING_BUFFER","num_events_lost":"7"},"node_name":"n1","time":"2026-11-23T12:00:00Z"}` + "\n",
		line("FORWARDED", shop, 443, 10, 9, ""), line("FORWARDED", shop, 80, 1, 10, ""), line("DROPPED", shop, 443, 1, 11, ""),
		line("FORWARDED", `"source":{"namespace":"shop","pod_name":"web-12"},"destination":{"identity":2}`, 443, 1, 12, ""),
		line("FORWARDED", shop, 443, 1, 13, `,"egress_allowed_by":[{"name":"p"}]`),
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, ""), strings.Join(want, ""))
	}
	if again := a.Flush(); len(again) != 0 {
		t.Errorf("after a flush: %v", again)
	}
}

// No flow is lost or counted twice, and a full Aggregator says so.
func TestAggregateCountsAll(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var a Aggregator
	groups, sum, largest := 0, 0, 0
	note := func(all []*observer.GetFlowsResponse) {
		groups += len(all)
		largest = max(largest, len(all))
		for _, m := range all {
			c := m.GetFlow().GetAggregate()
			sum += int(c.GetEgressFlowCount() + c.GetIngressFlowCount() + c.GetUnknownDirectionFlowCount())
		}
	}
	const flows = 40000
	for n := range flows {
		e := event(n, uint32(random.IntN(40000)), flow.Verdict(1+random.IntN(2)))
		e.GetFlow().TrafficDirection = flow.TrafficDirection(random.IntN(3))
		if a.Add(e) {
			note(a.Flush())
		}
	}
	note(a.Flush())
	if sum != flows || largest != maxGroups || groups >= flows {
		t.Errorf("%d flows in %d groups, at most %d at a time", sum, groups, largest)
	}
}

func TestParseFilter(t *testing.T) {
	for text, want := range map[string]string{`{"verdict":["DROPPED"],"source_pod":["shop/"]}`: "", `{"nonsense":1}`: "unknown field", `verdict`: "give JSON such as", "": "give JSON such as"} {
		f, err := ParseFilter(text)
		if want == "" && (err != nil || f.GetVerdict()[0] != flow.Verdict_DROPPED) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, %v", text, f, err)
		}
	}
}

// output fails while broken, and knows its last line.
type output struct {
	mutex  sync.Mutex
	text   bytes.Buffer
	broken bool
	last   string
}

func (o *output) Write(p []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.broken {
		return 0, errors.New("no space left on device")
	}
	return o.text.Write(p)
}

func (o *output) LastLines() ([]byte, error) { return []byte(o.last), nil }

func (o *output) lines() []string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return strings.Split(strings.TrimSuffix(o.text.String(), "\n"), "\n")
}

func TestExporter(t *testing.T) {
	out, log := &output{}, &bytes.Buffer{}
	registry := prometheus.NewRegistry()
	e, err := New(Config{Allow: []*flow.FlowFilter{{Protocol: []string{"tcp"}}}}, out, registry, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var requests []*observer.GetFlowsRequest
	e.Run(ctx, func(_ context.Context, r *observer.GetFlowsRequest, send func(*observer.GetFlowsResponse)) error {
		requests = append(requests, r)
		if len(requests) == 2 {
			cancel()
			return nil
		}
		send(&observer.GetFlowsResponse{ResponseTypes: &observer.GetFlowsResponse_NodeStatus{NodeStatus: &relay.NodeStatusEvent{NodeNames: []string{"n1"}}}})
		send(event(1, 80, flow.Verdict_FORWARDED))
		out.broken = true
		send(event(2, 80, flow.Verdict_FORWARDED))
		send(event(3, 80, flow.Verdict_FORWARDED))
		out.broken = false
		send(lostEvents(5))
		return errors.New("the network is gone")
	})
	if r := requests[0]; len(requests) != 2 || !r.GetFollow() || r.GetSince() != nil || r.GetWhitelist()[0].GetProtocol()[0] != "tcp" {
		t.Errorf("requests %v", requests)
	}
	if r := requests[1]; !r.GetSince().AsTime().Equal(start.Add(3*time.Second + 1)) {
		t.Errorf("the second request begins at %v", r.GetSince().AsTime())
	}
	lines := out.lines()
	if len(lines) != 3 || !strings.Contains(lines[0], "node_status") || !strings.Contains(lines[1], `"uuid":"1"`) || !strings.Contains(lines[2], `"num_events_lost":"5"`) {
		t.Errorf("lines %q", lines)
	}
	for _, line := range lines {
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON: %s", line)
		}
	}
	counted := make(map[string]float64)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		counted[strings.TrimPrefix(f.GetName(), "isthmus_relay_export_")] = f.GetMetric()[0].GetCounter().GetValue()
	}
	if want := map[string]float64{"lines_total": 3, "flows_total": 3, "lost_total": 5, "errors_total": 2}; !maps.Equal(counted, want) {
		t.Errorf("counted %v, want %v", counted, want)
	}
	if text := log.String(); strings.Count(text, "no space left") != 1 || strings.Count(text, "writes again") != 1 || !strings.Contains(text, "the network is gone") {
		t.Errorf("log\n%s", text)
	}
}

// With a window, flows are combined, and the last window is written at the end.
func TestExporterCombines(t *testing.T) {
	out := &output{}
	e, err := New(Config{Window: 50 * time.Millisecond}, out, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	e.Run(ctx, func(_ context.Context, _ *observer.GetFlowsRequest, send func(*observer.GetFlowsResponse)) error {
		for n := range 5 {
			send(event(n, 80, flow.Verdict_FORWARDED))
		}
		for deadline := time.Now().Add(10 * time.Second); len(out.lines()[0]) == 0 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		for n := range 3 {
			send(event(n, 81, flow.Verdict_FORWARDED))
		}
		cancel()
		return nil
	})
	counts := make(map[string]int)
	for _, line := range out.lines() {
		var m struct {
			Flow struct {
				L4 struct {
					TCP struct{ Destination_port int }
				}
				Aggregate struct{ Egress_flow_count int }
			}
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		counts[fmt.Sprint(m.Flow.L4.TCP.Destination_port)] += m.Flow.Aggregate.Egress_flow_count
	}
	if counts["80"] != 5 || counts["81"] != 3 || len(counts) != 2 {
		t.Errorf("%v\n%q", counts, out.lines())
	}
}

// A new Exporter continues after a recent last line, and only then.
func TestExporterContinues(t *testing.T) {
	recent := time.Now().Add(-time.Minute).UTC()
	for last, want := range map[string]time.Time{
		"": {}, "no JSON": {}, `{"time":"2020-01-01T00:00:00Z"}`: {}, `{"time":5}`: {},
		`{"flow":{},"time":"` + recent.Format(time.RFC3339Nano) + `"}`: recent.Add(1),
	} {
		e, err := New(Config{}, &output{last: last}, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		got := time.Time{}
		if s := e.request().GetSince(); s != nil {
			got = s.AsTime()
		}
		if !got.Equal(want) {
			t.Errorf("%q: %s, want %s", last, got, want)
		}
	}
	if _, err := New(Config{Allow: []*flow.FlowFilter{{SourceIp: []string{"no address"}}}}, &output{}, prometheus.NewRegistry(), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a bad filter is accepted")
	}
}

// TestContinuesAfterWrongTimes checks that lines of a node with a wrong clock do not hide how far the export came.
func TestContinuesAfterWrongTimes(t *testing.T) {
	recent := time.Now().Add(-time.Minute).UTC()
	path := filepath.Join(t.TempDir(), "flows")
	f, err := OpenFile(path, 1<<20, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, at := range []string{recent.Format(time.RFC3339Nano), "9999-12-31T23:59:59Z", recent.Add(-time.Second).Format(time.RFC3339Nano), "1969-12-31T23:59:59Z", "10000-01-01T00:00:00Z", ""} {
		if _, err := fmt.Fprintf(f, "{\"flow\":{},\"time\":%q}\n", at); err != nil {
			t.Fatal(err)
		}
	}
	e, err := New(Config{}, f, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if s := e.request().GetSince(); s == nil || !s.AsTime().Equal(recent.Add(1)) {
		t.Errorf("the request has since %v, want %s", s, recent.Add(1))
	}
}

// TestFuture checks that a flow dated in the future does not keep the export from flows of the present.
func TestFuture(t *testing.T) {
	future := time.Now().Add(24 * time.Hour)
	out := &output{last: fmt.Sprintf(`{"time":%q}`, future.Format(time.RFC3339))}
	e, err := New(Config{}, out, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if s := e.request().GetSince(); s != nil {
		t.Errorf("after a last line of %s the request has since %s", future, s.AsTime())
	}
	m := event(0, 443, flow.Verdict_DROPPED)
	m.Time = timestamppb.New(future)
	e.take(m)
	if s := e.request().GetSince(); s == nil || s.AsTime().After(time.Now().Add(time.Second)) { // the clock of Windows is coarse
		t.Errorf("after a flow of %s the request has since %s", future, s.AsTime())
	}
}
