// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/isthmus-net/isthmus/common/agent/pool"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

// countersTimeout bounds how long a scrape reads the data path's counters.
const countersTimeout = 2 * time.Second

// metrics has the same names and labels on every OS.
type metrics struct {
	registry       *prometheus.Registry
	applySeconds   prometheus.Histogram
	applyErrors    prometheus.Counter
	compileSeconds prometheus.Histogram
	requests       *prometheus.CounterVec
	requestSeconds *prometheus.HistogramVec
	audits         *prometheus.CounterVec
	drifts         *prometheus.CounterVec
	repaired       prometheus.Counter
}

func newMetrics(a *Agent) *metrics {
	fast := prometheus.ExponentialBuckets(50e-6, 4, 10) // 50 us to 13 s
	m := &metrics{
		registry: prometheus.NewRegistry(),
		applySeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "isthmus_apply_duration_seconds",
			Help: "Duration of applying a policy state to the data path.", Buckets: fast}),
		applyErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_apply_errors_total",
			Help: "Attempts to apply a policy state to the data path that failed."}),
		compileSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "isthmus_compile_duration_seconds",
			Help: "Duration of compiling policies.", Buckets: fast}),
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
	}
	m.registry.MustRegister(m.applySeconds, m.applyErrors, m.compileSeconds, m.requests, m.requestSeconds, m.audits, m.drifts, m.repaired,
		newViewCollector(a), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.registry.MustRegister(a.cfg.Collectors...)
	return m
}

// served counts a CNI request and its duration.
func (m *metrics) served(command string, began time.Time, err error) {
	code := uint32(0)
	if err != nil {
		code = AsError(err).Code
	}
	m.requests.WithLabelValues(command, strconv.Itoa(int(code))).Inc()
	m.requestSeconds.WithLabelValues(command).Observe(time.Since(began).Seconds())
}

// viewCollector collects metrics from the view and the data path's counters at each scrape.
type viewCollector struct {
	agent *Agent
	build, ready, endpoints, problems, applied, addresses,
	unsupported, objects, verdicts, drops, untracked, repairs, entries, capacity, denied, denyDevices, pathModes, flows, missedFlows, pool, poolAdds *prometheus.Desc
}

func newViewCollector(a *Agent) *viewCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("isthmus_"+name, help, labels, nil)
	}
	return &viewCollector{
		agent:       a,
		build:       desc("build_info", "Always 1; the labels give version, operating system and platform.", "version", "os", "platform"),
		ready:       desc("ready", "1 when a policy state of this agent is in force, else 0."),
		endpoints:   desc("endpoints", "Attached pods."),
		problems:    desc("problems", "Problems on this node; isthmusctl status lists them."),
		applied:     desc("last_apply_timestamp_seconds", "Unix time of the last successful apply of a policy state, 0 before the first."),
		addresses:   desc("ipam_addresses", "Addresses of the node's pod ranges by state.", "pool", "state"),
		unsupported: desc("unsupported", "Policy constructs that are not enforced exactly as written, by effect.", "effect"),
		objects:     desc("snapshot_objects", "Objects in the agent's snapshot of the cluster, by kind.", "kind"),
		verdicts:    desc("verdicts_total", "Decisions on new flows since the data path was loaded.", "direction", "verdict"),
		drops:       desc("drops_total", "Packets dropped for reasons other than policy, by reason.", "reason"),
		untracked:   desc("flows_untracked_total", "Allowed flows that did not fit into the full flow table; their reply packets are decided as new flows."),
		entries:     desc("map_entries", "Entries of the data path's maps, at the last count.", "map"),
		capacity:    desc("map_capacity", "Entries that the data path's maps hold.", "map"),
		denied:      desc("deny_list_entries", "Deny list entries in force.", "family"),
		denyDevices: desc("deny_list_device", "Always 1; an uplink that enforces deny lists with XDP, in its driver (native) or in the kernel's stack (generic).", "device", "mode"),
		pathModes:   desc("data_path", "Modes of the parts of the data path; the value counts the pods, uplinks or remote pod ranges in that mode, or is 1.", "part", "mode"),
		flows:       desc("flow_events_total", "Flow events that the agent has received, by verdict: allow, deny or drop.", "verdict"),
		missedFlows: desc("flow_events_missed_total", "Flow events that were not delivered: over the rate limit of a pod (limited), not read in time (lost), or skipped for a slow client (slow_reader).", "reason"),
		pool:        desc("endpoint_pool", "Endpoints that are prepared for pods to come, by state: ready, preparing, and wanted, the sum that the agent aims at.", "state"),
		poolAdds:    desc("endpoint_pool_adds_total", "Pods that a prepared endpoint could serve, by result: hit, or miss if none with their DNS settings was ready.", "result"),
		repairs:     desc("repairs_total", "Repairs of data path and fabric objects that another process had changed."),
	}
}

