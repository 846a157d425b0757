// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/httpd"
	"github.com/isthmus-net/isthmus/common/model"
)

// get sends a request to the agent's HTTP handler.
func (r *rig) get(path string) (status int, body string) {
	w := httptest.NewRecorder()
	r.agent.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// metric returns the value of a series, "" if it is missing.
func (r *rig) metric(series string) string {
	_, body := r.get("/metrics")
	for _, line := range strings.Split(body, "\n") {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return value
		}
	}
	return ""
}

// problems returns the sum of isthmus_problems over all kinds.
func (r *rig) problems() string {
	_, body := r.get("/metrics")
	sum := 0
	for line := range strings.Lines(body) {
		if rest, ok := strings.CutPrefix(line, "isthmus_problems{"); ok {
			_, value, _ := strings.Cut(strings.TrimSpace(rest), "} ")
			n, err := strconv.Atoi(value)
			if err != nil {
				return err.Error()
			}
			sum += n
		}
	}
	return strconv.Itoa(sum)
}

// blocking is a collector that blocks.
type blocking struct {
	prometheus.Collector
	entered, leave chan struct{}
}

func (b blocking) Collect(ch chan<- prometheus.Metric) {
	b.entered <- struct{}{}
	<-b.leave
	b.Collector.Collect(ch)
}

// TestScrapesAtATime sends more concurrent scrapes than the limit.
func TestScrapesAtATime(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		slow := blocking{prometheus.NewGauge(prometheus.GaugeOpts{Name: "slow", Help: "Is slow."}), make(chan struct{}), make(chan struct{})}
		r.change = func(c *agent.Config) { c.Collectors = []prometheus.Collector{slow} }
		r.start()
		handler := r.agent.Handler()
		ask := func(path string) int {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			return w.Code
		}
		statuses := make(chan int, httpd.Scrapes)
		for range httpd.Scrapes {
			go func() { statuses <- ask("/metrics") }()
			<-slow.entered
		}
		if status := ask("/metrics"); status != http.StatusServiceUnavailable {
			t.Errorf("one more scrape: status %d", status)
		}
		if status := ask("/healthz"); status != http.StatusOK {
			t.Errorf("healthz beside scrapes: status %d", status)
		}
		close(slow.leave)
		for range httpd.Scrapes {
			if status := <-statuses; status != http.StatusOK {
				t.Errorf("status %d", status)
			}
		}
		r.end()
	})
}

// TestCountedVerdicts: the metrics have the verdicts that the data path counts, and no 0 for others.
func TestCountedVerdicts(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 1}.snapshot())
		var n dataplane.Counters
		n.Verdicts[model.Ingress][model.Deny] = 12
		for counted, want := range map[model.FlowReports][2]string{model.AllFlows: {"12", "0"}, model.DeniedFlows: {"12", ""}, model.NoFlows: {}} {
			n.Counted = counted
			r.fake.SetCounters(n)
			r.settle()
			denied, allowed := r.metric(`isthmus_verdicts_total{direction="ingress",verdict="deny"}`), r.metric(`isthmus_verdicts_total{direction="egress",verdict="allow"}`)
			if denied != want[0] || allowed != want[1] {
				t.Errorf("a data path that counts %d has %q denied and %q allowed flows, want %q", counted, denied, allowed, want)
			}
		}
		r.end()
	})
}

func TestHTTP(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.settle()
		if status, body := r.get("/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "not known yet") {
			t.Errorf("readyz before the first snapshot: %d %s", status, body)
		}
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.mustAdd(0)
		r.mustAdd(1)
		r.mustDel(1)
		r.add(77)
		var n dataplane.Counters
		n.Verdicts[model.Ingress][model.Deny], n.Counted = 12, model.AllFlows
		n.Drops = map[string]uint64{"malformed": 3}
		n.PathModes = []dataplane.PathMode{{Part: "pods", Mode: "tcx", Count: 2}, {Part: "other_nodes", Mode: "direct_routes", Count: 3}, {Part: "uplinks", Mode: "native", Count: 4}}
		r.fake.SetCounters(n)
		r.settle()
		if status, _ := r.get("/readyz"); status != http.StatusOK {
			t.Errorf("readyz: %d", status)
		}
		for series, want := range map[string]string{
			`isthmus_build_info{os="linux",platform="test",version="v0.0.0-test"}`: "1",
			`isthmus_ready`:     "1",
			`isthmus_endpoints`: "1",
			`isthmus_ipam_addresses{pool="10.0.1.0/24",state="used"}`:        "1",
			`isthmus_ipam_addresses{pool="10.0.1.0/24",state="quarantined"}`: "1",
			`isthmus_ipam_addresses{pool="10.0.1.0/24",state="free"}`:        "251",
			`isthmus_cni_requests_total{code="0",command="ADD"}`:             "2",
			`isthmus_cni_requests_total{code="11",command="ADD"}`:            "1",
			`isthmus_cni_requests_total{code="0",command="DEL"}`:             "1",
			`isthmus_snapshot_objects{kind="pod"}`:                           "4",
			`isthmus_snapshot_objects{kind="policy"}`:                        "1",
			`isthmus_unsupported{effect="over-blocks"}`:                      "0",
			`isthmus_unsupported{effect="refused"}`:                          "0",
			`isthmus_verdicts_total{direction="ingress",verdict="deny"}`:     "12",
			`isthmus_verdicts_total{direction="egress",verdict="allow"}`:     "0",
			`isthmus_drops_total{reason="malformed"}`:                        "3",
			`isthmus_data_path{mode="tcx",part="pods"}`:                      "1",
			`isthmus_data_path{mode="direct_routes",part="other_nodes"}`:     "1",
			`isthmus_data_path_pods{mode="tcx",part="pods"}`:                 "2",
			`isthmus_data_path_remote_ranges{mode="direct_routes"}`:          "3",
			`isthmus_data_path_uplinks{mode="native"}`:                       "4",
			`isthmus_apply_errors_total`:                                     "0",
			`isthmus_problems{kind="policy"}`:                                "0",
			`isthmus_endpoints_unenforced`:                                   "0",
			`isthmus_endpoint_problems`:                                      "0",
			`isthmus_source_current`:                                         "1",
			`isthmus_flow_event_readers`:                                     "",
			`isthmus_audit_differences`:                                      "0",
		} {
			if got := r.metric(series); got != want {
				t.Errorf("%s is %q, want %q", series, got, want)
			}
		}
		for _, series := range []string{"isthmus_apply_duration_seconds_count", "isthmus_compile_duration_seconds_count"} {
			if got := r.metric(series); got == "" || got == "0" {
				t.Errorf("%s is %q", series, got)
			}
		}
		if status, _ := r.get("/healthz"); status != http.StatusOK {
			t.Errorf("healthz: %d", status)
		}
		r.end()
		time.Sleep(31 * time.Second)
		if status, body := r.get("/healthz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "has not responded") {
			t.Errorf("healthz without a loop: %d %s", status, body)
		}
	})
}
