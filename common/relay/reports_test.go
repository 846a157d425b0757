// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/analysis/usage"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/relay/web"
)

// expire makes the reports old, so that the next reader waits for new ones.
func (r *Relay) expire() {
	r.reports.mutex.Lock()
	defer r.reports.mutex.Unlock()
	if r.reports.newest != nil {
		old := *r.reports.newest
		old.at = time.Time{}
		r.reports.newest = &old
	}
}

// Reports of the nodes are added up, and a node that does not answer is missing. Readers share them.
func TestReports(t *testing.T) {
	r, _, n2 := explainingRelay(t, nil)
	total, err := r.Usage(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	linux := &total.Systems[0]
	if api := total.Policies["NetworkPolicy shop/api"]; api == nil || api.Flows != (usage.Number{Nodes: 1, Allowed: 7, Denied: 5}) || api.Pods != 1 || linux.OS != model.Linux || linux.Counted != 2 || linux.Denied != 4 ||
		linux.Rest.Default != 22 || total.Policies["NetworkPolicy pay/secret"] == nil || len(total.Inexact) != 1 || len(total.Inexact[0].On) != 2 {
		t.Errorf("%+v, %+v", total, total.Systems)
	}
	if x := total.Systems[1]; x.OS != usage.Unknown || x.Nodes != 1 || len(x.Missing) != 1 || x.Missing[0].Node != "n3" || !strings.Contains(x.Missing[0].Why, "serves no port") {
		t.Errorf("%+v", x)
	}
	agents, err := r.Agents(t.Context())
	if a := agents["n1"]; err != nil || len(agents) != 3 || !a.Ready || a.Version != "v1 of n1" || a.Platform != "kernel of n1" || a.Endpoints != 1 || fmt.Sprint(a.Modes, a.Problems, a.Repairs) != "[pods: tcx (2)] [disk of n1 is full] [rows: 3 of n1]" {
		t.Errorf("%+v, %v", agents, err)
	}
	if agents["n3"].Error == "" {
		t.Error("n3 answers")
	}
	if again, err := r.Usage(t.Context(), ""); err != nil || again != total {
		t.Errorf("reports are read again: %v", err)
	}
	n2.stop()
	r.expire()
	if total, err = r.Usage(t.Context(), ""); err != nil || total.Systems[0].Counted != 1 || total.Policies["NetworkPolicy shop/api"] != nil || len(total.Systems[len(total.Systems)-1].Missing)+len(total.Systems[0].Missing) != 2 {
		t.Errorf("n2 is down: %+v, %v", total, err)
	}
}

// Data of nodes need the right to them; numbers of all policies need that for all namespaces. A team sees its own policies.
func TestReportsAccess(t *testing.T) {
	by := &authority{}
	r, _, _ := explainingRelay(t, access.NewChecker(by, nil))
	shop, admin := with(t.Context(), "shop"), with(t.Context(), "admin")
	for name, call := range map[string]func(context.Context) error{
		"nodes":  func(ctx context.Context) error { _, err := r.Agents(ctx); return err },
		"may":    r.AllowNodes,
		"all":    func(ctx context.Context) error { _, err := r.Usage(ctx, ""); return err },
		"others": func(ctx context.Context) error { _, err := r.Usage(ctx, "pay"); return err },
	} {
		if err := call(shop); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s, a team: %v", name, err)
		}
		if err := call(t.Context()); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s, no token: %v", name, err)
		}
		if err := call(admin); err != nil {
			t.Errorf("%s, an administrator: %v", name, err)
		}
	}
	total, err := r.Usage(shop, "shop")
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := json.Marshal(total)
	for _, secret := range []string{"n1", "n2", "n3", "kernel", "reason of", "pay", "secret", "audit", "serves no port"} {
		if bytes.Contains(raw, []byte(secret)) {
			t.Errorf("%q in %s", secret, raw)
		}
	}
	if total.Policies["NetworkPolicy shop/api"].Flows.Allowed != 7 || total.Inexact[0].On[0].Count != 2 || len(total.Systems[1].Missing) != 1 {
		t.Errorf("%s", raw)
	}
	by.down.Store(true)
	late := New(r.pool, access.NewChecker(by, nil), "1", quietLog)
	if _, err := late.Usage(shop, "shop"); status.Code(err) != codes.Unavailable {
		t.Errorf("without an API server: %v", err)
	}
}

