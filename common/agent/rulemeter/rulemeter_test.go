// SPDX-License-Identifier: Apache-2.0

package rulemeter_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-net/isthmus/common/agent/rulemeter"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// counted is a data path with these counters.
type counted struct {
	counts dataplane.CauseCounts
	err    error
}

func (c *counted) CauseCounts(context.Context) (dataplane.CauseCounts, error) { return c.counts, c.err }

// rule is a rule of shop/web that allows ingress.
func rule(index int, meaning, flows uint64) dataplane.CauseCount {
	return dataplane.CauseCount{Flows: flows, Decision: model.Decision{Verdict: model.Allow, Cause: &model.Cause{Reason: model.ReasonRule,
		Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "web"}, Direction: model.Ingress, Rule: index, Meaning: meaning}}}
}

// isolated is the isolation by shop/web for egress.
func isolated(flows uint64) dataplane.CauseCount {
	c := rule(0, 0, flows)
	c.Verdict, c.Cause.Reason, c.Cause.Direction = model.Deny, model.ReasonIsolated, model.Egress
	return c
}

// scrape returns the series with their values. A scrape with errors fails the test.
func scrape(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			name := strings.TrimPrefix(f.GetName(), "isthmus_")
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return all
}

// names returns the series of rules without those of omitted ones.
func names(all map[string]float64) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if rest, ok := strings.CutPrefix(name, "rule_hits_total "); ok {
			list = append(list, rest)
		}
	}
	return list
}

func meter(limit int, path *counted) *rulemeter.Collector {
	return rulemeter.New(limit, slog.New(slog.DiscardHandler), func() dataplane.CauseCounter { return path })
}

func TestSeries(t *testing.T) {
	node := dataplane.CauseCount{Flows: 9, Decision: model.Decision{Verdict: model.Allow, Cause: &model.Cause{Reason: model.ReasonNode}}}
	path := &counted{counts: dataplane.CauseCounts{Causes: []dataplane.CauseCount{rule(1, 0xab, 7), rule(0, 0xcd, 0), isolated(3), node, {Flows: 5}},
		Shared: []model.Decision{rule(1, 0xab, 0).Decision, node.Decision}}}
	got := scrape(t, meter(10, path))
	// The labels are direction, id, kind, namespace, policy, rule, verdict.
	want := map[string]float64{
		"rule_hits_total ingress ab NetworkPolicy shop web 1 allow":     7,
		"rule_hits_total ingress cd NetworkPolicy shop web 0 allow":     0,
		"rule_hits_total egress  NetworkPolicy shop web isolation deny": 3,
		"rules_omitted limit":    0,
		"rules_omitted capacity": 1,
	}
	if !maps.Equal(got, want) {
		t.Errorf("series %v, want %v", got, want)
	}
}

// Packets have a metric of their own. A data path that does not count leaves no series and no log.
func TestPackets(t *testing.T) {
	path := &counted{err: fmt.Errorf("%w: no program", dataplane.ErrNotCounted)}
	var log strings.Builder
	c := rulemeter.New(10, slog.New(slog.NewTextHandler(&log, nil)), func() dataplane.CauseCounter { return path })
	if got := scrape(t, c); len(got) != 0 || log.Len() != 0 {
		t.Errorf("series %v, log %s", got, log.String())
	}
	path.err, path.counts = nil, dataplane.CauseCounts{Packets: true, Causes: []dataplane.CauseCount{rule(1, 0xab, 7)}}
	got := scrape(t, c)
	if len(names(got)) != 0 || got["rule_packets_total ingress ab NetworkPolicy shop web 1 allow"] != 7 {
		t.Errorf("series %v", got)
	}
}

