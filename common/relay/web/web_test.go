// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/analysis/usage"
	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	hubblerelay "github.com/isthmus-net/isthmus/common/api/hubble/relay"
	"github.com/isthmus-net/isthmus/common/httpd"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/page"
)

// relay is a relay that knows the token "Bearer admin". It keeps one flow, and sends those of its channel to followers.
type relay struct {
	mutex    sync.Mutex
	requests []*observer.GetFlowsRequest
	next     chan *observer.GetFlowsResponse
	left     chan struct{}
	cluster  *page.Cluster
	down     bool
}

func (r *relay) user(ctx context.Context) error {
	switch given := metadata.ValueFromIncomingContext(ctx, "authorization"); fmt.Sprint(given) {
	case "[Bearer admin]":
		return nil
	case "[Bearer shop]":
		return status.Error(codes.PermissionDenied, `user "shop" may not get <flows>`)
	}
	return status.Error(codes.Unauthenticated, "the token is missing or not valid")
}

func flowOf(pod, why string) *observer.GetFlowsResponse {
	return &observer.GetFlowsResponse{Time: timestamppb.New(time.Unix(1_800_000_000, 0)), NodeName: "n1", ResponseTypes: &observer.GetFlowsResponse_Flow{Flow: &flow.Flow{
		Source: &flow.Endpoint{Namespace: "shop", PodName: pod}, IP: &flow.IP{Source: "10.0.0.1", Destination: "192.0.2.1"}, Destination: &flow.Endpoint{}, Summary: why,
		L4: &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{DestinationPort: 443}}}}}}
}

func stateOf(state hubblerelay.NodeState, name string) *observer.GetFlowsResponse {
	return &observer.GetFlowsResponse{ResponseTypes: &observer.GetFlowsResponse_NodeStatus{NodeStatus: &hubblerelay.NodeStatusEvent{StateChange: state, NodeNames: []string{name}}}}
}

func lostOf(n uint64) *observer.GetFlowsResponse {
	return &observer.GetFlowsResponse{ResponseTypes: &observer.GetFlowsResponse_LostEvents{LostEvents: &flow.LostEvent{NumEventsLost: n}}}
}

// erring is the state of a node that does not report all flows.
func erring(name, why string) *observer.GetFlowsResponse {
	m := stateOf(hubblerelay.NodeState_NODE_ERROR, name)
	m.GetNodeStatus().Message = why
	return m
}

