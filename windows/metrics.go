// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// CallMetrics counts calls to HNS, for Prometheus. Its Observe is for Config.Observe.
type CallMetrics struct {
	calls, errors *prometheus.CounterVec
	seconds       *prometheus.HistogramVec
}

var _ prometheus.Collector = (*CallMetrics)(nil)

// NewCallMetrics returns CallMetrics without calls.
func NewCallMetrics() *CallMetrics {
	return &CallMetrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_hns_calls_total",
			Help: "Attempts of calls to HNS, by operation."}, []string{"op"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_hns_call_errors_total",
			Help: "Failed attempts of calls to HNS, by result code: 0x800705b4 means no answer in time, 0x800700aa not made because an earlier call has not answered, ended means cancelled by the agent."}, []string{"op", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "isthmus_hns_call_duration_seconds",
			Help: "Duration of attempts of calls to HNS.", Buckets: prometheus.ExponentialBuckets(1e-3, 4, 9)}, []string{"op"}), // 1 ms to 65 s
	}
}

// Observe counts one attempt. It is safe for concurrent use.
func (m *CallMetrics) Observe(c hns.Call) {
	m.calls.WithLabelValues(c.Op).Inc()
	m.seconds.WithLabelValues(c.Op).Observe(c.Duration.Seconds())
	switch {
	case c.Code != 0:
		m.errors.WithLabelValues(c.Op, fmt.Sprintf("%#08x", c.Code)).Inc()
	case c.Ended:
		m.errors.WithLabelValues(c.Op, "ended").Inc()
	}
}

// Describe implements prometheus.Collector.
func (m *CallMetrics) Describe(ch chan<- *prometheus.Desc) {
	m.calls.Describe(ch)
	m.errors.Describe(ch)
	m.seconds.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *CallMetrics) Collect(ch chan<- prometheus.Metric) {
	m.calls.Collect(ch)
	m.errors.Collect(ch)
	m.seconds.Collect(ch)
}
