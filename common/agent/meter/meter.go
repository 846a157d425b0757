// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Meter counts what an agent does. Its names and labels are the same on every OS. It is safe for concurrent
// use.
type Meter struct {
	apply, compile, enforce prometheus.Histogram
	unpoliced               prometheus.Histogram
	applyErrors             prometheus.Counter
	requests                *prometheus.CounterVec
	requestSeconds          *prometheus.HistogramVec
	audits, drifts          *prometheus.CounterVec
	repaired                prometheus.Counter
	auditSeconds            prometheus.Histogram
	audited, differences    prometheus.Gauge
}

// The results of an audit.
const (
	clean  = "clean"
	drift  = "drift"
	failed = "error"
)

// New returns a Meter whose counters of CNI requests have a series for each command and code.
func New(commands []string, codes []uint32) *Meter {
	fast := prometheus.ExponentialBuckets(50e-6, 4, 10) // 50 us to 13 s
	m := &Meter{
		apply: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "isthmus_apply_duration_seconds",
			Help: "Duration of applying a policy state to the data path.", Buckets: fast}),
		applyErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_apply_errors_total",
			Help: "Attempts to apply a policy state to the data path that failed."}),
		compile: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "isthmus_compile_duration_seconds",
			Help: "Duration of compiling policies.", Buckets: fast}),
		enforce: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "isthmus_time_to_enforce_seconds",
			Help: "Time from the arrival of a change of the cluster at the agent until it is in force, retries included.", Buckets: prometheus.ExponentialBuckets(1e-3, 2, 16)}),
		unpoliced: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "isthmus_pod_unpoliced_seconds",
			Help: "Time from when the network of a pod that no ADD named was ready, by its status in the API, until its policy was in force. Mode policy only.", Buckets: prometheus.ExponentialBuckets(1.0/16, 4, 12)}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_cni_requests_total",
			Help: "CNI requests by command and CNI error code; code 0 means success."}, []string{"command", "code"}),
		requestSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "isthmus_cni_request_duration_seconds",
			Help: "Duration of CNI requests by command.", Buckets: prometheus.ExponentialBuckets(1e-3, 2, 15)}, []string{"command"}),
		audits: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_audit_runs_total",
			Help: "Audits that compare installed with intended state, by result: clean, drift or error."}, []string{"result"}),
		drifts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_audit_drifts_total",
			Help: "Differences between installed and intended state, by kind of object."}, []string{"object"}),
		repaired: prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_audit_repaired_total",
			Help: "Differences of isthmus_audit_drifts_total that were repaired at once."}),
		auditSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "isthmus_audit_duration_seconds",
			Help: "Duration of audits, without repairs.", Buckets: prometheus.ExponentialBuckets(1e-3, 4, 8)}),
		audited: prometheus.NewGauge(prometheus.GaugeOpts{Name: "isthmus_audit_last_success_timestamp_seconds",
			Help: "Unix time of the last audit that could compare everything, 0 before the first."}),
		differences: prometheus.NewGauge(prometheus.GaugeOpts{Name: "isthmus_audit_differences",
			Help: "Differences between installed and intended state that the last audit found."}),
	}
	for _, command := range []string{"ADD", "DEL"} { // of the others, only failures matter
		m.requestSeconds.WithLabelValues(command)
	}
	for _, command := range commands {
		for _, code := range codes {
			m.requests.WithLabelValues(command, strconv.Itoa(int(code)))
		}
	}
	for _, result := range []string{clean, drift, failed} {
		m.audits.WithLabelValues(result)
	}
	return m
}

// Collectors returns what a registry needs.
func (m *Meter) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.apply, m.applyErrors, m.compile, m.enforce, m.unpoliced, m.requests, m.requestSeconds,
		m.audits, m.drifts, m.repaired, m.auditSeconds, m.audited, m.differences}
}

// Objects creates the series of the kinds of objects that audits of this node may find different.
func (m *Meter) Objects(kinds []string) {
	for _, k := range kinds {
		m.drifts.WithLabelValues(label(k))
	}
}

// label returns a kind of object as the value of a label.
func label(kind string) string { return strings.ReplaceAll(kind, " ", "_") }

// Compiled observes a compilation that has just ended.
func (m *Meter) Compiled(began time.Time) { m.compile.Observe(time.Since(began).Seconds()) }

// Applied observes an attempt to apply a state that has just ended.
func (m *Meter) Applied(began time.Time, err error) {
	m.apply.Observe(time.Since(began).Seconds())
	if err != nil {
		m.applyErrors.Inc()
	}
}

// Enforced observes that changes which waited since then are in force. The zero time means that none did.
func (m *Meter) Enforced(since time.Time) {
	if !since.IsZero() {
		m.enforce.Observe(time.Since(since).Seconds())
	}
}

// Unpoliced observes that a pod which had no policy since then is under policy.
func (m *Meter) Unpoliced(since time.Time) { m.unpoliced.Observe(time.Since(since).Seconds()) }

// Served counts a CNI request and its duration.
func (m *Meter) Served(command string, began time.Time, code uint32) {
	m.requests.WithLabelValues(command, strconv.Itoa(int(code))).Inc()
	m.requestSeconds.WithLabelValues(command).Observe(time.Since(began).Seconds())
}

// Audited counts an audit that has just ended, with its number of differences.
func (m *Meter) Audited(began time.Time, differences int, err error) {
	now := time.Now()
	m.auditSeconds.Observe(now.Sub(began).Seconds())
	if err != nil {
		m.audits.WithLabelValues(failed).Inc()
		return
	}
	m.audited.Set(float64(now.UnixNano()) / 1e9)
	m.differences.Set(float64(differences))
	if differences == 0 {
		m.audits.WithLabelValues(clean).Inc()
	} else {
		m.audits.WithLabelValues(drift).Inc()
	}
}

// Drift counts a difference of an object of this kind.
func (m *Meter) Drift(kind string) { m.drifts.WithLabelValues(label(kind)).Inc() }

// Repaired counts differences that were repaired at once.
func (m *Meter) Repaired(n int) { m.repaired.Add(float64(n)) }
