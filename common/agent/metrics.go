// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/isthmus-net/isthmus/common/agent/pool"
	"github.com/isthmus-net/isthmus/common/agent/rulemeter"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

const (
	// scrapeWait is how long a scrape waits for the data path's counters. After it, the scrape contains those
	// of the last read, and their time.
	scrapeWait = time.Second
	// statusWait is the same for a description of the node.
	statusWait = 2 * time.Second
)

// newRegistry returns the metrics of an agent: those that it counts, and those of its view.
func newRegistry(a *Agent) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(a.meter.Collectors()...)
	r.MustRegister(newViewCollector(a), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	r.MustRegister(a.cfg.Collectors...)
	if a.cfg.RuleMetrics > 0 {
		r.MustRegister(rulemeter.New(a.cfg.RuleMetrics, a.log, func() dataplane.CauseCounter {
			counter, _ := a.view.Load().backend.(dataplane.CauseCounter)
			return counter
		}))
	}
	return r
}

// viewCollector collects metrics from the view and the data path's counters at each scrape.
type viewCollector struct {
	agent *Agent
	build, ready, endpoints, problems, applied, addresses,
	unpoliced, unsupported, objects, verdicts, drops, portDrops, untracked, repairs, entries,
	capacity, denied, denyDevices, pathModes, pathPods, pathUplinks, pathRanges, flows, missedFlows,
	readers, counted, unenforced, broken, current, snapshot, pool, poolAdds *prometheus.Desc
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
		problems:    desc("problems", "Problems on this node by kind; isthmusctl status lists them.", "kind"),
		unenforced:  desc("endpoints_unenforced", "Attached pods whose packets may pass without a decision, or cannot pass at all."),
		unpoliced:   desc("pods_unpoliced", "Pods of this node without policy: in mode full, those that Isthmus did not attach; in mode policy, those that no ADD named and whose interface was not found."),
		broken:      desc("endpoint_problems", "Attached pods that the agent could not repair or remove, and retries."),
		current:     desc("source_current", "1 while the source of objects (API server or directory) is connected and its objects are current, else 0."),
		snapshot:    desc("snapshot_timestamp_seconds", "Unix time at which the agent received its newest snapshot of the cluster, 0 before the first."),
		counted:     desc("counters_timestamp_seconds", "Unix time at which the counters of the data path in this answer were read, 0 before the first."),
		portDrops:   desc("port_drops_total", "Packets dropped at the ports of pods, because of policy or otherwise: HNS does not say why. Windows only.", "direction"),
		readers:     desc("flow_event_readers", "Clients that follow flow events now."),
		applied:     desc("last_apply_timestamp_seconds", "Unix time of the last successful apply of a policy state, 0 before the first."),
		addresses:   desc("ipam_addresses", "Addresses of the node's pod ranges by state.", "pool", "state"),
		unsupported: desc("unsupported", "Policy constructs that are not enforced exactly as written, by effect.", "effect"),
		objects:     desc("snapshot_objects", "Objects in the agent's snapshot of the cluster, by kind.", "kind"),
		verdicts:    desc("verdicts_total", "Decisions on new flows since the data path was loaded.", "direction", "verdict"),
		drops:       desc("drops_total", "Packets dropped for reasons other than policy, by reason.", "reason"),
		untracked:   desc("flows_untracked_total", "Allowed flows that did not fit into the full flow table; their reply packets are decided as new flows."),
		entries:     desc("map_entries", "Entries of the data path's maps, at the last count. In flow tables, flows that have not expired.", "map"),
		capacity:    desc("map_capacity", "Entries that the data path's maps hold.", "map"),
		denied:      desc("deny_list_entries", "Deny list entries in force.", "family"),
		denyDevices: desc("deny_list_device", "Always 1; an uplink that enforces deny lists with XDP, in its driver (native) or in the kernel's stack (generic).", "device", "mode"),
		pathModes:   desc("data_path", "Always 1; a mode of a part of the data path that is in use.", "part", "mode"),
		pathPods:    desc("data_path_pods", "Pods by the mode of a part of the data path that concerns single pods.", "part", "mode"),
		pathUplinks: desc("data_path_uplinks", "Uplinks by the mode of their programs.", "mode"),
		pathRanges:  desc("data_path_remote_ranges", "Pod ranges of other nodes by the path of their packets.", "mode"),
		flows:       desc("flow_events_total", "Flow events that the agent has received, by verdict: allow, deny, drop or observe. Windows shows denied flows only, so there is no allow on its nodes.", "verdict"),
		missedFlows: desc("flow_events_missed_total", "Flow events that were not delivered: over the rate limit of a pod (limited), not read in time (lost), or skipped for a slow client (slow_reader).", "reason"),
		pool:        desc("endpoint_pool", "Endpoints that are prepared for pods to come, by state: ready, preparing, and wanted, the sum that the agent aims at.", "state"),
		poolAdds:    desc("endpoint_pool_adds_total", "Pods that a prepared endpoint could serve, by result: hit, or miss if none with their DNS settings was ready.", "result"),
		repairs:     desc("repairs_total", "Repairs of data path and fabric objects that another process had changed."),
	}
}