// wrong is an agent whose reports cannot be used.
type wrong struct {
	isthmusv1.UnimplementedExplainServer
	data []byte
	hang bool
}

func (w *wrong) GetReport(_ *isthmusv1.GetReportRequest, s grpc.ServerStreamingServer[isthmusv1.GetReportResponse]) error {
	if w.hang {
		<-s.Context().Done()
		return status.FromContextError(s.Context().Err()).Err()
	}
	for n := 0; n < len(w.data); n += 64 << 10 {
		if err := s.Send(&isthmusv1.GetReportResponse{Data: w.data[n:min(n+64<<10, len(w.data))]}); err != nil {
			return err
		}
	}
	return nil
}

// An agent that is older, hangs, or reports what cannot be used is missing with the reason. It spoils no other.
func TestWrongReports(t *testing.T) {
	dir := t.TempDir()
	serve := func(name string, service isthmusv1.ExplainServer) string {
		l, err := net.Listen("unix", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		g := grpc.NewServer()
		isthmusv1.RegisterExplainServer(g, service)
		go func() { _ = g.Serve(l) }()
		t.Cleanup(g.Stop)
		return "unix://" + filepath.Join(dir, name)
	}
	text := func(about, more string) []byte {
		return []byte(`{"About":{"Node":"` + about + `","OS":"linux"}` + more + "}")
	}
	long := strings.Repeat("x", 3000)
	pool := NewPool(nil, quietLog)
	t.Cleanup(pool.Close)
	if err := pool.Set(map[string]string{"older": serve("older", isthmusv1.UnimplementedExplainServer{}), "other": serve("other", &wrong{data: text("n1", "")}),
		"garbage": serve("garbage", &wrong{data: []byte("{")}), "large": serve("large", &wrong{data: make([]byte, maxReport+1)}), "hangs": serve("hangs", &wrong{hang: true}),
		"good": serve("good", &wrong{data: text("good", `,"Policies":{"items":[{"policy":"`+long+`","allowed":1,"denied":1}],"unit":"new flows","uncounted":{},"notes":["`+long+`"]}`)})}); err != nil {
		t.Fatal(err)
	}
	r := New(pool, nil, "1", quietLog)
	if _, err := r.Usage(t.Context(), ""); err != nil && status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
	var total *usage.Total
	err := error(status.Error(codes.Unavailable, ""))
	for began := time.Now(); status.Code(err) == codes.Unavailable && time.Since(began) < time.Minute; {
		total, err = r.Usage(t.Context(), "")
	}
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, s := range total.Systems {
		for _, m := range s.Missing {
			got[m.Node] = m.Why
		}
	}
	// The deadline of a call ends it at the client or, a moment earlier, at the server.
	for name, want := range map[string]string{"older": "older than the relay", "other": "reports about another node", "garbage": "read the report", "large": "larger than", "hangs": "deadline|cancel"} {
		if !regexp.MustCompile(want).MatchString(strings.ToLower(got[name])) {
			t.Errorf("%s: %q", name, got[name])
		}
	}
	if len(got) != 5 || total.Systems[0].Counted != 1 || len(total.Policies) != 1 || total.Policies[long] != nil {
		t.Errorf("%v, %+v", got, total)
	}
}

var times = regexp.MustCompile(`\d\d\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d( UTC|Z)|\d\d:\d\d:\d\d UTC`)

// The pages that a team reads are the same in two clusters that differ only in what the team may not see. These are nodes, other
// namespaces, policies of the cluster that decide nothing for it, and their numbers.
func TestPagesLeakNothing(t *testing.T) {
	other := strings.NewReplacer("name: vault", "name: safe", "name: ledger", "name: book", "secret: label", "hidden: label", "10.0.2.3", "10.0.2.77", "10.0.3.2", "10.0.3.9", "name: secret, namespace: pay", "name: closed, namespace: pay",
		"name: audit", "name: scan", "auditors", "scanners", "priority: 7", "priority: 9").Replace(three)
	other += "---\n{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: more, namespace: pay}, spec: {podSelector: {}, ingress: [{}, {}]}}\n"
	server := func(manifest string, number uint64) http.Handler {
		r, n1, n2 := relayOver(t, access.NewChecker(&authority{}, nil), readManifest(t, manifest))
		for _, n := range []*explaining{n1, n2} {
			n.change = func(b *inspect.Bundle) {
				b.About.Version, b.About.Platform, b.About.Problems = fmt.Sprint("v", number), fmt.Sprint("kernel ", number), make([]string, number)
				pay := model.Origin{Kind: "NetworkPolicy", Namespace: "pay", Name: fmt.Sprint("p", number)}
				b.Counts.Causes = append(b.Counts.Causes, inspect.Count{Decision: model.Decision{Cause: &model.Cause{Reason: model.ReasonIsolated, Origin: pay}}, Flows: number},
					inspect.Count{Decision: model.Decision{Cause: &model.Cause{Reason: model.ReasonNode}}, Flows: number})
				b.Counts.Past[0][0] = number
				b.About.Unsupported[0].Reason, b.About.Unsupported[0].Platform = fmt.Sprint("because ", number), fmt.Sprint("kernel ", number)
				b.About.Unsupported = append(b.About.Unsupported, model.Unsupported{Policy: pay, Construct: fmt.Sprint("field ", number)})
			}
		}
		h, err := web.New(r, r)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	one, two := server(three, 123457), server(other, 7654)
	get := func(h http.Handler, path, token string) (int, string) {
		w, q := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
		q.Header.Set("Authorization", "Bearer "+token)
		h.ServeHTTP(w, q)
		return w.Code, times.ReplaceAllString(w.Body.String(), "TIME")
	}
	for path, code := range map[string]int{"/policies?namespace=shop": 200, "/policies/NetworkPolicy/shop/api": 200, "/inexact?namespace=shop": 200, "/reach/shop/shop": 200,
		"/explain?from=shop/web&to=shop/api&port=81": 200, "/explain?from=shop/web&to=shop/api&port=80": 200, "/explain?from=203.0.113.1&to=shop/api&port=80": 200,
		"/policies": 403, "/policies?namespace=pay": 403, "/policies?find=secret": 403, "/policies/NetworkPolicy/pay/secret": 403, "/policies/NetworkPolicy/pay/none": 403, "/policies/ClusterNetworkPolicy/audit": 403,
		"/policies/NetworkPolicy/shop/none": 404, "/inexact": 403, "/inexact?namespace=pay": 403, "/nodes": 403, "/reach": 403, "/reach/shop/pay": 403, "/explain?from=shop/web&to=pay/vault&port=80": 403} {
		status1, body1 := get(one, path, "shop")
		status2, body2 := get(two, path, "shop")
		if status1 != code || status2 != code || body1 != body2 {
			t.Errorf("%s: status %d and %d, want %d, and the same page:\n%s\nand\n%s", path, status1, status2, code, body1, body2)
		}
		if strings.Contains(path, "namespace=pay") || strings.Contains(path, "/pay/") {
			continue // the request names it
		}
		for _, secret := range []string{"vault", "safe", "audit<", "scan", "kernel", "123457", "7654", ">n1", "of n1", "n3"} {
			if strings.Contains(body1+body2, secret) {
				t.Errorf("%s: %q in\n%s", path, secret, body1)
			}
		}
	}
	for path, want := range map[string]string{"/policies": "246914", "/policies/ClusterNetworkPolicy/audit": "priority 7", "/nodes": "disk", "/inexact": "field 123457", "/policies?namespace=shop": "7 allowed, 5 denied (1 node"} {
		if code, body := get(one, path, "admin"); code != 200 || path != "/nodes" && !strings.Contains(body, want) {
			t.Errorf("an administrator, %s: status %d, no %q in\n%s", path, code, want, body)
		}
	}
	if _, body := get(one, "/policies?namespace=shop", "shop"); !strings.Contains(body, "7 allowed, 5 denied (1 node") || !strings.Contains(body, "Not counted separately on these nodes: 2 allowed, 4 denied.") {
		t.Errorf("a team does not see its numbers:\n%s", body)
	}
}