func (r *relay) GetFlows(q *observer.GetFlowsRequest, s grpc.ServerStreamingServer[observer.GetFlowsResponse]) error {
	if err := r.user(s.Context()); err != nil {
		return err
	}
	r.mutex.Lock()
	r.requests = append(r.requests, q)
	r.mutex.Unlock()
	if err := s.Send(stateOf(hubblerelay.NodeState_NODE_UNAVAILABLE, "n2")); err != nil || !q.GetFollow() {
		for i := range 12 {
			_ = s.Send(erring(fmt.Sprintf("n%d", 10+i), "--flow-events=off <b>"))
		}
		_ = s.Send(lostOf(40))
		_ = s.Send(flowOf("old", "a rule denies"))
		_ = s.Send(lostOf(2))
		return s.Send(flowOf(`"><script>alert(1)</script>`, "<script>"))
	}
	defer close(r.left)
	for {
		select {
		case m, ok := <-r.next:
			if !ok {
				return status.Error(codes.PermissionDenied, "your rights have changed: send the request again")
			}
			if err := s.Send(m); err != nil {
				return err
			}
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

func (r *relay) AllowNodes(ctx context.Context) error { return r.user(ctx) }

func (r *relay) Agents(ctx context.Context) (map[string]page.Agent, error) {
	return map[string]page.Agent{"n1": {Ready: true, OS: model.Linux, Version: "v1 <b>", Modes: []string{"pods: tcx (1)"}, Repairs: []string{"rows: 3"}}, "n2": {Error: "connection refused"}}, r.user(ctx)
}

func (r *relay) Usage(ctx context.Context, namespace string) (*usage.Total, error) {
	switch {
	case namespace == "slow":
		return nil, status.Error(codes.Unavailable, "the nodes have not answered yet")
	case namespace != "shop" || r.user(ctx) == nil:
		if err := r.user(ctx); err != nil {
			return nil, err
		}
	}
	counted := usage.Number{Nodes: 1, Allowed: 7, Denied: 42}
	return &usage.Total{Systems: []usage.System{{OS: model.Linux, Nodes: 2, Answered: 1, Counted: 1, Missing: make([]usage.Missing, 1)}},
		Policies: map[string]*usage.PolicyTotal{"NetworkPolicy pay/p": {Flows: counted}, "NetworkPolicy shop/q": {Flows: counted, Rules: []usage.RuleTotal{{Direction: "egress", Flows: counted}}}},
		Inexact:  []usage.Construct{{Policy: "NetworkPolicy shop/q", Direction: "egress", Construct: "SCTP <b>", On: []usage.Where{{OS: model.Windows, Effect: "over-blocks", Reason: "hidden", Count: 2}}}}}, nil
}

func (r *relay) AllowNamespaces(ctx context.Context, names ...string) error {
	if err := r.user(ctx); status.Code(err) != codes.PermissionDenied {
		return err
	}
	if len(names) > 0 && names[0] == "shop" && names[len(names)-1] == "shop" {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, `user "shop" may not get <flows> in %v`, names)
}

func (r *relay) AllowEnds(ctx context.Context, s *model.Snapshot, ends ...string) error {
	if err := r.user(ctx); status.Code(err) != codes.PermissionDenied || len(ends) == 0 {
		if status.Code(err) == codes.PermissionDenied {
			return nil
		}
		return err
	}
	if s == nil || strings.Contains(strings.Join(ends, " "), "pay/") {
		return status.Errorf(codes.PermissionDenied, `user "shop" may not get <flows> in pay`)
	}
	return nil
}

func (r *relay) Refresh(context.Context) error {
	if r.down {
		return status.Error(codes.Unavailable, "no agent gives the objects of the cluster")
	}
	return nil
}

func (r *relay) Objects() *page.Cluster { return r.cluster }

func (r *relay) Explain(ctx context.Context, s *model.Snapshot, f model.Flow) (*explain.Report, error) {
	if f.Port == 99 {
		return nil, status.Error(codes.PermissionDenied, "your rights have changed")
	}
	x := explain.Flow(s, f, nil, nil)
	for i := range x.Sides {
		x.Sides[i].Enforced = []explain.Enforcement{{Platform: "kernel <6.1>", Verdict: "allow", Reasons: []string{"rows: <b>row 3"}}}
	}
	return x, r.user(ctx)
}

func (r *relay) Notes(context.Context) []string {
	return []string{"1 of 3 nodes do not answer: n3<script>"}
}

// pods are web in namespace shop and vault in pay. Policy lets nothing reach pay.
func pods() *page.Cluster {
	pod := func(namespace, name, ip string) *model.Pod {
		return &model.Pod{PodID: model.PodID{Namespace: namespace, Name: name}, Node: "n1", IPs: []netip.Addr{netip.MustParseAddr(ip)}}
	}
	p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "pay", Name: "p"}, Tier: model.TierNetworkPolicy, Isolates: [2]bool{true, false}, Subject: model.PodSelector{Namespace: "pay"}}
	q := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "q"}, Tier: model.TierNetworkPolicy, Subject: model.PodSelector{Namespace: "none"}}
	q.Rules[model.Egress] = []model.Rule{{Action: model.ActionAccept}}
	return &page.Cluster{Snapshot: model.MakeSnapshot(nil, []*model.Node{{Name: "n1"}}, []*model.Pod{pod("shop", "web", "10.0.0.1"), pod("pay", "vault", "10.0.0.2")}, []*model.Policy{p, q}),
		Source: "The objects that an agent knows", At: time.Unix(1_800_000_000, 0)}
}

func newServer(t *testing.T) (*relay, *httptest.Server) {
	r := &relay{next: make(chan *observer.GetFlowsResponse), left: make(chan struct{}), cluster: pods()}
	h, err := New(r, r)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.Config.ReadTimeout, s.Config.WriteTimeout = time.Second, time.Second
	s.Start()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return r, s
}

// get requests a page with a token.
func get(t *testing.T, address, token string, header ...string) *http.Response {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		q.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		q.Header.Add(header[i], header[i+1])
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Body.Close() })
	return a
}

