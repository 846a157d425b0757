// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/hubble/explainer"
	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/common/relay/redact"
)

// three nodes: web and tools of shop are on n1, api of shop and vault of pay on n2, ledger of pay on n3.
const three = `
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDRs: [10.0.1.0/24]}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDRs: [10.0.2.0/24]}, status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n3}, spec: {podCIDRs: [10.0.3.0/24]}, status: {addresses: [{type: InternalIP, address: 192.0.2.3}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {nodeName: n1, containers: [{name: c, image: i}]}, status: {podIP: 10.0.1.2, podIPs: [{ip: 10.0.1.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: agent, namespace: shop}, spec: {hostNetwork: true, nodeName: n1, containers: [{name: c, image: i}]}, status: {podIP: 192.0.2.1, podIPs: [{ip: 192.0.2.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: api, namespace: shop, labels: {app: api}}, spec: {nodeName: n2, containers: [{name: c, image: i}]}, status: {podIP: 10.0.2.2, podIPs: [{ip: 10.0.2.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: vault, namespace: pay, labels: {app: vault, secret: label}}, spec: {nodeName: n2, containers: [{name: c, image: i, ports: [{name: http, containerPort: 8080}]}]}, status: {podIP: 10.0.2.3, podIPs: [{ip: 10.0.2.3}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: ledger, namespace: pay}, spec: {nodeName: n3, containers: [{name: c, image: i}]}, status: {podIP: 10.0.3.2, podIPs: [{ip: 10.0.3.2}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: api, namespace: shop}, spec: {podSelector: {matchLabels: {app: api}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 80}]}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: secret, namespace: pay}, spec: {podSelector: {}, ingress: []}}
---
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: audit}, spec: {tier: Admin, priority: 7, subject: {namespaces: {}}, ingress: [{action: Accept, from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: auditors}}}]}]}}
`

func readThree(t *testing.T) *model.Snapshot {
	t.Helper()
	return readManifest(t, three)
}

func readManifest(t *testing.T, text string) *model.Snapshot {
	t.Helper()
	o, warnings, errs := manifests.Reading{Limits: manifests.DefaultLimits()}.ParseFiles([]manifests.File{{Name: "three.yaml", Data: []byte(text)}})
	if len(errs) > 0 || len(warnings) > 0 {
		t.Fatal(errs, warnings)
	}
	return o.Snapshot()
}

// explaining is an agent whose data path holds what the compiler makes of its objects.
type explaining struct {
	name, address string
	known         atomic.Pointer[model.Snapshot]
	// damaged makes the data path allow everything. asked counts readings of it.
	damaged atomic.Bool
	asked   atomic.Int32
	stop    func()
	// change edits its report; it may be nil.
	change func(*inspect.Bundle)
}

func newExplaining(t *testing.T, dir, name string, s *model.Snapshot) *explaining {
	a := &explaining{name: name, address: filepath.Join(dir, name)}
	a.known.Store(s)
	store := observe.NewStore(observe.Config{Keep: 64}, quietLog, a.known.Load)
	h, err := hubble.New(hubble.Config{Node: name, Version: "1", History: 64, Source: func() (*observe.Store, error) { return store, nil }, Snapshot: a.known.Load,
		Beside: explainer.New(explainer.Config{Snapshot: a.known.Load, Dump: a.dump, Brief: a.brief}).Register}, quietLog)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", a.address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Serve(ctx, hubble.Listener{Listener: l}) }()
	stopped := false
	a.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(a.stop)
	return a
}

// dump reads the node back.
func (a *explaining) dump(context.Context) (*inspect.Bundle, error) {
	a.asked.Add(1)
	s := a.known.Load()
	if s == nil {
		return nil, errors.New("no objects")
	}
	b := &inspect.Bundle{About: inspect.About{Node: a.name, Platform: "kernel of " + a.name}, Cluster: inspect.MakeCluster(s)}
	local := make(map[model.EndpointID]compile.Endpoint)
	for id, pod := range s.Pods.All() {
		if pod.Node == a.name && pod.Policed() {
			e := inspect.Endpoint{ID: model.EndpointID(id.Name + ":eth0"), Pod: id, Table: "1"}
			b.Endpoints = append(b.Endpoints, e)
			local[e.ID] = compile.Endpoint{Pod: id, IPs: pod.IPs}
		}
	}
	if a.damaged.Load() {
		o := b.Cluster.Objects()
		o.Policies = nil
		s = o.Snapshot()
		b.Drift = []inspect.Drift{{Object: "rows", Detail: "row 3 of " + a.name}}
	}
	state, _ := compile.Once(compile.Input{Snapshot: s, Node: a.name, Endpoints: local})
	b.Installed = &inspect.Installed{State: state}
	return b, nil
}

