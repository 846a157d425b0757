// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	collectorv1 "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	logsv1 "go.opentelemetry.io/proto/slim/otlp/logs/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
)

const (
	// maxRecords and maxBytes bound a request. Collectors accept 4 MiB by default.
	maxRecords, maxBytes = 512, 1 << 20
	// flushEvery is how long a record waits for others.
	flushEvery = time.Second
	// callTimeout bounds a call.
	callTimeout = 10 * time.Second
	// lastFlush bounds the calls after the end of Run's context.
	lastFlush = 3 * time.Second
	// MaxQueue bounds Config.Queue.
	MaxQueue = 1 << 20
)

// Config says where records go.
type Config struct {
	// Endpoint is the HOST:PORT of the collector.
	Endpoint string
	// Transport authenticates the collector.
	Transport credentials.TransportCredentials
	// Headers authenticate this process. They may be nil.
	Headers *Headers
	// Cluster is the value of k8s.cluster.name, if it is not empty, and Version that of service.version.
	Cluster, Version string
	// Queue is the number of records that wait for the collector, from 1 to MaxQueue.
	Queue int
}

// item is a record that waits.
type item struct {
	node   string
	record *logsv1.LogRecord
}

// Exporter sends records.
type Exporter struct {
	cfg   Config
	log   *slog.Logger
	conn  *grpc.ClientConn
	queue chan item
	// held is taken from the queue and did not fit into the last batch.
	held *item
	// unreported is the number of records that were missed and that no accepted record names.
	unreported atomic.Uint64
	// broken is true while calls fail, so that the log names each failure once.
	broken bool
	// first and longest are the limits of the pause after a failure.
	first, longest time.Duration

	sent                     prometheus.Counter
	full, rejected, shutdown prometheus.Counter
	calls                    *prometheus.CounterVec
}

// New returns an Exporter. It does not connect before Run.
func New(cfg Config, registry prometheus.Registerer, log *slog.Logger) (*Exporter, error) {
	if cfg.Queue < 1 || cfg.Queue > MaxQueue {
		return nil, fmt.Errorf("queue of %d records: give 1 to %d", cfg.Queue, MaxQueue)
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(cfg.Transport), grpc.WithDisableServiceConfig(), grpc.WithUserAgent("isthmus-relay/" + cfg.Version),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: callTimeout,
			Backoff: backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 15 * time.Second}})}
	if cfg.Headers != nil {
		options = append(options, grpc.WithPerRPCCredentials(cfg.Headers))
	}
	conn, err := grpc.NewClient("dns:///"+cfg.Endpoint, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Endpoint, err)
	}
	e := &Exporter{cfg: cfg, log: log, conn: conn, queue: make(chan item, cfg.Queue), first: time.Second, longest: 30 * time.Second,
		sent: prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_relay_otlp_sent_total", Help: "Log records that the collector accepted."}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_relay_otlp_calls_total",
			Help: "Calls to the collector, by result: ok, retried or refused."}, []string{"result"})}
	missed := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_relay_otlp_missed_total",
		Help: "Log records that the collector did not get, by reason: the queue was full, the collector rejected them, or the relay stopped."}, []string{"reason"})
	e.full, e.rejected, e.shutdown = missed.WithLabelValues("queue"), missed.WithLabelValues("rejected"), missed.WithLabelValues("shutdown")
	for _, result := range []string{"ok", "retried", "refused"} {
		e.calls.WithLabelValues(result)
	}
	registry.MustRegister(e.sent, missed, e.calls, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_relay_otlp_queue",
		Help: "Log records that wait for the collector."},
		func() float64 { return float64(len(e.queue)) }))
	return e, nil
}

// Add queues the record of an answer. It does not block: without room the record is missed.
func (e *Exporter) Add(m *observer.GetFlowsResponse) {
	r := record(m, time.Now())
	if r == nil {
		return
	}
	select {
	case e.queue <- item{m.GetNodeName(), r}:
	default:
		e.full.Inc()
		e.unreported.Add(1)
	}
}

// Run sends records until the context is done, and then for a moment those that wait. It closes the connection.
func (e *Exporter) Run(ctx context.Context) {
	defer e.conn.Close()
	// A call in progress continues after the end: the collector may have the records already.
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	context.AfterFunc(ctx, func() { time.AfterFunc(lastFlush, cancel) })
	var b *batch
	for ctx.Err() == nil {
		if b = e.wait(ctx); b != nil && e.deliver(ctx, calls, b) {
			b = nil
		}
	}
	for ; ; b = nil {
		if b == nil {
			b = e.take()
		}
		if b == nil {
			return
		}
		if !e.deliver(calls, calls, b) { // no later record can name them
			e.shutdown.Add(float64(b.records()))
		}
	}
}