// asked is a request, and what the page of its answer has.
type asked struct {
	path, token string
	header      []string
	status      int
	want        []string
}

// requests are those of TestPages.
func requests() []asked {
	return []asked{
		{"/", "", nil, 401, []string{"the token is missing or not valid"}},
		{"/", "other", nil, 401, nil},
		{"/", "admin", []string{"Authorization", "Bearer admin"}, 401, nil},
		{"/", "admin", nil, 200, []string{"shop/old</td><td>192.0.2.1</td><td>TCP 443</td><td>a rule denies</td><td>n1", "these nodes are missing: n2", `<span id="shown">2</span> denied flows. Lost in that time: <span id="lost">42</span>`,
			"These nodes do not report all flows: n10, n11, n12, n13, n14, n15, n16, n17, n18, n19 and more: --flow-events=off &lt;b&gt;</p>", `data-events="/flows/events"`, "08:00:00.000", `<a href="/flows" aria-current="page">Denied flows</a>`, `<script src="/static/live.js" defer>`}},
		{"/?namespace=shop", "admin", nil, 200, []string{`data-events="/flows/events?namespace=shop"`, `value="shop"`}},
		{"/", "shop", nil, 403, []string{"user &#34;shop&#34; may not get &lt;flows&gt;", `name="namespace"`}},
		{"/?namespace=%22%3E%3Cscript%3E", "admin", nil, 400, []string{"give the name of a namespace"}},
		{"/?namespace=a&namespace=b", "admin", nil, 400, nil},
		{"/?number=1", "admin", nil, 400, []string{"parameter &#34;number&#34;"}},
		{"/?%zz", "admin", nil, 400, nil},
		{"/nodes", "admin", nil, 200, []string{">n1<", "<td>linux</td>", `<td class="all">yes`, "pods: tcx (1)", "v1 &lt;b&gt;", "rows: 3", ">n2<", "no answer", "connection refused", `<a href="/nodes" aria-current="page">`}},
		{"/nodes", "", nil, 401, nil},
		{"/nodes", "shop", nil, 403, []string{"may not get"}},
		{"/reach", "admin", nil, 200, []string{"namespaces: 2 in rows, 2 in columns", `href="reach/shop/pay">none</a>`, "The objects that an agent knows, as of", "1 of 3 nodes do not answer: n3&lt;script&gt;",
			`<a href="/reach" aria-current="page">Who reaches whom</a>`, `<a href="/nodes">Nodes</a>`}},
		{"/reach", "", nil, 401, []string{"the token is missing or not valid"}},
		{"/reach", "shop", nil, 403, []string{"may not get &lt;flows&gt; in []"}},
		{"/reach/shop/shop", "shop", nil, 200, []string{"workloads: 1 in rows", "itself"}},
		{"/reach/shop/pay", "shop", nil, 403, []string{"in [shop pay]"}},
		{"/reach/shop/pay/pods?from=Pod%2Fweb&to=Pod%2Fvault", "shop", nil, 403, nil},
		{"/reach/shop/pay/pods?from=Pod%2Fweb&to=Pod%2Fvault", "admin", nil, 200, []string{`explain?from=shop%2Fweb&amp;port=80&amp;protocol=TCP&amp;to=pay%2Fvault">none`}},
		{"/reach/Shop/pay", "admin", nil, 400, []string{"the path names two namespaces"}},
		{"/reach/a%2Fb/pay", "admin", nil, 400, []string{"the path names two namespaces"}},
		{"/reach/none/pay", "admin", nil, 404, []string{"check the spelling"}},
		{"/explain", "shop", nil, 200, []string{"An end is namespace/pod"}},
		{"/explain", "", nil, 401, nil},
		{"/explain?from=shop%2Fweb&to=pay%2Fvault&port=80", "admin", nil, 200, []string{"isolated for ingress by NetworkPolicy pay/p", "Enforced by kernel &lt;6.1&gt;", "as allow: rows: &lt;b&gt;row 3", "n3&lt;script&gt;"}},
		{"/explain?from=shop%2Fweb&to=pay%2Fvault&port=80", "shop", nil, 403, []string{"may not get &lt;flows&gt; in pay"}},
		{"/explain?from=shop%2Fweb&to=pay%2Fnone&port=80", "shop", nil, 403, []string{"may not get &lt;flows&gt; in pay"}},
		{"/explain?from=shop%2Fweb&to=pay%2Fvault&port=99", "admin", nil, 403, []string{"your rights have changed"}},
		{"/policies", "admin", nil, 200, []string{"Policies: 2", "7 allowed, 42 denied (1 node, 1 missing)", `<a href="/policies/NetworkPolicy/pay/p">`, "Linux nodes count new flows: numbers of 1 of 2 nodes"}},
		{"/policies", "", nil, 401, nil},
		{"/policies", "shop", nil, 403, []string{"may not get &lt;flows&gt; in []", `name="namespace"`}},
		{"/policies?namespace=shop", "shop", nil, 200, []string{"Policies: 1", "7 allowed, 42 denied", "Without numbers: 1 node."}},
		{"/policies?namespace=pay", "shop", nil, 403, []string{"in [pay]", `name="namespace"`}},
		{"/policies?namespace=slow", "admin", nil, 503, []string{"the nodes have not answered yet", `name="namespace"`}},
		{"/policies?namespace=shop&namespace=pay", "shop", nil, 400, []string{"give it once"}},
		{"/policies/NetworkPolicy/shop/q", "shop", nil, 200, []string{"egress rule 0", "7 allowed, 42 denied"}},
		{"/policies/NetworkPolicy/pay/p", "shop", nil, 403, nil},
		{"/policies/NetworkPolicy/pay/none", "shop", nil, 403, nil},
		{"/policies/ClusterNetworkPolicy/c", "shop", nil, 403, nil},
		{"/policies/NetworkPolicy/pay/p", "", nil, 401, nil},
		{"/inexact", "admin", nil, 200, []string{"NetworkPolicy shop/q", "SCTP &lt;b&gt;", "windows over-blocks: hidden (2 nodes)", "Reported by 1 of 2 nodes. Without a report: 1 node."}},
		{"/inexact", "shop", nil, 403, []string{`name="namespace"`}},
		{"/inexact?namespace=shop", "shop", nil, 200, []string{"SCTP &lt;b&gt;"}},
		{"/inexact?namespace=pay", "shop", nil, 403, nil},
		{"/inexact", "", nil, 401, nil},
		{"/flows/events", "", nil, 401, nil},
		{"/flows/events?namespace=A", "admin", nil, 400, nil},
		{"/static/style.css", "", nil, 200, nil},
		{"/static/live.js", "", nil, 200, nil},
		{"/templates.html", "admin", nil, 404, nil},
		{"/", "admin", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"}, 403, []string{"another site"}},
	}
}

func TestPages(t *testing.T) {
	r, s := newServer(t)
	for _, c := range requests() {
		a := get(t, s.URL+c.path, c.token, c.header...)
		body := new(strings.Builder)
		if _, err := bufio.NewReader(a.Body).WriteTo(body); err != nil {
			t.Fatal(err)
		}
		if a.StatusCode != c.status || (a.StatusCode == 401 && !strings.HasPrefix(c.path, "/flows/events")) != (a.Header.Get("WWW-Authenticate") != "") {
			t.Errorf("%s %s: status %d, want %d, %q", c.path, c.token, a.StatusCode, c.status, a.Header.Get("WWW-Authenticate"))
		}
		for _, w := range c.want {
			if !strings.Contains(body.String(), w) {
				t.Errorf("%s %s: no %q in\n%s", c.path, c.token, w, body)
			}
		}
		if a.StatusCode == 403 && strings.Contains(body.String(), "vault") {
			t.Errorf("%s %s: a refusal has a name:\n%s", c.path, c.token, body)
		}
		if strings.Contains(body.String(), "<script>") || strings.Contains(body.String(), `"><script`) {
			t.Errorf("%s: %s", c.path, body)
		}
		if a.Header.Get("X-Frame-Options") != "DENY" || !strings.HasPrefix(a.Header.Get("Content-Security-Policy"), "default-src 'self';") {
			t.Errorf("%s: headers %v", c.path, a.Header)
		}
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, q := range r.requests {
		for _, f := range q.GetWhitelist() {
			if len(f.GetVerdict()) != 1 || f.GetVerdict()[0] != flow.Verdict_DROPPED {
				t.Errorf("a request for other flows: %v", q)
			}
		}
	}
	if last := r.requests[1]; len(last.GetWhitelist()) != 2 || last.GetWhitelist()[0].GetSourcePod()[0] != "shop/" || last.GetNumber() != 100 {
		t.Errorf("the request for a namespace: %v", last)
	}
}

// Without objects there is no page about reachability or policies, and a reason. Nodes are shown.
func TestNoObjects(t *testing.T) {
	r, s := newServer(t)
	r.down, r.cluster = true, nil
	if a := get(t, s.URL+"/nodes", "admin"); a.StatusCode != http.StatusOK {
		t.Errorf("nodes: %d", a.StatusCode)
	} else if body, err := io.ReadAll(a.Body); err != nil || !strings.Contains(string(body), "connection refused") || !strings.Contains(string(body), "no agent gives the objects") {
		t.Errorf("nodes: %v\n%s", err, body)
	}
	for _, path := range []string{"/policies", "/inexact", "/reach", "/explain?from=shop%2Fweb&to=pay%2Fvault&port=80"} {
		a := get(t, s.URL+path, "admin")
		body, err := io.ReadAll(a.Body)
		if err != nil || a.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), "no agent gives the objects") {
			t.Errorf("%s: %d, %v\n%s", path, a.StatusCode, err, body)
		}
	}
}