// brief describes the node, whose policies have decided: rule 0 of shop/api allowed 7 flows, and its isolation denied 5.
func (a *explaining) brief(context.Context) *inspect.Bundle {
	s := a.known.Load()
	b := &inspect.Bundle{About: inspect.About{Node: a.name, Version: "v1 of " + a.name, OS: model.Linux, Platform: "kernel of " + a.name, Ready: true, Modes: []string{"pods: tcx (2)"},
		Problems: []string{"disk of " + a.name + " is full"}, Repairs: []string{"rows: 3 of " + a.name}}, Cluster: inspect.Cluster{Policies: s.SortedPolicies()}}
	for id, pod := range s.Pods.All() {
		if pod.Node != a.name || !pod.Policed() {
			continue
		}
		e := inspect.Endpoint{Pod: id}
		for _, p := range s.SortedPolicies() {
			if p.Subject.MatchesNamespace(s.Namespace(pod.Namespace)) && p.Subject.Pods.Matches(pod.Labels) {
				e.Policies = append(e.Policies, p.Origin)
			}
		}
		b.Endpoints = append(b.Endpoints, e)
	}
	api := model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "api"}
	count := func(o model.Origin, reason model.Reason, v model.Verdict, flows uint64) inspect.Count {
		return inspect.Count{Decision: model.Decision{Verdict: v, Cause: &model.Cause{Reason: reason, Origin: o, Tier: model.TierNetworkPolicy}}, Flows: flows}
	}
	b.Counts = &inspect.Counts{Others: [2][2]uint64{{2, 1}, {0, 0}}, Causes: []inspect.Count{count(api, model.ReasonRule, model.Allow, 7), count(api, model.ReasonIsolated, model.Deny, 5),
		count(model.Origin{}, model.ReasonDefault, model.Allow, 11)}}
	b.About.Unsupported = []model.Unsupported{{Policy: api, Construct: "SCTP", OS: model.Linux, Platform: "kernel of " + a.name, Reason: "reason of " + a.name}}
	if a.change != nil {
		a.change(b)
	}
	return b
}

// explainingRelay is a relay over n1 and n2, whose objects are known. Node n3 has no port.
func explainingRelay(t *testing.T, checker *access.Checker) (*Relay, *explaining, *explaining) {
	t.Helper()
	return relayOver(t, checker, readThree(t))
}

// relayOver is explainingRelay with other objects of the same nodes.
func relayOver(t *testing.T, checker *access.Checker, s *model.Snapshot) (*Relay, *explaining, *explaining) {
	t.Helper()
	dir := t.TempDir()
	n1, n2 := newExplaining(t, dir, "n1", s), newExplaining(t, dir, "n2", s)
	pool := NewPool(nil, quietLog)
	t.Cleanup(pool.Close)
	if err := pool.Set(map[string]string{"n1": "unix://" + n1.address, "n2": "unix://" + n2.address, "n3": ""}); err != nil {
		t.Fatal(err)
	}
	r := New(pool, checker, "1", quietLog)
	if err := r.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r, n1, n2
}

// with returns the context of a call with a token.
func with(ctx context.Context, token string) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+token))
}

func tcp(src, dst string, port uint16) model.Flow {
	return model.Flow{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Protocol: model.TCP, Port: port}
}

// shows returns the sides of a report: direction, verdict, the platform that answers, its verdict and whether that is exact.
func shows(x *explain.Report) string {
	var all []string
	for _, s := range x.Sides {
		line := s.Direction + " " + s.Decision.Verdict + " on " + s.Node
		for _, e := range s.Enforced {
			line += fmt.Sprintf(" (%s: %s %t)", e.Platform, e.Verdict, e.Exact)
		}
		all = append(all, line)
	}
	return x.Verdict + ": " + strings.Join(all, "; ")
}

