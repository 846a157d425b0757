// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/hubble"
)

const (
	// retryEvery is the interval of trying to follow flows again after a failure.
	retryEvery = 2 * time.Second
	// maxGap is the age of the newest line up to which a new Exporter continues after it. Agents keep no older flows.
	maxGap = time.Hour
)

// Config selects flows.
type Config struct {
	// Allow selects the flows that match one of the filters; none selects all. Deny excludes flows.
	Allow, Deny []*flow.FlowFilter
	// Window is the time over which flows are combined; 0 writes each flow.
	Window time.Duration
	// Also gets each answer that is written, if it is not nil. It must not block.
	Also func(*observer.GetFlowsResponse)
}

// ParseFilter reads a filter in the JSON form of hubble observe --print-raw-filters.
func ParseFilter(text string) (*flow.FlowFilter, error) {
	f := &flow.FlowFilter{}
	if err := protojson.Unmarshal([]byte(text), f); err != nil {
		return nil, fmt.Errorf("filter %q: %w: give JSON such as {\"verdict\":[\"DROPPED\"]}", text, err)
	}
	return f, nil
}

// Follow sends the answers to a request until the context is done.
type Follow func(ctx context.Context, request *observer.GetFlowsRequest, send func(*observer.GetFlowsResponse)) error

// Exporter writes flows.
type Exporter struct {
	cfg   Config
	out   io.Writer
	log   *slog.Logger
	since time.Time

	lines, flows, lost, failed prometheus.Counter

	mutex  sync.Mutex
	groups Aggregator
	// broken is true while the output fails, so that the log names each failure once.
	broken bool
}

// lastLiner is an output that knows what was written to it before.
type lastLiner interface{ LastLines() ([]byte, error) }

// New returns an Exporter that writes lines to out; nil for none. If out has lines, the Exporter continues after the newest.
func New(cfg Config, out io.Writer, registry prometheus.Registerer, log *slog.Logger) (*Exporter, error) {
	e := &Exporter{cfg: cfg, out: out, log: log,
		lines:  prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_relay_export_lines_total", Help: "Lines that were written by the export of flows."}),
		flows:  prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_relay_export_flows_total", Help: "Flows that the export received; one line may stand for several."}),
		lost:   prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_relay_export_lost_total", Help: "Flows that agents reported as lost to the export."}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_relay_export_errors_total", Help: "Lines that the export could not write."}),
	}
	if _, err := hubble.NewQuery(e.request()); err != nil {
		return nil, fmt.Errorf("filter of the export: %w", err)
	}
	if l, ok := out.(lastLiner); ok {
		text, err := l.LastLines()
		if err != nil {
			return nil, fmt.Errorf("read the last lines of the export: %w", err)
		}
		e.since = newest(text, time.Now())
	}
	registry.MustRegister(e.lines, e.flows, e.lost, e.failed)
	return e, nil
}

// newest returns the latest time of lines, zero if none is recent: the export then begins with new flows. A node's wrong clock may
// have dated a line in the future: no flow would come until then.
func newest(lines []byte, now time.Time) (t time.Time) {
	for line := range bytes.Lines(lines) {
		var l struct{ Time time.Time }
		if json.Unmarshal(line, &l) != nil { // a part of a line
			continue
		}
		if age := now.Sub(l.Time); age >= 0 && age < maxGap && l.Time.After(t) {
			t = l.Time
		}
	}
	return t
}

// request returns the request for flows after those that were received.
func (e *Exporter) request() *observer.GetFlowsRequest {
	r := &observer.GetFlowsRequest{Follow: true, Whitelist: e.cfg.Allow, Blacklist: e.cfg.Deny}
	if !e.since.IsZero() {
		r.Since = timestamppb.New(e.since.Add(1))
	}
	return r
}

// Run writes flows until the context is done. It then writes what it has combined.
func (e *Exporter) Run(ctx context.Context, follow Follow) {
	var flushing sync.WaitGroup
	defer e.flush()
	defer flushing.Wait()
	if e.cfg.Window > 0 {
		flushing.Go(func() { e.flushEvery(ctx) })
	}
	for ctx.Err() == nil {
		if err := follow(ctx, e.request(), e.take); err != nil && ctx.Err() == nil {
			e.log.Warn("export flows", "error", err, "again in", retryEvery)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryEvery):
		}
	}
}

// take handles an answer.
func (e *Exporter) take(m *observer.GetFlowsResponse) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	switch {
	case m.GetFlow() != nil:
		e.flows.Inc()
		t, now := m.GetTime().AsTime(), time.Now()
		if t.After(now) {
			t = now
		}
		if t.After(e.since) {
			e.since = t
		}
	case m.GetLostEvents() != nil:
		e.lost.Add(float64(m.GetLostEvents().GetNumEventsLost()))
	}
	if e.cfg.Window == 0 || m.GetNodeStatus() != nil {
		e.write(m)
		return
	}
	if e.groups.Add(m) {
		e.write(e.groups.Flush()...)
	}
}

func (e *Exporter) flushEvery(ctx context.Context) {
	tick := time.NewTicker(e.cfg.Window)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			e.flush()
		}
	}
}

func (e *Exporter) flush() {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.write(e.groups.Flush()...)
}

// write writes a line for each answer. A line that cannot be written is lost, and counted.
func (e *Exporter) write(all ...*observer.GetFlowsResponse) {
	for _, m := range all {
		if e.cfg.Also != nil {
			e.cfg.Also(m)
		}
		if e.out == nil {
			continue
		}
		line, err := encode(m)
		if err == nil {
			_, err = e.out.Write(line)
		}
		if err != nil {
			e.failed.Inc()
			if !e.broken {
				e.log.Error("write the export of flows; its lines are lost until this is repaired", "error", err)
			}
			e.broken = true
			continue
		}
		if e.broken {
			e.log.Info("the export of flows writes again")
		}
		e.broken = false
		e.lines.Inc()
	}
}

// encode returns the line of an answer.
func encode(m *observer.GetFlowsResponse) ([]byte, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode flow: %w", err)
	}
	var line bytes.Buffer // protojson varies its spaces
	if err := json.Compact(&line, text); err != nil {
		return nil, errors.Join(errors.New("encode flow"), err)
	}
	line.WriteByte('\n')
	return line.Bytes(), nil
}