// Describe implements prometheus.Collector.
func (c *viewCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.build, c.ready, c.endpoints, c.problems, c.applied, c.addresses, c.unsupported,
		c.objects, c.verdicts, c.drops, c.untracked, c.repairs, c.entries, c.capacity, c.denied, c.denyDevices, c.pathModes, c.flows, c.missedFlows, c.pool, c.poolAdds} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *viewCollector) Collect(ch chan<- prometheus.Metric) {
	v := c.agent.view.Load()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	ready, applied := 0.0, 0.0
	if v.ready {
		ready = 1
		applied = float64(v.appliedAt.UnixNano()) / 1e9
	}
	gauge(c.build, 1, c.agent.cfg.Version, string(v.features.OS), v.features.Platform)
	gauge(c.ready, ready)
	gauge(c.endpoints, float64(v.endpoints))
	gauge(c.problems, float64(len(c.agent.allProblems(v))))
	gauge(c.applied, applied)
	for _, u := range v.usage {
		gauge(c.addresses, float64(u.Used), u.Pool.String(), "used")
		gauge(c.addresses, float64(u.Quarantined), u.Pool.String(), "quarantined")
		gauge(c.addresses, u.Free, u.Pool.String(), "free")
	}
	effects := map[model.Effect]int{model.OverBlocks: 0, model.Refused: 0}
	for _, u := range v.unsupported {
		effects[u.Effect]++
	}
	for e, n := range effects {
		gauge(c.unsupported, float64(n), e.String())
	}
	gauge(c.objects, float64(v.namespaces), "namespace")
	gauge(c.objects, float64(v.nodes), "node")
	gauge(c.objects, float64(v.pods), "pod")
	gauge(c.objects, float64(v.policies), "policy")
	gauge(c.objects, float64(v.denyLists), "denylist")
	if v.pool.Size != pool.Off {
		gauge(c.pool, float64(v.pool.Ready), "ready")
		gauge(c.pool, float64(v.pool.Preparing), "preparing")
		gauge(c.pool, float64(v.pool.Wanted), "wanted")
		ch <- prometheus.MustNewConstMetric(c.poolAdds, prometheus.CounterValue, float64(v.pool.Hits), "hit")
		ch <- prometheus.MustNewConstMetric(c.poolAdds, prometheus.CounterValue, float64(v.pool.Misses), "miss")
	}
	c.collectCounters(v, ch)
	c.collectFlows(v, ch)
}

func (c *viewCollector) collectCounters(v *view, ch chan<- prometheus.Metric) {
	if v.backend == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), countersTimeout)
	defer cancel()
	n, err := v.backend.Counters(ctx)
	if err != nil {
		c.agent.log.Warn("read counters of the data path", "error", err)
		return
	}
	for _, d := range model.Directions {
		for _, verdict := range []model.Verdict{model.Deny, model.Allow} {
			ch <- prometheus.MustNewConstMetric(c.verdicts, prometheus.CounterValue, float64(n.Verdicts[d][verdict]), d.String(), verdict.String())
		}
	}
	ch <- prometheus.MustNewConstMetric(c.repairs, prometheus.CounterValue, float64(n.Repairs))
	ch <- prometheus.MustNewConstMetric(c.untracked, prometheus.CounterValue, float64(n.Untracked))
	for reason, count := range n.Drops {
		ch <- prometheus.MustNewConstMetric(c.drops, prometheus.CounterValue, float64(count), reason)
	}
	for name, u := range n.Maps {
		ch <- prometheus.MustNewConstMetric(c.entries, prometheus.GaugeValue, float64(u.Entries), name)
		ch <- prometheus.MustNewConstMetric(c.capacity, prometheus.GaugeValue, float64(u.Capacity), name)
	}
	if _, ok := v.backend.(dataplane.Watcher); ok {
		ch <- prometheus.MustNewConstMetric(c.missedFlows, prometheus.CounterValue, float64(n.Events.Limited), "limited")
		ch <- prometheus.MustNewConstMetric(c.missedFlows, prometheus.CounterValue, float64(n.Events.Lost), "lost")
	}
	for i, family := range []string{"ipv4", "ipv6"} {
		ch <- prometheus.MustNewConstMetric(c.denied, prometheus.GaugeValue, float64(n.Deny.Entries[i]), family)
	}
	for _, d := range n.Deny.Devices {
		ch <- prometheus.MustNewConstMetric(c.denyDevices, prometheus.GaugeValue, 1, d.Name, d.Mode)
	}
	for _, w := range n.PathModes {
		ch <- prometheus.MustNewConstMetric(c.pathModes, prometheus.GaugeValue, float64(w.Count), w.Part, w.Mode)
	}
}

// collectFlows adds the metrics of flow events, if the data path reports them.
func (c *viewCollector) collectFlows(v *view, ch chan<- prometheus.Metric) {
	if _, ok := v.backend.(dataplane.Watcher); !ok {
		return
	}
	seen, missed := c.agent.flows.Totals()
	for _, o := range observe.Outcomes() {
		ch <- prometheus.MustNewConstMetric(c.flows, prometheus.CounterValue, float64(seen[o]), o.String())
	}
	ch <- prometheus.MustNewConstMetric(c.missedFlows, prometheus.CounterValue, float64(missed), "slow_reader")
}

// allProblems returns the problems of the view and of the snapshot source.
func (a *Agent) allProblems(v *view) []string {
	var all []string
	if a.stalled() {
		all = append(all, "the agent's loop has not responded for "+a.cfg.Stall.String())
	}
	all = append(all, v.problems...)
	if a.cfg.SourceProblems != nil {
		all = append(all, a.cfg.SourceProblems()...)
	}
	return all
}