// The node of each end answers. One that does not is named, and drift of one shows.
func TestExplain(t *testing.T) {
	r, n1, n2 := explainingRelay(t, nil)
	for name, c := range map[string]struct {
		flow model.Flow
		want string
		note string
	}{
		"two nodes": {tcp("10.0.1.2", "10.0.2.2", 80), "allow: egress allow on n1 (kernel of n1: allow true); ingress allow on n2 (kernel of n2: allow true)", ""},
		"denied":    {tcp("10.0.1.2", "10.0.2.2", 81), "deny: egress allow on n1 (kernel of n1: allow true); ingress deny on n2 (kernel of n2: deny true)", ""},
		"one node":  {tcp("10.0.2.3", "10.0.2.2", 80), "deny: egress allow on n2 (kernel of n2: allow true); ingress deny on n2 (kernel of n2: deny true)", ""},
		"to world":  {tcp("10.0.1.2", "203.0.113.1", 80), "allow: egress allow on n1 (kernel of n1: allow true)", ""},
		"down":      {tcp("10.0.1.2", "10.0.3.2", 80), "deny: egress allow on n1 (kernel of n1: allow true); ingress deny on n3", "node n3 does not answer: this is what the policies say"},
	} {
		x, err := r.Explain(t.Context(), r.Objects().Snapshot, c.flow)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if text, _ := json.Marshal(x); shows(x) != c.want || !strings.Contains(string(text), c.note) {
			t.Errorf("%s: %s, want %s and %q in\n%s", name, shows(x), c.want, c.note, text)
		}
	}
	if a, b := n1.asked.Load(), n2.asked.Load(); a == 0 || b == 0 {
		t.Errorf("n1 was read %d times, n2 %d times", a, b)
	}
	if notes := fmt.Sprint(r.Notes(t.Context())); !strings.Contains(notes, "does not know yet which nodes answer") {
		t.Error(notes)
	}
	r.check(t.Context())
	if notes := fmt.Sprint(r.Notes(t.Context())); !strings.Contains(notes, "1 of 3 nodes do not answer, so that what they enforce is not known: n3") || !strings.Contains(notes, "knew at ") {
		t.Error(notes)
	}
	n2.stop()
	x, err := r.Explain(t.Context(), r.Objects().Snapshot, tcp("10.0.1.2", "10.0.2.2", 81))
	if err != nil || shows(x) != "deny: egress allow on n1 (kernel of n1: allow true); ingress deny on n2" || !strings.Contains(fmt.Sprint(x.Sides[1].Notes), "node n2 does not answer") {
		t.Errorf("%v, %v", x, err)
	}
	r.check(t.Context())
	if notes := fmt.Sprint(r.Notes(t.Context())); !strings.Contains(notes, "2 of 3 nodes do not answer, so that what they enforce is not known: n2, n3") {
		t.Error(notes)
	}
}

// A source of deny lists is denied whatever the nodes answer, and who may not read all namespaces does not see by which list.
func TestExplainDenied(t *testing.T) {
	r, _, _ := explainingRelay(t, nil)
	o := inspect.MakeCluster(r.Objects().Snapshot).Objects()
	o.DenyLists = []*model.DenyList{{Name: "scanners", Entries: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}}
	x, err := r.Explain(t.Context(), o.Snapshot(), tcp("203.0.113.1", "10.0.1.2", 80))
	if err != nil || shows(x) != "deny: ingress allow on n1 (kernel of n1: allow true)" || fmt.Sprint(x.DenyLists) != "[203.0.113.0/24 of DenyList scanners]" {
		t.Errorf("%+v, %v", x, err)
	}
	if team := redact.Report(access.Scope{Namespaces: []string{"shop"}}, x); team.Verdict != "deny" || fmt.Sprint(team.DenyLists) != "[hidden]" {
		t.Errorf("a team sees %+v", team)
	}
}

// The page shows that a node enforces something else than the policies say, and that it knows other objects.
func TestExplainDifference(t *testing.T) {
	r, _, n2 := explainingRelay(t, nil)
	n2.damaged.Store(true)
	x, err := r.Explain(t.Context(), r.Objects().Snapshot, tcp("10.0.1.2", "10.0.2.2", 81))
	if err != nil || !strings.HasSuffix(shows(x), "ingress deny on n2 (kernel of n2: allow false)") || !strings.Contains(fmt.Sprint(x.Sides[1].Enforced), "rows: row 3 of n2") {
		t.Errorf("drift: %+v, %v", x, err)
	}
	r, _, n2 = explainingRelay(t, nil)
	known := r.Objects().Snapshot
	newer := inspect.MakeCluster(known).Objects()
	newer.Policies = nil
	n2.known.Store(newer.Snapshot())
	x, err = r.Explain(t.Context(), known, tcp("10.0.1.2", "10.0.2.2", 81))
	if err != nil || x.Verdict != "allow" || !strings.Contains(fmt.Sprint(x.Sides[1].Notes), "node n2 knows other objects than those of this page, by which the verdict is deny") {
		t.Errorf("other objects: %s, %+v, %v", shows(x), x, err)
	}
}

