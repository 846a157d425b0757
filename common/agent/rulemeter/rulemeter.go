// SPDX-License-Identifier: Apache-2.0

package rulemeter

import (
	"cmp"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-net/isthmus/common/agent/meter"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// MaxLimit is the largest number of series of a Collector: more than a data path counts.
const MaxLimit = 10000

// scrapeWait is how long a scrape waits for a read of the counters. After it, it contains those of the last read.
const scrapeWait = time.Second

// isolation is the label of flows that no rule accepts and that the policy therefore denies.
const isolation = "isolation"

// Collector collects the counters of rules at each scrape. It is safe for concurrent use.
type Collector struct {
	limit   int
	log     *slog.Logger
	counter func() dataplane.CauseCounter
	sampler meter.Sampler[dataplane.CauseCounts]

	mutex sync.Mutex
	shown map[series]bool // in the last answer

	hits, packets, omitted *prometheus.Desc
}

// New returns a Collector of at most limit series. The function returns the data path to read; nil if it is not
// open or does not count by rule. There are no series then.
func New(limit int, log *slog.Logger, counter func() dataplane.CauseCounter) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("isthmus_"+name, help, labels, nil)
	}
	return &Collector{
		limit: limit, log: log, counter: counter,
		hits: desc("rule_hits_total", "New flows that a rule of policy has decided on this node, for at most --rule-metrics rules. Rule isolation: the policy isolates the pod, and no rule accepts. The id follows what the rule says, also to another place in the policy.",
			"kind", "namespace", "policy", "direction", "rule", "id", "verdict"),
		packets: desc("rule_packets_total", "Packets that a rule of policy has decided on this Windows node, as VFP counts them: a lower bound, since the agent started. Limit and labels are those of isthmus_rule_hits_total, which such a node does not have.",
			"kind", "namespace", "policy", "direction", "rule", "id", "verdict"),
		omitted: desc("rules_omitted", "Rules that decide on this node and whose flows isthmus_rule_hits_total or isthmus_rule_packets_total lacks, by reason: beyond --rule-metrics (limit), or wholly or in part without a counter in the data path (capacity).", "reason"),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.hits
	ch <- c.packets
	ch <- c.omitted
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	counter := c.counter()
	if counter == nil {
		return
	}
	read := c.sampler.Sample(scrapeWait, counter.CauseCounts)
	if read.Err != nil && !errors.Is(read.Err, dataplane.ErrNotCounted) { // the data path reports those once
		c.log.Warn("read counters of rules", "error", read.Err)
	}
	if read.At.IsZero() {
		return
	}
	flows := bySeries(read.Counters.Causes)
	metric := c.hits
	if read.Counters.Packets {
		metric = c.packets
	}
	for _, s := range c.choose(flows) {
		ch <- prometheus.MustNewConstMetric(metric, prometheus.CounterValue, float64(flows[s]), s.labels()...)
	}
	shared := make(map[series]bool)
	for _, d := range read.Counters.Shared {
		if s, ok := seriesOf(d); ok {
			shared[s] = true
		}
	}
	ch <- prometheus.MustNewConstMetric(c.omitted, prometheus.GaugeValue, float64(max(0, len(flows)-c.limit)), "limit")
	ch <- prometheus.MustNewConstMetric(c.omitted, prometheus.GaugeValue, float64(len(shared)), "capacity")
}

// choose returns the series to show, in order: those of the last answer first, then others as far as the limit allows.
func (c *Collector) choose(flows map[series]uint64) []series {
	all := make([]series, 0, len(flows))
	for s := range flows {
		all = append(all, s)
	}
	slices.SortFunc(all, series.compare)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if len(all) > c.limit {
		slices.SortStableFunc(all, func(a, b series) int {
			switch shownA, shownB := c.shown[a], c.shown[b]; {
			case shownA == shownB:
				return 0
			case shownA:
				return -1
			}
			return 1
		})
		all = all[:c.limit]
	}
	c.shown = make(map[series]bool, len(all))
	for _, s := range all {
		c.shown[s] = true
	}
	return all
}

// series identifies a series by its labels. Rules of two objects with the same name, one of which was deleted, share
// one.
type series struct {
	kind, namespace, policy string
	direction               model.Direction
	isolation               bool
	rule                    int
	meaning                 uint64
	verdict                 model.Verdict
}

// seriesOf returns the series of a decision; ok is false if it is not by a policy.
func seriesOf(d model.Decision) (s series, ok bool) {
	c := d.Cause
	if c == nil || c.Reason != model.ReasonRule && c.Reason != model.ReasonIsolated {
		return series{}, false
	}
	s = series{kind: c.Origin.Kind, namespace: c.Origin.Namespace, policy: c.Origin.Name, direction: c.Direction, verdict: d.Verdict}
	if c.Reason == model.ReasonIsolated {
		s.isolation = true
	} else {
		s.rule, s.meaning = c.Rule, c.Meaning
	}
	return s, true
}

// bySeries adds up the flows of each series.
func bySeries(causes []dataplane.CauseCount) map[series]uint64 {
	flows := make(map[series]uint64, len(causes))
	for _, c := range causes {
		if s, ok := seriesOf(c.Decision); ok {
			flows[s] += c.Flows
		}
	}
	return flows
}

// labels are the values of the labels of isthmus_rule_hits_total.
func (s series) labels() []string {
	rule, id := isolation, ""
	if !s.isolation {
		rule = strconv.Itoa(s.rule)
		id = strconv.FormatUint(s.meaning, 16)
	}
	labels := []string{s.kind, s.namespace, s.policy, s.direction.String(), rule, id, s.verdict.String()}
	for i, l := range labels {
		labels[i] = strings.ToValidUTF8(l, "\uFFFD") // Prometheus panics otherwise
	}
	return labels
}

// compare orders by policy, direction and place in it, isolation last.
func (s series) compare(o series) int {
	isolates := func(s series) int {
		if s.isolation {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(s.kind, o.kind), cmp.Compare(s.namespace, o.namespace), cmp.Compare(s.policy, o.policy),
		cmp.Compare(s.direction, o.direction), cmp.Compare(isolates(s), isolates(o)), cmp.Compare(s.rule, o.rule),
		cmp.Compare(s.meaning, o.meaning), cmp.Compare(s.verdict, o.verdict))
}

var _ prometheus.Collector = (*Collector)(nil)
