// SPDX-License-Identifier: Apache-2.0

package writeback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/dynamic"

	"github.com/isthmus-net/isthmus/common/kube/convert"
	"github.com/isthmus-net/isthmus/common/kube/watch"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/report"
)

// ReporterConfig configures a Reporter.
type ReporterConfig struct {
	// Node is the name of this node's Node object.
	Node string
	// Conditions, Events and NodeCondition enable the kinds of writes: conditions of cluster-wide policies,
	// events, the condition of the Node.
	Conditions, Events, NodeCondition bool
	// QPS and Burst bound the requests per second.
	QPS   float32
	Burst int
	// Debounce is how long facts must stay the same before they are reported.
	Debounce time.Duration
	// Refresh is the interval between checks that an event still exists: the API server deletes events,
	// after an hour by default.
	Refresh time.Duration
	// RetryMin and RetryMax bound the pause after a request that failed.
	RetryMin, RetryMax time.Duration
}

// DefaultReporterConfig reports everything of a node.
func DefaultReporterConfig(node string) ReporterConfig {
	return ReporterConfig{Node: node, Conditions: true, Events: true, NodeCondition: true, QPS: 2, Burst: 10, Debounce: 500 * time.Millisecond,
		Refresh: 50 * time.Minute, RetryMin: time.Second, RetryMax: 5 * time.Minute}
}

// Validate reports everything that is wrong with the ReporterConfig.
func (c ReporterConfig) Validate() error {
	var errs []error
	if c.Node == "" {
		errs = append(errs, errors.New("reporter: Node: name this node's Node object"))
	}
	if c.QPS <= 0 || c.Burst <= 0 {
		errs = append(errs, fmt.Errorf("reporter: QPS %g, Burst %d: must be greater than 0", c.QPS, c.Burst))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"Debounce", c.Debounce}, {"Refresh", c.Refresh}, {"RetryMin", c.RetryMin}, {"RetryMax", c.RetryMax}} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("reporter: %s: %s: must be greater than 0", d.name, d.value))
		}
	}
	return errors.Join(errs...)
}

// Reporter writes to the API server what is not enforced exactly. It works in its own goroutine. It logs
// and counts failed writes, which affect no other component.
type Reporter struct {
	cfg    ReporterConfig
	log    *slog.Logger
	source *watch.APIServer
	client dynamic.Interface
	writes *prometheus.CounterVec

	wake chan struct{} // capacity 1

	mu    sync.Mutex
	facts report.Facts
	known bool // Set was called

	// Only Run uses the fields below.
	tasks map[string]*task
	// statusless is when the API server last had no status for a kind.
	statusless map[string]time.Time
	// seen maps the name of an event to when it was last known to exist.
	seen map[string]time.Time
	// node is the condition of the Node as written or read at nodeAt.
	node   *report.NodeCondition
	nodeAt time.Time
	began  time.Time
}

// task is a pending write.
type task struct {
	kind string // label of the metric
	do   func(context.Context) error
	due  time.Time
	// tries counts failed attempts.
	tries int
}

// NewReporter returns a Reporter with the credentials of a source.
func NewReporter(cfg ReporterConfig, source *watch.APIServer, log *slog.Logger) (*Reporter, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Reporter{cfg: cfg, log: log, source: source, wake: make(chan struct{}, 1), tasks: make(map[string]*task),
		statusless: make(map[string]time.Time), seen: make(map[string]time.Time),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_report_requests_total",
			Help: "Requests that write conditions and events to the API server, by what they write and their result."}, []string{"what", "result"})}
	for kind, on := range map[string]bool{"condition": cfg.Conditions, "event": cfg.Events, "node": cfg.NodeCondition} {
		if !on {
			continue
		}
		for _, result := range results {
			r.writes.WithLabelValues(kind, result)
		}
	}
	var err error
	if r.client, err = source.Writer(cfg.QPS, cfg.Burst); err != nil {
		return nil, err
	}
	source.OnStatus(r.notify)
	return r, nil
}