// Objects come from an agent that answers. They are sent again only when they change, and are marked if they are stale.
func TestRefresh(t *testing.T) {
	r, n1, n2 := explainingRelay(t, nil)
	first := r.Objects()
	again := func() {
		t.Helper()
		r.objects.checked.Store(nil)
		if err := r.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if again(); r.Objects() != first {
		t.Error("the same objects are read again")
	}
	byName := map[string]*explaining{"n1": n1, "n2": n2}
	newer := inspect.MakeCluster(first.Snapshot).Objects()
	newer.Policies = nil
	one := byName[*r.objects.node.Load()]
	one.known.Store(newer.Snapshot())
	if again(); r.Objects().Snapshot.Policies.Len() != 0 {
		t.Error("new objects are not read")
	}
	one.stop()
	if again(); r.Objects().Snapshot.Policies.Len() != 3 || *r.objects.node.Load() == one.name {
		t.Error("the other agent is not asked")
	}
	byName[*r.objects.node.Load()].stop()
	if again(); r.Objects() == nil || !strings.Contains(r.Objects().Stale, "no agent gives newer objects") {
		t.Errorf("%+v", r.Objects())
	}
	empty := New(NewPool(nil, quietLog), nil, "1", quietLog)
	if err := empty.Refresh(t.Context()); status.Code(err) != codes.Unavailable || empty.Objects() != nil {
		t.Errorf("without agents: %v", err)
	}
}

// A client reads explanations between pods of its namespaces and to the world. Refusals are the same for what exists and
// what does not.
func TestExplainAccess(t *testing.T) {
	by := &authority{}
	r, _, _ := explainingRelay(t, access.NewChecker(by, nil))
	s := r.Objects().Snapshot
	shop, admin := with(t.Context(), "shop"), with(t.Context(), "admin")
	const all = `user "shop" may not get flows.inspect.isthmus.dev in all namespaces`
	const pay = `user "shop" may not get flows.inspect.isthmus.dev in namespace pay`
	for _, c := range []struct{ from, to, want string }{
		{"shop/web", "shop/api", ""},
		{"shop/web", "shop/none", ""}, // the page says that there is none
		{"shop/web@10.0.1.2", "10.0.2.2", ""},
		{"shop/web", "203.0.113.1", ""},
		{"shop/web", "pay/vault", pay},
		{"shop/web", "pay/none", pay},
		{"pay/vault@10.0.2.3", "shop/web", pay},
		{"shop/web", "none/none", `in namespace none`},
		{"shop/web", "10.0.2.3", all},
		{"shop/web", "10.0.2.99", all}, // an address of no pod, in the range of a node
		{"::ffff:10.0.2.3", "shop/web", all},
		{"shop/web", "ip:10.0.2.3", all},
		{"shop/web", "192.0.2.2", all},
		{"shop/web", "shop/agent", all}, // in the network of its node
		{"node:n1", "shop/web", all},
		{"node:none", "shop/web", all},
		{"shop/web", "PAY/vault", "not the name of a namespace"},
		{"shop/web", "", ""},
	} {
		if err := r.AllowEnds(shop, s, c.from, c.to); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s to %s: %v, want %q", c.from, c.to, err, c.want)
		}
		if err := r.AllowEnds(admin, s, c.from, c.to); err != nil {
			t.Errorf("admin, %s to %s: %v", c.from, c.to, err)
		}
	}
	for name, ctx := range map[string]context.Context{"no token": t.Context(), "other token": with(t.Context(), "x")} {
		if err := r.AllowEnds(ctx, nil); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v", name, err)
		}
		if err := r.AllowNamespaces(ctx, "shop"); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v", name, err)
		}
		if x, err := r.Explain(ctx, s, tcp("10.0.1.2", "10.0.2.2", 80)); status.Code(err) != codes.Unauthenticated || x != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, f := range []model.Flow{tcp("10.0.1.2", "10.0.2.3", 80), tcp("10.0.2.3", "10.0.1.2", 80), tcp("10.0.1.2", "10.0.2.99", 80), tcp("192.0.2.1", "10.0.1.2", 80)} {
		if x, err := r.Explain(shop, s, f); status.Code(err) != codes.PermissionDenied || x != nil || !strings.Contains(err.Error(), all) {
			t.Errorf("%v: %v", f, err)
		}
	}
	if err := r.AllowNamespaces(shop, "shop", "shop"); err != nil {
		t.Error(err)
	}
	for _, names := range [][]string{nil, {"shop", "pay"}} {
		if err := r.AllowNamespaces(shop, names...); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%v: %v", names, err)
		}
	}
	by.down.Store(true)
	late := New(r.pool, access.NewChecker(by, nil), "1", quietLog)
	if err := late.AllowEnds(shop, s, "shop/web", "10.0.2.3"); status.Code(err) != codes.Unavailable {
		t.Errorf("without an API server: %v", err)
	}
}

