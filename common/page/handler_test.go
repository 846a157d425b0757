// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/analysis/lint"
	"github.com/isthmus-net/isthmus/common/analysis/usage"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
)

// newHandler returns a Handler about a cluster.
func newHandler(t testing.TB, c *Cluster, change func(*Config)) *Handler {
	t.Helper()
	config := Config{Base: "/secret", Hosts: []string{"127.0.0.1", "localhost"}, Cluster: func() *Cluster { return c }}
	if change != nil {
		change(&config)
	}
	h, err := New(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// get requests a page.
func get(h http.Handler, address string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8080"+address, nil)
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

var tags = regexp.MustCompile(`<[^>]*>|\s+`)

// text returns the visible text of a page.
func text(w *httptest.ResponseRecorder) string {
	return strings.Join(strings.Fields(tags.ReplaceAllString(w.Body.String(), " ")), " ")
}

func TestPages(t *testing.T) {
	h := newHandler(t, readShop(t), func(c *Config) {
		c.Agents = func(context.Context) (map[string]Agent, error) {
			return map[string]Agent{"n1": {Ready: true, Version: "1.2.3", Platform: "kernel 6.1", Modes: []string{"pods: tcx (3)"}, Problems: []string{"disk is full"}, Repairs: []string{"slots: 1"}},
				"n3": {Error: "pod is not running"}}, nil
		}
		c.Enforced = func(*model.Snapshot, model.Flow) explain.Enforced { return nil }
	})
	for _, c := range []struct {
		address string
		status  int
		want    []string
	}{
		{"/", 200, []string{"Pods under policy 4", "linux: 1", "windows: 1", "the test, as of 2027-01-15 08:00:00 UTC"}},
		{"/reach", 200, []string{"namespaces: 2 in rows, 2 in columns", "pay linux itself all", "shop linux, windows 2 of 3 pairs all"}},
		{"/reach?port=80", 200, []string{"on TCP 80", "pay linux itself yes shop"}},
		{"/reach?family=6&rows=shop", 200, []string{"namespaces: 1 in rows, 2 in columns", "shop linux TCP 80 itself"}},
		{"/reach?rows=none", 200, []string{"No namespaces here."}},
		{"/reach/shop/pay", 200, []string{"Deployment/web linux, windows TCP 80", "Pod/tools linux none"}},
		{"/reach/shop/pay/pods?from=Deployment%2Fweb&to=StatefulSet%2Fapi", 200, []string{"web-7d-b windows TCP 80"}},
		{"/explain", 200, []string{"An end is namespace/pod"}},
		{"/explain?from=shop/tools&to=pay/api-0&port=80", 200, []string{"shop/tools to pay/api-0: denied", "Denied: shop/tools (10.0.1.3) to pay/api-0 (10.0.1.4), TCP 80",
			"isolated for ingress by NetworkPolicy pay/api, no rule accepts", "shop.yaml:14 (NetworkPolicy pay/api)", "One edit would allow it", "rule 0: if its peers matched",
			"Add this to NetworkPolicy pay/api:", "podSelector: matchLabels: app: tools", "kubectl patch networkpolicy api -n pay"}},
		{"/explain?from=shop/web-7d-a&to=pay/api-0&port=80&protocol=TCP", 200, []string{"Allowed:", "One edit would deny it"}},
		{"/explain?from=shop/web-7d-a&to=pay/api-0&port=http", 200, []string{"Denied:", "TCP 8080"}},
		{"/explain?from=shop/web&to=pay/api-0&port=80", 400, []string{"from: no pod shop/web: namespace shop has web-7d-a, web-7d-b"}},
		{"/explain?from=shop/tools&to=pay/api-0&port=99999", 400, []string{"port: 99999: give a number from 1 to 65535"}},
		{"/policies", 200, []string{"NetworkPolicy pay/api NetworkPolicy none ingress 1 not known not known shop.yaml:14", "Numbers are not available"}},
		{"/policies?find=other", 200, []string{"No policies here."}},
		{"/nodes", 200, []string{"n1 linux kernel 6.1 3 10.0.1.0/24, fd00:1::/64 yes 1.2.3 pods: tcx (3) disk is full slots: 1", "n2 windows 1 10.0.2.0/24 unknown", "n3 unknown 0 none no answer unknown unknown pod is not running unknown"}},
		{"/inexact", 200, []string{"Reports about enforcement are not available"}},
		{"/reach/bank/pay", 404, []string{"namespace &#34;bank&#34; has no pods"}},
		{"/reach?row=0", 400, []string{"parameter &#34;row&#34;: &#34;0&#34;: give a number from 1"}},
		{"/reach?find=a", 400, []string{"parameter &#34;find&#34;: this page has rows, columns"}},
		{"/reach?port=1&port=2", 400, []string{"give it once"}},
		{"/reach?port=x", 400, []string{"give a number from 1 to 65535"}},
		{"/reach?protocol=what", 400, []string{"protocol &#34;what&#34;: want TCP"}},
		{"/reach?rows=" + strings.Repeat("x", 601), 400, []string{"give at most 600 bytes"}},
		{"/?%zz", 400, []string{"not valid behind the question mark"}},
		{"/static/style.css", 200, nil},
		{"/unknown", 404, nil},
		{"/static/../templates.html", 307, nil},
		{"/templates.html", 404, nil},
	} {
		w := get(h, "/secret"+c.address)
		if w.Code != c.status {
			t.Errorf("%s: status %d, want %d", c.address, w.Code, c.status)
		}
		for _, want := range c.want {
			if !strings.Contains(text(w), want) {
				t.Errorf("%s: no %q in\n%s", c.address, want, text(w))
			}
		}
	}
}

// The form names ends as isthmusctl explain does: it says that the other family of addresses has another verdict, and refuses a pod
// that has finished.
func TestExplainedEnds(t *testing.T) {
	h := newHandler(t, read(t, manifests.File{Name: "shop.yaml", Data: []byte(shop + `
---
{apiVersion: v1, kind: Pod, metadata: {name: job, namespace: shop}, spec: {nodeName: n1, containers: [{name: c, image: i}]}, status: {phase: Succeeded, podIP: 10.0.1.3, podIPs: [{ip: 10.0.1.3}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: four, namespace: pay}, spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.1.2/32}}], ports: [{port: 90}]}]}}
`)}), nil)
	const other = "Note: from fd00:1::2 to fd00:1::4 the verdict is deny"
	for _, c := range []struct {
		query  string
		status int
		want   string
		noted  bool
	}{
		{"from=shop/web-7d-a&to=pay/api-0&port=90", 200, "Allowed:", true},
		{"from=shop/web-7d-a&to=pay/api-0&port=80", 200, "Allowed:", false},
		{"from=shop/job&to=pay/api-0&port=80", 400, "from: pod shop/job has finished", false},
		{"from=pay/api-0&to=shop/job&port=80", 400, "to: pod shop/job has finished", false},
	} {
		w := get(h, "/secret/explain?"+c.query)
		if got := text(w); w.Code != c.status || !strings.Contains(got, c.want) || strings.Contains(got, other) != c.noted {
			t.Errorf("%s: %d %s, want %d, %q and the note %t", c.query, w.Code, got, c.status, c.want, c.noted)
		}
	}
	var asked []model.Flow
	h = newHandler(t, readShop(t), func(c *Config) { // nodes that deny everything, other than the policies
		c.Explain = func(_ context.Context, _ *Cluster, f model.Flow) (*explain.Report, error) {
			asked = append(asked, f)
			return &explain.Report{Verdict: model.Deny.String()}, nil
		}
	})
	if got := text(get(h, "/secret/explain?from=shop/web-7d-a&to=pay/api-0&port=80")); strings.Contains(got, "the verdict is") || len(asked) != 2 {
		t.Errorf("nodes that deny both families were asked %v: %s", asked, got)
	}
}

// Each link of a page leads to a page.
func TestLinks(t *testing.T) {
	h := newHandler(t, readShop(t), nil)
	seen, todo := map[string]bool{"/secret/": true}, []string{"/secret/"}
	href := regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	for len(todo) > 0 && len(seen) < 500 {
		at := todo[0]
		todo = todo[1:]
		w := get(h, at)
		if w.Code != http.StatusOK {
			t.Errorf("%s: status %d: %s", at, w.Code, text(w))
		}
		here, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range href.FindAllStringSubmatch(w.Body.String(), -1) {
			to, err := here.Parse(strings.ReplaceAll(m[1], "&amp;", "&"))
			if err != nil {
				t.Fatal(err)
			}
			to.Fragment = ""
			if !seen[to.String()] {
				seen[to.String()] = true
				todo = append(todo, to.String())
			}
		}
	}
	for _, want := range []string{"/secret/reach/shop/pay", "/secret/policies/NetworkPolicy/pay/api", "/secret/reach/shop/pay/pods?from=Pod%2Ftools&to=StatefulSet%2Fapi", "/secret/explain?from=shop%2Ftools&port=8080&protocol=TCP&to=pay%2Fapi-0"} {
		if !seen[want] {
			t.Errorf("no link leads to %s", want)
		}
	}
}

func TestRequestsOfOthers(t *testing.T) {
	h := newHandler(t, readShop(t), nil)
	for _, c := range []struct {
		name, address string
		header        []string
		status        int
	}{
		{"this machine", "/secret/reach", []string{"Host", "localhost:8080"}, 200},
		{"a name that another site made lead here", "/secret/reach", []string{"Host", "evil.example:8080"}, 421},
		{"IPv6", "/secret/reach", []string{"Host", "[::1]:8080"}, 421},
		{"without the token", "/reach", nil, 404},
		{"with another token", "/secres/reach", nil, 404},
		{"a picture of another site", "/secret/reach", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}, 403},
		{"a link of another site", "/secret/reach", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 200},
	} {
		w := get(h, c.address, c.header...)
		if w.Code != c.status {
			t.Errorf("%s: status %d, want %d", c.name, w.Code, c.status)
		}
		for name, part := range map[string]string{"Content-Security-Policy": "default-src 'self'; ", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
			"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"} {
			if !strings.Contains(w.Header().Get(name), part) {
				t.Errorf("%s: %s is %q", c.name, name, w.Header().Get(name))
			}
		}
		if len(w.Header()["Set-Cookie"]) > 0 {
			t.Errorf("%s: a cookie", c.name)
		}
	}
	r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/secret/reach", nil)
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: status %d", w.Code)
	}
}

// Texts of objects and of requests stay texts.
func TestEscapes(t *testing.T) {
	const script = `<script>alert(1)</script>`
	c := readShop(t)
	c.Source, c.Remarks, c.Stale = script, []string{script}, script
	c.Places = map[string]model.Place{"NetworkPolicy pay/api": {File: script}}
	h := newHandler(t, c, func(config *Config) {
		config.Agents = func(context.Context) (map[string]Agent, error) {
			return map[string]Agent{script: {Ready: true, Version: script, Problems: []string{script}}}, nil
		}
		config.Usage = func(context.Context, string) (*usage.Total, error) {
			return &usage.Total{Systems: []usage.System{{OS: model.OS(script)}, {OS: model.Linux, Counted: 1, Missing: []usage.Missing{{Node: script, Why: script}}}}}, nil
		}
		config.Inexact = func(context.Context, *Cluster) ([]lint.Construct, error) {
			return []lint.Construct{{Policy: script, Construct: script, On: []lint.Exactness{{Platform: script, Reason: `" onload="` + script}}}}, nil
		}
		config.Enforced = func(*model.Snapshot, model.Flow) explain.Enforced {
			return func(*model.Pod, model.Direction, netip.Addr) []explain.Enforcement {
				return []explain.Enforcement{{Platform: script, Reasons: []string{script}}}
			}
		}
	})
	attack := url.QueryEscape(`"><script>alert(1)</script>`)
	waitFor(t, func() bool { return strings.Contains(get(h, "/secret/inexact").Body.String(), "onload") })
	for _, address := range []string{"/", "/reach?rows=" + attack, "/reach?port=" + attack, "/reach/" + url.PathEscape(`"><script>alert(1)<`) + "/pay", "/explain?from=" + attack + "&to=" + attack,
		"/explain?from=shop/tools&to=pay/api-0&port=80", "/policies?find=" + attack, "/policies?namespace=" + attack, "/policies/" + attack + "/a", "/policies/NetworkPolicy/pay/api", "/policies", "/nodes", "/inexact", "/" + attack} {
		body := get(h, "/secret"+address).Body.String()
		if strings.Contains(body, "<script") || strings.Contains(body, `" onload="`) {
			t.Errorf("%s: %s", address, body)
		}
	}
}

// waitFor polls until a condition holds.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not happen within 20 seconds")
		}
	}
}

