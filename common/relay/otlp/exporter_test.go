// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	collectorv1 "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	logsv1 "go.opentelemetry.io/proto/slim/otlp/logs/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
)

// collector is a server of OTLP that decodes requests and keeps their records.
type collector struct {
	t       *testing.T
	address string
	stop    func()

	mutex sync.Mutex
	// answer decides about a request; nil accepts all.
	answer  func(n int) (*collectorv1.ExportLogsServiceResponse, error)
	kept    []*logsv1.LogRecord
	nodes   []string
	headers metadata.MD
}

// newCollector starts a collector on an address, or on a free one.
func newCollector(t *testing.T, address string, c credentials.TransportCredentials) *collector {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	x := &collector{t: t, address: l.Addr().String()}
	s := grpc.NewServer(grpc.Creds(c))
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "opentelemetry.proto.collector.logs.v1.LogsService", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Export", Handler: x.export}}}, x)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	x.stop = sync.OnceFunc(func() {
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(x.stop)
	return x
}

func (c *collector) export(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	r := &collectorv1.ExportLogsServiceRequest{}
	if err := decode(r); err != nil {
		return nil, err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.headers, _ = metadata.FromIncomingContext(ctx)
	n := 0
	for _, l := range r.GetResourceLogs() {
		n += len(l.GetScopeLogs()[0].GetLogRecords())
	}
	answer, rejected := &collectorv1.ExportLogsServiceResponse{}, 0
	if c.answer != nil {
		a, err := c.answer(n)
		if err != nil {
			return nil, err
		}
		if a != nil {
			answer, rejected = a, int(a.GetPartialSuccess().GetRejectedLogRecords())
		}
	}
	for _, l := range r.GetResourceLogs() {
		for _, record := range l.GetScopeLogs()[0].GetLogRecords() {
			if rejected--; rejected >= 0 { // the first ones
				continue
			}
			c.kept = append(c.kept, record)
			c.nodes = append(c.nodes, attribute(l.GetResource().GetAttributes(), "k8s.node.name"))
		}
	}
	return answer, nil
}

// attribute returns the text of an attribute.
func attribute(list attributes, key string) string {
	for _, a := range list {
		if a.GetKey() == key {
			return value(a.GetValue())
		}
	}
	return ""
}

// received returns the identifiers of the flows, and how many records others say are lost.
func (c *collector) received() (ids []string, lost int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, r := range c.kept {
		if id := attribute(r.GetAttributes(), "isthmus.flow.id"); id != "" {
			ids = append(ids, id)
		} else if attribute(r.GetAttributes(), "isthmus.lost.source") == queueSource {
			var n int
			fmt.Sscan(attribute(r.GetAttributes(), "isthmus.lost.count"), &n)
			lost += n
		}
	}
	return ids, lost
}

// records returns the number of records without those about missed ones.
func (c *collector) records() (n int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, r := range c.kept {
		if attribute(r.GetAttributes(), "isthmus.lost.source") != queueSource {
			n++
		}
	}
	return n
}

func (c *collector) setAnswer(f func(n int) (*collectorv1.ExportLogsServiceResponse, error)) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.answer = f
}

// buffer is a log that may be read while it is written.
type buffer struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.text.String()
}

// running is an Exporter that runs.
type running struct {
	*Exporter
	t        *testing.T
	registry *prometheus.Registry
	log      buffer
	stop     func()
}

// run runs an Exporter with short pauses.
func run(t *testing.T, cfg Config) *running {
	t.Helper()
	r := &running{t: t, registry: prometheus.NewRegistry()}
	if cfg.Transport == nil {
		cfg.Transport = insecure.NewCredentials()
	}
	if cfg.Queue == 0 {
		cfg.Queue = 1000
	}
	var err error
	if r.Exporter, err = New(cfg, r.registry, slog.New(slog.NewTextHandler(&r.log, nil))); err != nil {
		t.Fatal(err)
	}
	r.first, r.longest = 5*time.Millisecond, 20*time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(r.stop)
	return r
}

// counted returns the metrics, by name and label.
func (r *running) counted() map[string]int {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	all := make(map[string]int)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "isthmus_relay_otlp_")
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			all[name] = int(m.GetCounter().GetValue() + m.GetGauge().GetValue())
		}
	}
	return all
}