// A rule that moves keeps its count under its id, and no series continues with the count of another rule.
func TestSeriesFollowRules(t *testing.T) {
	path := &counted{counts: dataplane.CauseCounts{Causes: []dataplane.CauseCount{rule(0, 0xab, 1000), rule(1, 0xcd, 5)}}}
	c := meter(10, path)
	before := scrape(t, c)
	path.counts.Causes = []dataplane.CauseCount{rule(1, 0xab, 1001), rule(0, 0xcd, 6), rule(2, 0xef, 0)}
	after := scrape(t, c)
	for name := range before {
		if _, still := after[name]; still && strings.HasPrefix(name, "rule_hits") {
			t.Errorf("series %q names another rule now", name)
		}
	}
	if n := after["rule_hits_total ingress ab NetworkPolicy shop web 1 allow"]; n != 1001 {
		t.Errorf("the rule that moved counts %v: %v", n, after)
	}
}

// Beyond the limit, rules that have series keep them, others wait for a place, and the number of those is exported.
func TestLimit(t *testing.T) {
	path := &counted{}
	c := meter(3, path)
	set := func(ids ...uint64) map[string]float64 {
		path.counts.Causes = nil
		for i, id := range ids {
			path.counts.Causes = append(path.counts.Causes, rule(i, id, id))
		}
		return scrape(t, c)
	}
	// Every rule stays at its index, so that its series stay the same.
	at := func(m map[int]uint64) map[string]float64 {
		path.counts.Causes = nil
		for i, id := range m {
			path.counts.Causes = append(path.counts.Causes, rule(i, id, id))
		}
		return scrape(t, c)
	}
	if got := set(1, 2, 3); len(names(got)) != 3 || got["rules_omitted limit"] != 0 {
		t.Fatalf("at the limit: %v", got)
	}
	first := names(at(map[int]uint64{5: 5, 6: 6, 7: 7}))
	for range 20 { // the order of maps must not decide
		got := at(map[int]uint64{1: 1, 2: 2, 5: 5, 6: 6, 7: 7})
		if !slices.Equal(names(got), first) || got["rules_omitted limit"] != 2 {
			t.Fatalf("rules that come displace others: %v, want %v", got, first)
		}
	}
	got := at(map[int]uint64{1: 1, 2: 2, 6: 6, 7: 7})
	if _, ok := got["rule_hits_total ingress 1 NetworkPolicy shop web 1 allow"]; !ok || len(names(got)) != 3 || got["rules_omitted limit"] != 1 {
		t.Errorf("a place that is free again: %v", got)
	}
}

// Strange input must not break the other metrics of the agent: names that are not UTF-8, two objects of a name.
func TestStrangeRules(t *testing.T) {
	odd, again := rule(0, 1, 4), rule(0, 1, 5)
	odd.Cause.Origin.UID, again.Cause.Origin.UID = "a", "b"
	bytes := rule(1, 2, 1)
	bytes.Cause.Origin.Name = "we\xffb"
	got := scrape(t, meter(10, &counted{counts: dataplane.CauseCounts{Causes: []dataplane.CauseCount{odd, again, bytes}}}))
	if got["rule_hits_total ingress 1 NetworkPolicy shop web 0 allow"] != 9 || len(names(got)) != 2 {
		t.Errorf("series %v", got)
	}
}

// A read that fails leaves the last counters; before the first, and without a data path that counts, there are no series.
func TestReadErrors(t *testing.T) {
	path := &counted{err: errors.New("broken")}
	c := meter(10, path)
	if got := scrape(t, c); len(got) != 0 {
		t.Errorf("before the first read: %v", got)
	}
	path.err, path.counts.Causes = nil, []dataplane.CauseCount{rule(0, 1, 7)}
	want := fmt.Sprint(scrape(t, c))
	path.err = errors.New("broken again")
	if got := fmt.Sprint(scrape(t, c)); got != want || !strings.Contains(got, ":7") {
		t.Errorf("after a failed read: %s, want %s", got, want)
	}
	none := rulemeter.New(10, slog.New(slog.DiscardHandler), func() dataplane.CauseCounter { return nil })
	if got := scrape(t, none); len(got) != 0 {
		t.Errorf("without a data path: %v", got)
	}
}