// Slow parts are computed once for a cluster, in the background, and again for the next cluster.
func TestInexact(t *testing.T) {
	now, calls := readShop(t), make(chan *Cluster, 10)
	proceed := make(chan error)
	h := newHandler(t, nil, func(c *Config) {
		c.Cluster = func() *Cluster { return now }
		c.Inexact = func(_ context.Context, c *Cluster) ([]lint.Construct, error) {
			calls <- c
			return []lint.Construct{{Policy: "NetworkPolicy pay/api", Construct: "port range", On: []lint.Exactness{{Platform: "hns", Result: "refused", Reason: "no ranges"}}},
				{Policy: "NetworkPolicy pay/exact", On: []lint.Exactness{{Platform: "hns", Result: "exact"}}}}, <-proceed
		}
	})
	for range 3 {
		if w := get(h, "/secret/inexact"); w.Header().Get("Refresh") != "3" || !strings.Contains(text(w), "This is being computed") {
			t.Fatalf("before the answer: %s", text(w))
		}
	}
	proceed <- nil
	waitFor(t, func() bool { return strings.Contains(text(get(h, "/secret/inexact")), "hns refused: no ranges") })
	if body := text(get(h, "/secret/inexact")); strings.Contains(body, "pay/exact") || len(calls) != 1 {
		t.Errorf("%d computations: %s", len(calls), body)
	}
	if body := text(get(h, "/secret/inexact?find=other")); !strings.Contains(body, "No such policy") {
		t.Errorf("filtered: %s", body)
	}
	now = readShop(t)
	if body := text(get(h, "/secret/inexact")); !strings.Contains(body, "This is about the cluster at 2027-01-15") || !strings.Contains(body, "no ranges") {
		t.Errorf("of the next cluster: %s", body)
	}
	proceed <- errors.New("out of memory")
	waitFor(t, func() bool { return strings.Contains(text(get(h, "/secret/inexact")), "No answer: out of memory") })
	if len(calls) != 2 {
		t.Errorf("%d computations, want 2", len(calls))
	}
}

