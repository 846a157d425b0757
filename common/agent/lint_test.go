// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

// maxSeries bounds the series of an idle agent, without those of the Go runtime and the process.
const maxSeries = 250

// families returns the samples of a scrape by the name of the series, and the names of the families.
func families(body string) (series map[string]string, names []string) {
	series = make(map[string]string)
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ := strings.Cut(rest, " ")
			names = append(names, name)
		}
		if strings.HasPrefix(line, "isthmus_") {
			name, value, _ := strings.Cut(line, "} ")
			if value == "" {
				name, value, _ = strings.Cut(line, " ")
			}
			series[name] = value
		}
	}
	return series, names
}

// TestMetricsLint scrapes an agent before and after the events that it counts. It checks the rules
// of Prometheus, that each family is in docs/operate/metrics.md, that every series of a counter
// exists from the start, and the number of series.
func TestMetricsLint(t *testing.T) {
	reference, err := os.ReadFile("../../docs/operate/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.settle()
		_, first := r.get("/metrics")
		r.mustAdd(0)
		r.mustAdd(1)
		r.mustDel(1)
		r.add(77) // not known
		r.gc(0)
		r.check(0)
		r.check(5)
		r.fake.Tamper(id(0))
		time.Sleep(2 * time.Minute) // an audit finds it
		r.fake.SetFault(func(context.Context, string) error { return io.ErrUnexpectedEOF })
		r.agent.Publish(cluster{pods: 4}.snapshot())
		time.Sleep(2 * time.Minute)
		r.fake.SetFault(nil)
		time.Sleep(2 * time.Minute)
		_, last := r.get("/metrics")

		problems, err := promlint.New(strings.NewReader(last)).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
		before, _ := families(first)
		after, names := families(last)
		undocumented, late := 0, 0
		for _, name := range names {
			if strings.HasPrefix(name, "isthmus_") && !strings.Contains(string(reference), "`"+name+"`") {
				undocumented++
				t.Errorf("%s is not in docs/operate/metrics.md", name)
			}
		}
		for name := range after {
			if _, there := before[name]; there || strings.HasPrefix(name, "isthmus_cni_request_duration_seconds") && !strings.Contains(name, "ADD") && !strings.Contains(name, "DEL") {
				continue // the duration of a CHECK begins with the first one
			}
			late++
			t.Errorf("%s was missing at the start", name)
		}
		if len(before) > maxSeries {
			t.Errorf("%d series, want at most %d", len(before), maxSeries)
		}
		for name, least := range map[string]string{`isthmus_audit_drifts_total{object="table"`: "1", `isthmus_audit_runs_total{result="drift"`: "1",
			`isthmus_cni_requests_total{code="11",command="ADD"`: "1"} {
			if after[name] != least {
				t.Errorf("%s is %q, want %s: the test does not meet what it is about", name, after[name], least)
			}
		}
		for _, name := range []string{"isthmus_apply_errors_total", "isthmus_audit_last_success_timestamp_seconds", "isthmus_time_to_enforce_seconds_count",
			"isthmus_audit_duration_seconds_count", "isthmus_counters_timestamp_seconds", "isthmus_snapshot_timestamp_seconds"} {
			if after[name] == "" || after[name] == "0" {
				t.Errorf("%s is %q", name, after[name])
			}
		}
		t.Logf("%d problems, %d undocumented, %d late children, %d series", len(problems), undocumented, late, len(before))
		r.end()
	})
}

// TestOpenMetrics requests OpenMetrics, as Prometheus does.
func TestOpenMetrics(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.settle()
		req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		req.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
		w := httptest.NewRecorder()
		r.agent.Handler().ServeHTTP(w, req)
		if kind := w.Header().Get("Content-Type"); !strings.HasPrefix(kind, "application/openmetrics-text") || !strings.HasSuffix(w.Body.String(), "# EOF\n") {
			t.Errorf("Content-Type %q", kind)
		}
		r.end()
	})
}

// silent is a data path that reports flows, and has none.
type silent struct{ *dataplanetest.Fake }