// Describe implements prometheus.Collector.
func (c *viewCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.build, c.ready, c.endpoints, c.problems, c.unenforced, c.unpoliced, c.broken, c.current, c.snapshot,
		c.counted, c.portDrops, c.readers, c.applied, c.addresses, c.unsupported,
		c.objects, c.verdicts, c.drops, c.untracked, c.repairs, c.entries, c.capacity, c.denied, c.denyDevices, c.pathModes, c.pathPods, c.pathUplinks, c.pathRanges,
		c.flows, c.missedFlows, c.pool, c.poolAdds} {
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
		ready, applied = 1, unixSeconds(v.appliedAt)
	}
	gauge(c.build, 1, c.agent.cfg.Version, string(v.features.OS), v.features.Platform)
	gauge(c.ready, ready)
	gauge(c.endpoints, float64(v.endpoints))
	kinds := c.agent.allProblems(v).count()
	for _, k := range problemKinds {
		gauge(c.problems, float64(kinds[k]), string(k))
	}
	gauge(c.unenforced, float64(v.unenforced))
	gauge(c.broken, float64(v.broken))
	gauge(c.unpoliced, float64(v.unpoliced))
	gauge(c.current, c.agent.sourceCurrent())
	gauge(c.snapshot, unixSeconds(v.snapshotAt))
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
	read := c.agent.sampler.Sample(scrapeWait, v.backend.Counters)
	if read.Err != nil {
		c.agent.log.Warn("read counters of the data path", "error", read.Err)
	}
	ch <- prometheus.MustNewConstMetric(c.counted, prometheus.GaugeValue, unixSeconds(read.At))
	if read.At.IsZero() {
		return
	}
	n := read.Counters
	for _, d := range model.Directions {
		for _, verdict := range n.Counted.Verdicts() {
			ch <- prometheus.MustNewConstMetric(c.verdicts, prometheus.CounterValue, float64(n.Verdicts[d][verdict]), d.String(), verdict.String())
		}
	}
	ch <- prometheus.MustNewConstMetric(c.repairs, prometheus.CounterValue, float64(n.Repairs))
	ch <- prometheus.MustNewConstMetric(c.untracked, prometheus.CounterValue, float64(n.Untracked))
	for d, count := range n.PortDrops {
		ch <- prometheus.MustNewConstMetric(c.portDrops, prometheus.CounterValue, float64(count), d.String())
	}
	for reason, count := range n.Drops {
		ch <- prometheus.MustNewConstMetric(c.drops, prometheus.CounterValue, float64(count), reason)
	}
	for name, u := range n.Maps {
		ch <- prometheus.MustNewConstMetric(c.entries, prometheus.GaugeValue, float64(u.Entries), name)
		ch <- prometheus.MustNewConstMetric(c.capacity, prometheus.GaugeValue, float64(u.Capacity), name)
	}
	if v.flowReports() != model.NoFlows {
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
		ch <- prometheus.MustNewConstMetric(c.pathModes, prometheus.GaugeValue, 1, w.Part, w.Mode)
		count := float64(w.Count)
		switch w.Part { // others concern the whole node
		case "pods", "foreign_addresses":
			ch <- prometheus.MustNewConstMetric(c.pathPods, prometheus.GaugeValue, count, w.Part, w.Mode)
		case "uplinks":
			ch <- prometheus.MustNewConstMetric(c.pathUplinks, prometheus.GaugeValue, count, w.Mode)
		case "other_nodes":
			ch <- prometheus.MustNewConstMetric(c.pathRanges, prometheus.GaugeValue, count, w.Mode)
		}
	}
}

