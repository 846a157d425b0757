// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// flowsOf returns a Handler whose flows a function sends.
func flowsOf(t testing.TB, flows func(context.Context, FlowQuery, func(FlowEvent) error) error) *Handler {
	return newHandler(t, readShop(t), func(c *Config) { c.Flows, c.FlowsOf = flows, "Flows of the test." })
}

// The page of denied flows is complete without a script, and needs no objects.
func TestFlows(t *testing.T) {
	var asked []FlowQuery
	h := flowsOf(t, func(_ context.Context, q FlowQuery, send func(FlowEvent) error) error {
		asked = append(asked, q)
		if q.Namespace == "none" {
			return Failed(http.StatusServiceUnavailable, errors.New("the agent does not answer: start it"))
		}
		return errors.Join(send(FlowEvent{}), send(FlowEvent{Nodes: []string{"n2"}, State: Unavailable}), send(FlowEvent{Nodes: []string{"w1"}, State: Partial, Why: "HNS"}),
			send(FlowEvent{Lost: 40}), send(FlowEvent{Flow: &Flow{Time: "08:00:00.000", From: "shop/web", To: "pay/api", Port: "TCP 80", Why: "a rule denies", Node: "n1"}}), send(FlowEvent{Flow: &Flow{Time: "08:00:01.000"}, Lost: 2}))
	})
	for _, c := range []struct {
		path   string
		status int
		want   []string
		live   bool
	}{
		{"/flows", 200, []string{"Flows of the test. Flows of these nodes are missing: n2 These nodes do not report all flows: w1: HNS Shown: 2 denied flows. Lost in that time: 42 flows of any verdict.",
			"08:00:01.000 none unknown hidden 08:00:00.000 shop/web pay/api TCP 80 a rule denies n1"}, true},
		{"/flows?namespace=none", 503, []string{"the agent does not answer: start it"}, false},
		{"/flows?namespace=A", 400, []string{"give the name of a namespace"}, false},
		{"/flows?number=1", 400, []string{"this page has namespace"}, false},
		{"/flows/events?namespace=A", 400, []string{"give the name of a namespace"}, false},
		{"/flows/events?namespace=none", 503, []string{"the agent does not answer: start it"}, false},
		{"/flows/events", 200, []string{`event: node data: "n2: no answer"`, `event: node data: "w1: does not report all flows: HNS" event: lost data: 40`,
			`event: flow data: {"time":"08:00:00.000","from":"shop/web","to":"pay/api","port":"TCP 80","why":"a rule denies","node":"n1"}`, "event: lost data: 2"}, false},
	} {
		w := get(h, "/secret"+c.path)
		live := strings.Contains(w.Body.String(), `<script src="/secret/static/live.js" defer></script>`) && strings.Contains(w.Body.String(), `data-events="/secret/flows/events"`)
		if w.Code != c.status || live != c.live || strings.Contains(text(w), "the test, as of") {
			t.Errorf("%s: status %d, live %v: %s", c.path, w.Code, live, text(w))
		}
		for _, want := range c.want {
			if !strings.Contains(text(w), want) {
				t.Errorf("%s: no %q in\n%s", c.path, want, text(w))
			}
		}
	}
	if want := []FlowQuery{{Last: keptFlows}, {Namespace: "none", Last: keptFlows}, {Namespace: "none", Follow: true}, {Follow: true}}; !slices.Equal(asked, want) {
		t.Errorf("asked for %+v, want %+v", asked, want)
	}
	if w := get(h, "/secret/static/live.js"); w.Code != http.StatusOK {
		t.Errorf("the script: status %d", w.Code)
	}
	h = flowsOf(t, nil)
	if w := get(h, "/secret/flows"); w.Code != http.StatusOK || !strings.Contains(text(w), "Flows are not available.") {
		t.Errorf("without flows: status %d: %s", w.Code, text(w))
	}
	if w := get(h, "/secret/flows/events"); w.Code != http.StatusNotFound {
		t.Errorf("new flows, without flows: status %d", w.Code)
	}
}

// Other sites reach no flows, by whatever name of this machine.
func TestFlowsOfOthers(t *testing.T) {
	h := flowsOf(t, func(context.Context, FlowQuery, func(FlowEvent) error) error {
		t.Error("flows are read")
		return nil
	})
	for _, path := range []string{"/flows", "/flows/events"} {
		for want, header := range map[int][]string{421: {"Host", "evil.example:8080"}, 403: {"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"}} {
			if w := get(h, "/secret"+path, header...); w.Code != want {
				t.Errorf("%s, %q: status %d, want %d", path, header, w.Code, want)
			}
		}
		if w := get(h, path); w.Code != http.StatusNotFound {
			t.Errorf("%s without the token: status %d", path, w.Code)
		}
	}
}

// A source that ignores the limits of a query, with long texts, makes no large page, and its texts stay texts.
func TestHostileFlows(t *testing.T) {
	long := `"><script>alert(1)</script>` + strings.Repeat("x", 5000)
	h := flowsOf(t, func(_ context.Context, _ FlowQuery, send func(FlowEvent) error) error {
		for i := range 5000 {
			nodes := slices.Repeat([]string{long}, 100)
			for _, e := range []FlowEvent{{Flow: &Flow{Time: fmt.Sprint("t", i), From: long, To: long, Port: long, Why: long, Node: long}}, {Nodes: nodes, State: Unavailable, Why: long}, {Nodes: nodes, State: Partial, Why: fmt.Sprint(i, long)}} {
				if err := send(e); err != nil {
					return err
				}
			}
		}
		return nil
	})
	w := get(h, "/secret/flows")
	body := w.Body.String()
	if strings.Contains(body, "<script>") || strings.Count(body, "<tr>") != 1+keptFlows || !strings.Contains(body, ">t4999<") || strings.Contains(body, ">t4899<") {
		t.Errorf("status %d, %d rows, %d bytes", w.Code, strings.Count(body, "<tr>"), len(body))
	}
	if most := 100*6*maxText*4 + 100_000; len(body) > most {
		t.Errorf("%d bytes, want at most %d", len(body), most)
	}
}

func FuzzFlowQuery(f *testing.F) {
	for _, s := range []string{"", "namespace=shop", "namespace=a%2Fb", "namespace=-a", "x", "namespace=" + strings.Repeat("a", 64)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		q, err := flowQuery(&http.Request{URL: &url.URL{RawQuery: raw}})
		if err != nil {
			if statusOf(err) != http.StatusBadRequest || q != (FlowQuery{}) {
				t.Fatal(q, err)
			}
			return
		}
		if strings.ContainsAny(q.Namespace, "/ ,") || len(q.Namespace) > 63 {
			t.Fatalf("%q: %q", raw, q.Namespace)
		}
	})
}