// Describe implements prometheus.Collector.
func (r *Reporter) Describe(ch chan<- *prometheus.Desc) { r.writes.Describe(ch) }

// Collect implements prometheus.Collector.
func (r *Reporter) Collect(ch chan<- prometheus.Metric) { r.writes.Collect(ch) }

// Set hands over the current facts. It does not block.
func (r *Reporter) Set(f report.Facts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.facts
	r.facts = f
	if r.known && was.Ready == f.Ready && was.Platform == f.Platform && slices.Equal(was.Unsupported, f.Unsupported) &&
		slices.Equal(was.Problems, f.Problems) && slices.Equal(was.Unenforced, f.Unenforced) && samePolicies(was.Snapshot, f.Snapshot) {
		return
	}
	r.known = true
	r.notify()
}

// samePolicies reports whether the reported objects are unchanged. Pods matter only if they have reports,
// and then the reports change.
func samePolicies(a, b *model.Snapshot) bool {
	if a == nil || b == nil {
		return a == b
	}
	for range b.Policies.Changes(a.Policies) {
		return false
	}
	return true
}

func (r *Reporter) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run reports until ctx is done; then it returns nil.
func (r *Reporter) Run(ctx context.Context) error {
	r.began = time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-timer.C:
		}
		select { // facts that last a moment only are not reported
		case <-ctx.Done():
			return nil
		case <-time.After(r.cfg.Debounce):
		}
		r.mu.Lock()
		facts, known := r.facts, r.known
		r.mu.Unlock()
		if known {
			r.plan(facts, time.Now())
		}
		timer.Reset(r.work(ctx))
	}
}

// idle is how long the Reporter sleeps when no work is due.
const idle = time.Minute

// work does due work until facts change, and returns when to call it again.
func (r *Reporter) work(ctx context.Context) time.Duration {
	tried := false
	for _, key := range r.order() {
		t := r.tasks[key]
		if ctx.Err() != nil || time.Now().Before(t.due) {
			continue
		}
		if tried && len(r.wake) > 0 {
			break // plan again: thousands of writes must not delay the condition of the Node
		}
		tried = tried || t.kind != "node" // one at least, however often facts change
		err := r.try(ctx, t)
		if err == nil {
			r.writes.WithLabelValues(t.kind, "ok").Inc()
			delete(r.tasks, key) // if it was not enough, plan adds it again
			continue
		}
		if ctx.Err() != nil {
			break
		}
		r.writes.WithLabelValues(t.kind, "error").Inc()
		t.tries++
		pause := min(r.cfg.RetryMin<<min(t.tries-1, 20), r.cfg.RetryMax)
		t.due = time.Now().Add(pause + rand.N(pause/2+1))
		r.log.Warn("report to the API server", "what", key, "error", err, "retry_in", pause)
		if unreachable(err) {
			for _, other := range r.tasks { // these would fail for the same reason
				if other.due.Before(t.due) {
					other.due = t.due
				}
			}
			break
		}
	}
	wait := idle
	for _, t := range r.tasks {
		wait = min(wait, time.Until(t.due))
	}
	return max(wait, 0)
}

// order returns the keys of tasks: that of the Node first, then those that are due for longest, so that none starves.
func (r *Reporter) order() []string {
	return slices.SortedFunc(maps.Keys(r.tasks), func(a, b string) int {
		x, y := r.tasks[a], r.tasks[b]
		if (x.kind == "node") != (y.kind == "node") {
			if x.kind == "node" {
				return -1
			}
			return 1
		}
		return cmp.Or(x.due.Compare(y.due), strings.Compare(a, b))
	})
}

// try executes one task with a time limit.
func (r *Reporter) try(ctx context.Context, t *task) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return t.do(ctx)
}

// startup is the time that a starting agent has to put policy in force before its Node reports a problem.
const startup = 10 * time.Second