// batch is the content of a request.
type batch struct {
	items []item
	bytes int
	// lost is the number of missed records that the last item names; 0 without it.
	lost uint64
}

// add adds a waiting record, and reports whether it fits.
func (b *batch) add(i item) bool {
	size := proto.Size(i.record)
	if len(b.items) > 0 && (len(b.items) >= maxRecords || b.bytes+size > maxBytes) {
		return false
	}
	b.items, b.bytes = append(b.items, i), b.bytes+size
	return true
}

// wait waits for the next record, and returns it with those that follow in flushEvery. It is nil if the context is done
// before.
func (e *Exporter) wait(ctx context.Context) *batch {
	b := &batch{}
	if e.held != nil {
		b.add(*e.held)
		e.held = nil
	} else {
		select {
		case <-ctx.Done():
			return nil
		case i := <-e.queue:
			b.add(i)
		}
	}
	timer := time.NewTimer(flushEvery)
	defer timer.Stop()
	for {
		select {
		case i := <-e.queue:
			if !b.add(i) {
				e.held = &i
				return e.report(b)
			}
		case <-timer.C:
			return e.report(b)
		case <-ctx.Done():
			return e.report(b)
		}
	}
}

// take returns records that wait; nil if there are none.
func (e *Exporter) take() *batch {
	b := &batch{}
	if e.held != nil {
		b.add(*e.held)
		e.held = nil
	}
	for {
		select {
		case i := <-e.queue:
			if !b.add(i) {
				e.held = &i
				return e.report(b)
			}
			continue
		default:
		}
		if len(b.items) == 0 && e.unreported.Load() == 0 {
			return nil
		}
		return e.report(b)
	}
}

// report adds a record that names the missed ones.
func (e *Exporter) report(b *batch) *batch {
	if b.lost = e.unreported.Swap(0); b.lost > 0 {
		b.items = append(b.items, item{record: lost(b.lost, time.Now())})
	}
	return b
}

// records returns the number of records without that of missed ones.
func (b *batch) records() uint64 {
	n := uint64(len(b.items))
	if b.lost > 0 {
		n--
	}
	return n
}

// deliver sends a batch until the collector has accepted or refused it. It returns false if the context is done before, and
// then has counted nothing. Its calls have the other context.
func (e *Exporter) deliver(ctx, calls context.Context, b *batch) bool {
	request := e.request(b)
	pause := e.first
	for {
		answer, delay, err := e.call(calls, request)
		switch {
		case err == nil:
			e.accepted(b, answer)
			return true
		case delay == never:
			e.calls.WithLabelValues("refused").Inc()
			e.fails("the collector refuses log records; they are missed", err)
			e.rejected.Add(float64(b.records()))
			e.unreported.Add(b.records() + b.lost)
			sleep(ctx, jitter(e.first)) // a refusal of credentials concerns all records
			return true
		case ctx.Err() != nil:
			return false
		}
		e.calls.WithLabelValues("retried").Inc()
		e.fails("the collector takes no log records; they wait", err)
		if !sleep(ctx, max(delay, jitter(pause))) {
			return false
		}
		pause = min(2*pause, e.longest)
	}
}

// accepted counts what the collector took.
func (e *Exporter) accepted(b *batch, answer *collectorv1.ExportLogsServiceResponse) {
	e.calls.WithLabelValues("ok").Inc()
	n := b.records()
	refused := min(uint64(max(answer.GetPartialSuccess().GetRejectedLogRecords(), 0)), uint64(len(b.items)))
	if refused > n { // all, with the record of missed ones
		refused = n
		e.unreported.Add(b.lost)
	}
	e.sent.Add(float64(n - refused))
	if answer.GetPartialSuccess().GetRejectedLogRecords() > 0 {
		e.rejected.Add(float64(refused))
		e.unreported.Add(refused)
		e.fails("the collector rejects log records; they are missed", errors.New(e.harmless(answer.GetPartialSuccess().GetErrorMessage())))
		return
	}
	if e.broken {
		e.log.Info("the collector takes log records again")
	}
	e.broken = false
}

// fails writes the first of several failures to the log.
func (e *Exporter) fails(what string, err error) {
	if !e.broken {
		e.log.Warn(what, "endpoint", e.cfg.Endpoint, "error", err)
	}
	e.broken = true
}

// jitter returns between a half and all of a pause, so that replicas do not call at the same time.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// sleep waits, and returns false if the context is done before.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
