// SPDX-License-Identifier: Apache-2.0

package nodecidr

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/isthmus-net/isthmus/common/httpd"
	"github.com/isthmus-net/isthmus/common/nodeipam"
)

type metrics struct {
	registry *prometheus.Registry
	leader   prometheus.Gauge
	blocks   *prometheus.GaugeVec
	nodes    *prometheus.GaugeVec
	writes   *prometheus.CounterVec
}

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry(),
		leader: prometheus.NewGauge(prometheus.GaugeOpts{Name: "isthmus_controller_leader", Help: "1 on the elected controller, else 0."}),
		blocks: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "isthmus_controller_blocks",
			Help: "Blocks of a cluster range: free, or taken by nodes, reserved ranges and addresses of nodes."}, []string{"range", "state"}),
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "isthmus_controller_nodes",
			Help: "Nodes that wait because no pod range is free, and nodes with a problem of their pod ranges."}, []string{"state"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_controller_assignments_total",
			Help: "Pod ranges written to nodes, by result."}, []string{"result"}),
	}
	for _, result := range []string{"ok", "error"} {
		m.writes.WithLabelValues(result)
	}
	m.registry.MustRegister(m.leader, m.blocks, m.nodes, m.writes)
	return m
}

// note updates the metrics from a plan.
func (m *metrics) note(p nodeipam.Plan) {
	for _, u := range p.Usage {
		m.blocks.WithLabelValues(u.Range.String(), "free").Set(float64(u.Free))
		m.blocks.WithLabelValues(u.Range.String(), "taken").Set(float64(u.Blocks - u.Free))
	}
	waiting := 0
	for _, q := range p.Problems {
		if q.Exhausted {
			waiting++
		}
	}
	m.nodes.WithLabelValues("waiting").Set(float64(waiting))
	m.nodes.WithLabelValues("wrong").Set(float64(len(p.Problems) - waiting))
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry, MaxRequestsInFlight: httpd.Scrapes, EnableOpenMetrics: true})
}