// plan creates tasks for differences, and drops tasks without one.
func (r *Reporter) plan(f report.Facts, now time.Time) {
	statuses, remarks, versions := r.source.PolicyStatuses()
	want := report.Make(f, remarks)
	wanted := make(map[string]bool)
	add := func(key, kind string, delay time.Duration, do func(context.Context) error) {
		wanted[key] = true
		t := r.tasks[key]
		if t == nil {
			t = &task{kind: kind, due: now.Add(delay)}
			r.tasks[key] = t
		}
		t.do = do
	}
	// A starting agent does not know yet which conditions it must keep.
	if f.Ready && f.Snapshot != nil {
		crowd := report.Delay(alike(f))
		if r.cfg.Conditions {
			r.planConditions(f, want, statuses, versions, func(key string, do func(context.Context) error) {
				add(key, "condition", rand.N(crowd+1), do)
			})
		}
		if r.cfg.Events {
			r.planEvents(want.Events, now, func(e report.Event, key string, do func(context.Context) error) {
				delay := rand.N(eventSpread*crowd + 1)
				if e.OfNode {
					delay = 0
				}
				add(key, "event", delay, do)
			})
		}
	}
	if stale := r.node == nil || *r.node != want.Node || now.Sub(r.nodeAt) > r.cfg.Refresh; r.cfg.NodeCondition && stale &&
		(f.Ready || now.Sub(r.began) > startup) {
		add("condition on Node "+r.cfg.Node, "node", 0, func(ctx context.Context) error { return r.writeNode(ctx, want.Node) })
	}
	maps.DeleteFunc(r.tasks, func(key string, _ *task) bool { return !wanted[key] })
}

// eventSpread is how many times longer the delay of nodes is for events than for conditions. A node sees
// whether an event exists only by trying to create it.
const eventSpread = 10

func (r *Reporter) planEvents(events []report.Event, now time.Time, add func(e report.Event, key string, do func(context.Context) error)) {
	names := make(map[string]bool)
	for _, e := range events {
		names[e.Name] = true
		if now.Sub(r.seen[e.Name]) > r.cfg.Refresh {
			add(e, "event "+e.Name+" on "+e.Object.String(), func(ctx context.Context) error { return r.createEvent(ctx, e) })
		}
	}
	maps.DeleteFunc(r.seen, func(name string, _ time.Time) bool { return !names[name] })
}

// alike returns the number of nodes that may have the same report.
func alike(f report.Facts) int {
	n := 0
	for _, node := range f.Snapshot.Nodes.All() {
		if node.OS == f.Platform.OS {
			n++
		}
	}
	return n
}

// statuslessFor is how long no conditions are written to a kind that has no status.
const statuslessFor = 5 * time.Minute

// reported returns the origin of a policy or a deny list with its UID.
func reported(s *model.Snapshot, origin model.Origin) (model.Origin, bool) {
	if l, ok := s.DenyLists.Get(origin.Name); ok && origin.Kind == model.KindDenyList {
		return l.Origin(), true
	}
	p, ok := s.Policies.Get(origin)
	if !ok {
		return origin, false
	}
	return p.Origin, true
}

func (r *Reporter) planConditions(f report.Facts, want report.Report, statuses map[model.Origin]*convert.Status, versions map[string]string,
	add func(key string, do func(context.Context) error)) {
	exists := func(node string) bool {
		_, ok := f.Snapshot.Nodes.Get(node)
		return ok
	}
	for origin, status := range statuses {
		object, ok := reported(f.Snapshot, origin)
		if !ok || versions[origin.Kind] == "" || time.Since(r.statusless[origin.Kind]) < statuslessFor {
			continue
		}
		var wanted *report.Condition
		if c, ok := want.Conditions[origin]; ok {
			wanted = &c
		}
		is := status.Conditions[want.Type]
		at := place{object, versions[origin.Kind], status.Generation, want.Type}
		switch report.Decide(wanted, is, r.cfg.Node, status.Generation, exists) {
		case report.Write:
			add("condition on "+origin.String(), func(ctx context.Context) error { return r.writeCondition(ctx, at, *wanted, is) })
		case report.Clear:
			add("condition on "+origin.String(), func(ctx context.Context) error { return r.clearCondition(ctx, at) })
		}
	}
}
