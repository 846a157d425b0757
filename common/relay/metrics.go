// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/httpd"
)

const (
	// watchEvery is the interval of reading the status of all nodes for metrics and readiness.
	watchEvery = 10 * time.Second
	// firstWatch is the same interval while no node has answered.
	firstWatch = time.Second
)

// metrics describe a Relay. No label names a node, a user, a namespace or a pod.
type metrics struct {
	registry *prometheus.Registry
	nodes    *prometheus.GaugeVec
	streams  prometheus.Gauge
	calls    *prometheus.CounterVec
	flows    prometheus.Counter
	lost     prometheus.Counter
}

// results maps the codes of answers to the values of the label result. Other codes are errors.
var results = map[codes.Code]string{codes.OK: "ok", codes.Unauthenticated: "unauthenticated", codes.PermissionDenied: "denied",
	codes.InvalidArgument: "invalid", codes.ResourceExhausted: "exhausted", codes.Unavailable: "unavailable", codes.Canceled: "ok"}

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry(),
		nodes:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "isthmus_relay_nodes", Help: "Nodes that the relay knows, by whether their agent answers: connected or unavailable."}, []string{"state"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{Name: "isthmus_relay_streams", Help: "Streams of flows, and of changes of the nodes, that clients have open."}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_relay_calls_total",
			Help: "Calls of clients that have ended, by result."}, []string{"call", "result"}),
		flows: prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_relay_flows_sent_total", Help: "Flows that were sent to clients."}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_relay_flows_lost_total",
			Help: "Flows that agents reported as lost to streams of clients."}),
	}
	for _, state := range []string{"connected", "unavailable"} {
		m.nodes.WithLabelValues(state)
	}
	for _, call := range []string{"flows", "status", "nodes", "namespaces", "peers"} {
		for _, result := range results {
			m.calls.WithLabelValues(call, result)
		}
		m.calls.WithLabelValues(call, "error")
	}
	m.registry.MustRegister(m.nodes, m.streams, m.calls, m.flows, m.lost)
	return m
}

// ended counts a call.
func (m *metrics) ended(call string, err error) {
	result, ok := results[status.Code(err)]
	switch {
	case errors.Is(err, context.Canceled): // the client has left
		result = "ok"
	case !ok:
		result = "error"
	}
	m.calls.WithLabelValues(call, result).Inc()
}

// sent counts an answer to a client.
func (m *metrics) sent(a *observer.GetFlowsResponse) {
	switch {
	case a.GetFlow() != nil:
		m.flows.Inc()
	case a.GetLostEvents() != nil:
		m.lost.Add(float64(a.GetLostEvents().GetNumEventsLost()))
	}
}

// health is the state that probes read.
type health struct {
	mutex sync.Mutex
	// connected and known are the numbers of nodes at the last check.
	connected, known int
	// last are the answers of the nodes then; nil before the first check. They are not changed.
	last     []answer
	stopping bool
}

// ready returns nil if clients should come to this relay, else the reason why not.
func (h *health) ready() error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	switch {
	case h.stopping:
		return fmt.Errorf("the relay is stopping")
	case h.known == 0:
		return fmt.Errorf("no node is known yet: check --agents, and whether the agents serve flows (--hubble-listen)")
	case h.connected == 0:
		return fmt.Errorf("none of %d nodes answers: check the certificates of relay and agents, and the network between them", h.known)
	}
	return nil
}

// Stopping makes the relay report that it is not ready, while it still serves.
func (r *Relay) Stopping() {
	r.health.mutex.Lock()
	defer r.health.mutex.Unlock()
	r.health.stopping = true
}

// Watch reads the status of all nodes until the context is done, for metrics, readiness and the log.
func (r *Relay) Watch(ctx context.Context) {
	for {
		next := watchEvery
		if r.check(ctx) == 0 {
			next = firstWatch
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}

// check reads the status of all nodes once. It returns how many answer.
func (r *Relay) check(ctx context.Context) (connected int) {
	all := r.statuses(ctx)
	if ctx.Err() != nil {
		return 0
	}
	for _, a := range all {
		if a.err == nil {
			connected++
		}
	}
	r.metrics.nodes.WithLabelValues("connected").Set(float64(connected))
	r.metrics.nodes.WithLabelValues("unavailable").Set(float64(len(all) - connected))
	r.health.mutex.Lock()
	before := r.health.last
	r.health.connected, r.health.known, r.health.last = connected, len(all), all
	r.health.mutex.Unlock()
	r.logChanges(before, all)
	return connected
}

// maxLogged bounds the nodes that one check logs.
const maxLogged = 20

// logChanges logs which nodes no longer answer, and why, and which answer again. It compares the codes of errors: their texts
// may differ each time.
func (r *Relay) logChanges(before, now []answer) {
	was := make(map[string]codes.Code)
	for _, a := range before {
		was[a.node.name] = status.Code(a.err)
	}
	changed := 0
	for _, a := range now {
		if was[a.node.name] == status.Code(a.err) { // a new node that answers is no change
			continue
		}
		changed++
		switch {
		case changed > maxLogged:
		case a.err != nil:
			r.log.Warn("a node does not answer: its flows are missing", "node", a.node.name, "address", a.node.address, "error", reason(a.err))
		default:
			r.log.Info("a node answers again", "node", a.node.name)
		}
	}
	if changed > maxLogged {
		r.log.Warn("the answers of further nodes have changed", "nodes", changed-maxLogged)
	}
}

// Metrics returns the registry of the relay, for further metrics of its process.
func (r *Relay) Metrics() prometheus.Registerer { return r.metrics.registry }

// Handler serves /metrics, /healthz and /readyz.
func (r *Relay) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r.metrics.registry,
		promhttp.HandlerOpts{Registry: r.metrics.registry, MaxRequestsInFlight: httpd.Scrapes, EnableOpenMetrics: true}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := r.health.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}