// collectFlows adds the metrics of flow events, if the data path reports them.
func (c *viewCollector) collectFlows(v *view, ch chan<- prometheus.Metric) {
	reports := v.flowReports()
	if reports == model.NoFlows {
		return
	}
	ch <- prometheus.MustNewConstMetric(c.readers, prometheus.GaugeValue, float64(c.agent.flows.Readers()))
	seen, missed := c.agent.flows.Totals()
	for _, o := range observe.Outcomes() {
		if o == observe.Allowed && reports == model.DeniedFlows {
			continue // 0 would say that there were none
		}
		ch <- c.agent.withExemplar(prometheus.MustNewConstMetric(c.flows, prometheus.CounterValue, float64(seen[o]), o.String()), o)
	}
	ch <- prometheus.MustNewConstMetric(c.missedFlows, prometheus.CounterValue, float64(missed), "slow_reader")
}

// withExemplar adds the newest flow of an outcome to a counter, for clients that ask for OpenMetrics.
func (a *Agent) withExemplar(m prometheus.Metric, o observe.Outcome) prometheus.Metric {
	f := a.newest.Get(o)
	if f.ID == "" {
		return m
	}
	with, err := prometheus.NewMetricWithExemplars(m, prometheus.Exemplar{Value: 1, Labels: prometheus.Labels{"flow_id": f.ID}, Timestamp: f.Time})
	if err != nil { // an ID that is longer than OpenMetrics allows
		return m
	}
	return with
}

// allProblems returns the problems of the view and of the snapshot source.
func (a *Agent) allProblems(v *view) problems {
	var all problems
	if a.stalled() {
		all.add(problemAgent, "the agent's loop has not responded for "+a.cfg.Stall.String())
	}
	all = append(all, v.problems...)
	if a.cfg.SourceProblems != nil {
		all.add(problemSource, a.cfg.SourceProblems()...)
	}
	return all
}

// sourceCurrent returns 1 if the newest snapshot is current, else 0.
func (a *Agent) sourceCurrent() float64 {
	if a.latest.Load() == nil || a.cfg.SourceBehind != nil && a.cfg.SourceBehind() != "" {
		return 0
	}
	return 1
}

// unixSeconds returns a time as Prometheus writes it; 0 for the zero time.
func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}

// problem is one line that describes a problem of this node and its remedy.
type problem struct {
	kind problemKind
	text string
}

// problemKind is the part of the agent that a problem concerns. It is a label of isthmus_problems.
type problemKind string

const (
	problemAgent       problemKind = "agent"        // records of endpoints, the loop
	problemSource      problemKind = "source"       // the API server or the directory of manifests
	problemPolicy      problemKind = "policy"       // a state that could not be applied
	problemUnenforced  problemKind = "unenforced"   // pods that are not under policy
	problemEndpoint    problemKind = "endpoint"     // pods that could not be repaired or removed, or that changed their own network
	problemDrift       problemKind = "drift"        // objects that another process keeps changing
	problemAudit       problemKind = "audit"        // an audit that cannot compare
	problemDataPath    problemKind = "data_path"    // components, routes, tunnels, and a search for pods without policy that fails
	problemAddresses   problemKind = "addresses"    // pod ranges
	problemCapacity    problemKind = "capacity"     // maps that are nearly full
	problemUnannounced problemKind = "announcement" // what other nodes must know about this one
)

var problemKinds = []problemKind{problemAgent, problemSource, problemPolicy, problemUnenforced, problemEndpoint, problemDrift, problemAudit,
	problemDataPath, problemAddresses, problemCapacity, problemUnannounced}

type problems []problem

func (ps *problems) add(kind problemKind, lines ...string) {
	for _, line := range lines {
		*ps = append(*ps, problem{kind, line})
	}
}

func (ps problems) texts() (all []string) {
	for _, p := range ps {
		all = append(all, p.text)
	}
	return all
}

func (ps problems) count() map[problemKind]int {
	n := make(map[problemKind]int)
	for _, p := range ps {
		n[p.kind]++
	}
	return n
}