// missed returns the number of missed records.
func missed(counted map[string]int) int {
	return counted["missed_total queue"] + counted["missed_total rejected"] + counted["missed_total shutdown"]
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, condition func() (bool, string)) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		ok, state := condition()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 30 s: %s", what, state)
		}
	}
}

func numbers(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

// TestExport sends more records than a request holds. All arrive in order, under their nodes.
func TestExport(t *testing.T) {
	const n = 3*maxRecords + 7
	c := newCollector(t, "127.0.0.1:0", insecure.NewCredentials())
	e := run(t, Config{Endpoint: c.address, Cluster: "prod", Version: "1.2.3", Queue: 2 * n})
	for i := range n {
		m := answer(i)
		m.NodeName = fmt.Sprint("n", i/1000)
		e.Add(m)
	}
	e.Add(&observer.GetFlowsResponse{}) // no record
	e.stop()                            // sends the rest
	if got, lost := c.received(); !slices.Equal(got, numbers(n)) || lost != 0 {
		t.Errorf("%d flows, %d lost", len(got), lost)
	}
	if c.nodes[999] != "n0" || c.nodes[1000] != "n1" {
		t.Errorf("nodes %q %q", c.nodes[999], c.nodes[1000])
	}
	got := e.counted()
	if got["sent_total"] != n || missed(got) != 0 || got["queue"] != 0 || got["calls_total ok"] < 4 {
		t.Errorf("counted %v", got)
	}
	if agent := strings.Join(c.headers.Get("user-agent"), ""); !strings.HasPrefix(agent, "isthmus-relay/1.2.3") {
		t.Errorf("user agent %q", agent)
	}
}

// TestCollectorAway fills the queue while nothing answers, and then starts a collector. Add does not block, and each record
// arrives or is named as missed.
func TestCollectorAway(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	const total, queue = 50_000, 200
	e := run(t, Config{Endpoint: address, Queue: queue})
	began := time.Now()
	for n := range total {
		e.Add(answer(n))
	}
	each := time.Since(began) / total
	eventually(t, "calls fail", func() (bool, string) {
		got := e.counted()
		return got["calls_total retried"] > 2 && got["missed_total queue"] > 0, fmt.Sprint(got)
	})
	c := newCollector(t, address, insecure.NewCredentials())
	added := total
	eventually(t, "all is received or reported", func() (bool, string) {
		e.Add(lostAnswer(1)) // carries what was missed after the last batch
		added++
		ids, lost := c.received()
		return len(ids) >= queue && lost > 0, fmt.Sprint(len(ids), lost)
	})
	e.stop()
	ids, lost := c.received()
	got := e.counted()
	t.Logf("otlp away: records=%d sent=%d missed=%d reported=%d, %s for each", added, got["sent_total"], missed(got), lost, each)
	if got["sent_total"]+missed(got) != added || lost != missed(got) || c.records() != got["sent_total"] {
		t.Errorf("%d added, %d received, %d reported as missed, %v", added, c.records(), lost, got)
	}
	if !slices.Equal(ids[:queue], numbers(queue)) { // the first ones stay
		t.Errorf("received %v", ids)
	}
	if each > time.Millisecond {
		t.Errorf("Add took %s", each)
	}
	if text := e.log.String(); strings.Count(text, "they wait") != 1 || strings.Count(text, "takes log records again") != 1 {
		t.Errorf("log\n%s", text)
	}
}

// TestAccounts sends records to a collector that fails at random. Sent and missed ones are all records, and what was missed
// before the last request is reported.
func TestAccounts(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	c := newCollector(t, "127.0.0.1:0", insecure.NewCredentials())
	fails := true
	c.setAnswer(func(n int) (*collectorv1.ExportLogsServiceResponse, error) {
		switch k := random.IntN(6); {
		case !fails || k < 2:
			return nil, nil
		case k == 2:
			return nil, status.Error(codes.Unavailable, "busy")
		case k == 3:
			return nil, status.Error(codes.InvalidArgument, "no")
		case k == 4:
			return &collectorv1.ExportLogsServiceResponse{PartialSuccess: &collectorv1.ExportLogsPartialSuccess{RejectedLogRecords: int64(n), ErrorMessage: "full"}}, nil
		}
		return nil, status.Error(codes.ResourceExhausted, "too large")
	})
	e := run(t, Config{Endpoint: c.address, Queue: 300})
	const total = 20_000
	for n := range total {
		e.Add(answer(n))
		if n%500 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	eventually(t, "batches", func() (bool, string) {
		e.Add(answer(0))
		got := e.counted()
		return got["calls_total refused"] > 2 && got["calls_total ok"] > 2 && got["calls_total retried"] > 0, fmt.Sprint(got)
	})
	c.mutex.Lock()
	fails = false
	c.mutex.Unlock()
	e.Add(answer(0))
	e.stop()
	ids, lost := c.received()
	got := e.counted()
	t.Logf("seed %d: %v, %d received, %d reported", seed, got, len(ids), lost)
	if got["sent_total"] != len(ids) || missed(got) != lost || got["missed_total shutdown"] != 0 {
		t.Errorf("seed %d: %d received and %d reported, but counted %v", seed, len(ids), lost, got)
	}
}

// TestStopWithoutCollector checks that the end does not wait for long, and counts what was not sent.
func TestStopWithoutCollector(t *testing.T) {
	c := newCollector(t, "127.0.0.1:0", insecure.NewCredentials())
	c.setAnswer(func(int) (*collectorv1.ExportLogsServiceResponse, error) {
		return nil, status.Error(codes.Unavailable, "busy")
	})
	e := run(t, Config{Endpoint: c.address, Queue: 10 * maxRecords})
	for n := range 5*maxRecords + 1 {
		e.Add(answer(n))
	}
	eventually(t, "a call", func() (bool, string) { return e.counted()["calls_total retried"] > 0, "" })
	began := time.Now()
	e.stop()
	if took := time.Since(began); took < lastFlush/2 || took > lastFlush+10*time.Second {
		t.Errorf("the end took %s", took)
	}
	if got := e.counted(); got["missed_total shutdown"] != 5*maxRecords+1 || got["sent_total"] != 0 {
		t.Errorf("counted %v", got)
	}
}

func TestRetryAfter(t *testing.T) {
	with := func(c codes.Code, d time.Duration) *status.Status {
		s, err := status.New(c, "x").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(d)})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, c := range []struct {
		status *status.Status
		want   time.Duration
	}{
		{status.New(codes.Unavailable, ""), 0}, {status.New(codes.DeadlineExceeded, ""), 0}, {status.New(codes.Canceled, ""), 0}, {status.New(codes.Aborted, ""), 0},
		{status.New(codes.OutOfRange, ""), 0}, {status.New(codes.DataLoss, ""), 0}, {with(codes.Unavailable, 7*time.Second), 7 * time.Second},
		{with(codes.ResourceExhausted, 2*time.Second), 2 * time.Second}, {with(codes.ResourceExhausted, time.Hour), time.Minute}, {with(codes.ResourceExhausted, -time.Hour), 0},
		{status.New(codes.ResourceExhausted, ""), never}, {status.New(codes.InvalidArgument, ""), never}, {status.New(codes.PermissionDenied, ""), never},
		{status.New(codes.Unauthenticated, ""), never}, {status.New(codes.Unimplemented, ""), never}, {status.New(codes.Internal, ""), never}, {status.New(codes.Unknown, ""), never},
		{with(codes.InvalidArgument, time.Second), never},
	} {
		if got := retryAfter(c.status); got != c.want {
			t.Errorf("%v: %s, want %s", c.status, got, c.want)
		}
	}
}

func TestQueueBounds(t *testing.T) {
	for _, n := range []int{0, -1, MaxQueue + 1} {
		if _, err := New(Config{Endpoint: "127.0.0.1:1", Transport: insecure.NewCredentials(), Queue: n}, prometheus.NewRegistry(), slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("a queue of %d is accepted", n)
		}
	}
	// A request is not larger than collectors accept.
	b := &batch{}
	large := answer(1)
	large.GetFlow().PolicyLog = []string{strings.Repeat("x", 100_000)}
	n := 0
	for ; b.add(item{"n", record(large, time.Now())}); n++ {
	}
	if n != maxBytes/100_000 || len(b.items) != n {
		t.Errorf("%d records of 100 kB in %d bytes", n, b.bytes)
	}
	huge := answer(1)
	huge.GetFlow().PolicyLog = []string{strings.Repeat("x", 2*maxBytes)}
	if one := (&batch{}); !one.add(item{"n", record(huge, time.Now())}) {
		t.Error("a record that is larger than a request is never sent")
	}
}