// A page about 10,000 pods has less than 80 KB, also with the longest names, and is computed in time.
func TestSizes(t *testing.T) {
	const most = 80_000
	h := newHandler(t, large(t), nil)
	began := time.Now()
	h.Prepare()
	t.Logf("prepared in %s", time.Since(began))
	for _, address := range []string{"/", "/reach", "/reach?port=80", "/reach?row=3&column=4", "/reach/ns-1/ns-2", "/reach/ns-1/ns-2/pods?from=Pod%2Fpod-60&to=Pod%2Fpod-101",
		"/policies", "/policies?part=20", "/nodes", "/explain?from=ns-1/pod-60&to=ns-2/pod-101&port=80"} {
		began := time.Now()
		w := get(h, "/secret"+address)
		t.Logf("%-40s %6d bytes in %s", address, w.Body.Len(), time.Since(began).Round(time.Millisecond))
		if w.Code != http.StatusOK || w.Body.Len() > most {
			t.Errorf("%s: status %d, %d bytes, want at most %d", address, w.Code, w.Body.Len(), most)
		}
	}

	var b strings.Builder
	long := strings.Repeat("x", 60)
	for i := range 40 {
		b.WriteString("---\n{apiVersion: v1, kind: Pod, metadata: {name: " + strings.Repeat("y", 250) + string(rune('a'+i%26)) + string(rune('a'+i/26)) + ", namespace: " + long + string(rune('a'+i%26)) + string(rune('a'+i/26)) +
			"}, spec: {nodeName: n1, containers: [{name: c, image: i}]}, status: {podIP: 10.0.1." + string(rune('0'+i/10)) + string(rune('0'+i%10)) + "}}\n")
	}
	text := strings.ReplaceAll(b.String(), "10.0.1.0", "10.0.1.")
	h = newHandler(t, read(t, manifests.File{Name: "long.yaml", Data: []byte(text)}), nil)
	for _, address := range []string{"/reach", "/reach/" + long + "aa/" + long + "aa"} {
		if w := get(h, "/secret"+address); w.Code != http.StatusOK || w.Body.Len() > most {
			t.Errorf("%s: status %d, %d bytes, want at most %d", address, w.Code, w.Body.Len(), most)
		}
	}
}