// What a client of one namespace reads names no node, no policy of the cluster that does not decide, and no other namespace.
func TestExplainLeaks(t *testing.T) {
	r, _, n2 := explainingRelay(t, access.NewChecker(&authority{}, nil))
	n2.damaged.Store(true)
	shop := with(t.Context(), "shop")
	for _, f := range []model.Flow{tcp("10.0.1.2", "10.0.2.2", 80), tcp("10.0.1.2", "10.0.2.2", 81), tcp("10.0.1.2", "203.0.113.1", 80), tcp("203.0.113.1", "10.0.2.2", 81)} {
		x, err := r.Explain(shop, r.Objects().Snapshot, f)
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := json.Marshal(x)
		for _, secret := range []string{"n1", "n2", "kernel", "row 3", "audit", "pay", "vault", "192.0.2."} {
			if strings.Contains(string(raw), secret) {
				t.Errorf("%v: %q in\n%s", f, secret, raw)
			}
		}
	}
	x, err := r.Explain(shop, r.Objects().Snapshot, tcp("10.0.1.2", "10.0.2.2", 81))
	if err != nil || !strings.Contains(fmt.Sprint(x.Sides[1].Notes), "of policies of the cluster are hidden") || len(x.Sides[1].Changes) == 0 || x.Sides[1].Enforced[0].Exact {
		t.Errorf("%+v, %v", x, err)
	}
	r.check(t.Context())
	if notes := fmt.Sprint(r.Notes(shop)); notes != "[Nodes that do not answer, so that what they enforce is not known: 1]" {
		t.Error(notes)
	}
}

// An agent that answers about other pods than its own is not believed, and one that never answers does not hang the page.
func TestExplainOtherPods(t *testing.T) {
	r, _, _ := explainingRelay(t, nil)
	x := explain.Side{Direction: "ingress", Pod: "shop/web", Node: "n1", Decision: explain.Decision{Verdict: "allow"}}
	if got := r.side(t.Context(), explain.Side{Direction: "egress", Pod: "shop/web", Node: "n2"}, tcp("10.0.1.2", "10.0.2.2", 80), true); len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "does not know the pod") {
		t.Errorf("%+v", got)
	}
	if got := r.side(t.Context(), x, tcp("10.0.2.2", "10.0.3.2", 80), true); len(got.Notes) != 1 {
		t.Errorf("%+v", got)
	}
	hung, err := net.Listen("unix", filepath.Join(t.TempDir(), "hung"))
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	if err := r.pool.Set(map[string]string{"n1": "unix://" + hung.Addr().String()}); err != nil {
		t.Fatal(err)
	}
	r.check(t.Context())
	began := time.Now()
	for range 10 {
		if notes := fmt.Sprint(r.Notes(t.Context())); !strings.Contains(notes, "1 of 1 nodes do not answer") {
			t.Error(notes)
		}
	}
	if took := time.Since(began); took >= statusTimeout {
		t.Errorf("notes of 10 pages took %s with a hung node", took)
	}
	began = time.Now()
	r.objects.checked.Store(nil)
	if err := r.Refresh(t.Context()); err != nil || r.Objects().Stale == "" {
		t.Errorf("%v", err)
	}
	if got := r.side(t.Context(), x, tcp("10.0.1.2", "10.0.2.2", 80), true); len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "node n1 does not answer") {
		t.Errorf("%+v", got)
	}
	if took := time.Since(began); took > 60*time.Second {
		t.Errorf("it took %s", took)
	}
}