// Watch implements dataplane.Watcher.
func (silent) Watch(ctx context.Context, _ func([]model.FlowEvent)) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestExemplars reads the exemplar of a counter of flows as OpenMetrics defines it. The text format of Prometheus has none.
func TestExemplars(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		features := linux
		features.Flows = model.AllFlows
		r.fake = dataplanetest.NewFake(features)
		r.change = func(c *agent.Config) {
			open := c.Open
			c.Open = func(ctx context.Context, node model.Node) (dataplane.Backend, error) {
				_, err := open(ctx, node)
				return silent{r.fake}, err
			}
		}
		r.start()
		r.agent.Publish(cluster{pods: 1}.snapshot())
		r.settle()
		r.settle()
		read := func(accept string) string {
			req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			req.Header.Set("Accept", accept)
			w := httptest.NewRecorder()
			r.agent.Handler().ServeHTTP(w, req)
			return w.Body.String()
		}
		const open = "application/openmetrics-text; version=1.0.0"
		if before := read(open); strings.Contains(before, "flow_id") || !strings.Contains(before, `isthmus_flow_events_total{verdict="deny"} `) {
			t.Errorf("before a flow:\n%s", before)
		}
		at := time.Unix(1_800_000_000, 500_000_000)
		r.agent.Newest().Set(observe.Denied, observe.Identified{ID: "01234567-89ab-8cde-8000-000000000001", Time: at})
		r.agent.Newest().Set(observe.Dropped, observe.Identified{ID: strings.Repeat("x", 200), Time: at})
		// name, labels and value of the sample; labels, value and time of the exemplar
		line := regexp.MustCompile(`(?m)^isthmus_flow_events_total\{verdict="(\w+)"\} [0-9.e+]+( # \{flow_id="([0-9a-f-]{36})"\} ([0-9.]+) ([0-9.e+]+))?$`)
		found := make(map[string]string)
		for _, m := range line.FindAllStringSubmatch(read(open), -1) {
			found[m[1]] = m[3]
			if m[3] == "" {
				continue
			}
			if seconds, err := strconv.ParseFloat(m[5], 64); m[4] != "1.0" || err != nil || seconds != 1_800_000_000.5 {
				t.Errorf("%q: value %s, time %s, %v", m[0], m[4], m[5], err)
			}
		}
		want := map[string]string{"allow": "", "deny": "01234567-89ab-8cde-8000-000000000001", "drop": "", "observe": ""}
		if !maps.Equal(found, want) {
			t.Errorf("exemplars %v, want %v", found, want)
		}
		if text := read("text/plain"); strings.Contains(text, "flow_id") {
			t.Errorf("the text format has an exemplar:\n%s", text)
		}
		r.end()
	})
}

// TestProblemKinds checks that each kind of problem is counted under its own name, and that the
// series is 0 without one.
func TestProblemKinds(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		kinds := func() (all []string) {
			_, body := r.get("/metrics")
			series, _ := families(body)
			for name, value := range series {
				if kind, ok := strings.CutPrefix(name, `isthmus_problems{kind="`); ok && value != "0" {
					all = append(all, strings.TrimSuffix(kind, `"`))
				}
			}
			slices.Sort(all)
			return all
		}
		r.start()
		r.settle()
		if got := kinds(); !slices.Equal(got, []string{"source"}) {
			t.Errorf("without a snapshot: %q", got)
		}
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.mustAdd(0)
		if got := kinds(); len(got) != 0 {
			t.Errorf("healthy: %q", got)
		}
		r.fake.SetPoison(func(*model.State) error { return io.ErrUnexpectedEOF })
		r.agent.Publish(cluster{pods: 4}.snapshot())
		time.Sleep(time.Second)
		if got := kinds(); !slices.Equal(got, []string{"policy"}) {
			t.Errorf("a State that cannot be applied: %q", got)
		}
		r.fake.SetPoison(nil)
		time.Sleep(time.Minute)
		if got := kinds(); len(got) != 0 {
			t.Errorf("repaired: %q", got)
		}
		r.end()
	})
}