// Events arrive while they happen, for longer than the server's limits of pages. The stream of the relay ends with the
// client, and the client learns why the relay ends a stream.
func TestEvents(t *testing.T) {
	for name, revoked := range map[string]bool{"the client goes": false, "the relay ends": true} {
		r, s := newServer(t)
		a := get(t, s.URL+"/flows/events?namespace=shop", "admin")
		if a.StatusCode != http.StatusOK || a.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("%s: %d %v", name, a.StatusCode, a.Header)
		}
		lines := bufio.NewScanner(a.Body)
		expect := func(want string) {
			t.Helper()
			for lines.Scan() {
				if lines.Text() == want {
					return
				}
			}
			t.Fatalf("%s: no line %q: %v", name, want, lines.Err())
		}
		expect(`data: "n2: no answer"`)
		for began := time.Now(); time.Since(began) < 2500*time.Millisecond; { // longer than the limits of pages
			r.next <- flowOf("web\n\ndata: x", "a rule <denies>")
			expect("event: flow")
			expect(`data: {"time":"08:00:00.000","from":"shop/web\n\ndata: x","to":"192.0.2.1","port":"TCP 443","why":"a rule \u003cdenies\u003e","node":"n1"}`)
			time.Sleep(100 * time.Millisecond)
		}
		r.next <- erring("n3", "--flow-events=off")
		expect(`data: "n3: does not report all flows: --flow-events=off"`)
		r.next <- lostOf(7)
		expect("event: lost")
		expect("data: 7")
		if revoked {
			close(r.next)
			expect("event: end")
			expect(`data: "your rights have changed: send the request again"`)
		} else {
			a.Body.Close()
		}
		select {
		case <-r.left:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: the call of the relay does not end", name)
		}
	}
}

// Connections without a token do not close the stream of a client that has one.
func TestEventsInACrowd(t *testing.T) {
	r := &relay{next: make(chan *observer.GetFlowsResponse), left: make(chan struct{}), cluster: pods()}
	h, err := New(r, r)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	limits := httpd.Defaults()
	go func() { served <- httpd.Serve(ctx, l, h, limits) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	a := get(t, "http://"+l.Addr().String()+"/flows/events", "admin")
	lines := bufio.NewScanner(a.Body)
	for lines.Scan() && !strings.Contains(lines.Text(), "no answer") {
	}
	for range 2 * limits.Connections {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "GET /flows/events HTTP/1.1\r\nHost: x\r\n\r\n")
		if answer, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || answer.StatusCode != http.StatusUnauthorized {
			t.Fatalf("without a token: %v, %v", answer, err)
		}
	}
	select {
	case r.next <- lostOf(7):
	case <-r.left:
		t.Fatal("the stream has ended")
	}
	for lines.Scan() && lines.Text() != "data: 7" {
	}
	if lines.Text() != "data: 7" {
		t.Errorf("the stream has ended: %v", lines.Err())
	}
}
