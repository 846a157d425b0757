// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	hubblerelay "github.com/isthmus-net/isthmus/common/api/hubble/relay"
)

// relay is a relay that knows the token "Bearer admin". It keeps one flow, and sends those of its channel to followers.
type relay struct {
	mutex    sync.Mutex
	requests []*observer.GetFlowsRequest
	next     chan *observer.GetFlowsResponse
	left     chan struct{}
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

func (r *relay) GetFlows(q *observer.GetFlowsRequest, s grpc.ServerStreamingServer[observer.GetFlowsResponse]) error {
	if err := r.user(s.Context()); err != nil {
		return err
	}
	r.mutex.Lock()
	r.requests = append(r.requests, q)
	r.mutex.Unlock()
	if err := s.Send(stateOf(hubblerelay.NodeState_NODE_UNAVAILABLE, "n2")); err != nil || !q.GetFollow() {
		_ = s.Send(flowOf("old", "a rule denies"))
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

func (r *relay) GetNodes(ctx context.Context, _ *observer.GetNodesRequest) (*observer.GetNodesResponse, error) {
	return &observer.GetNodesResponse{Nodes: []*observer.Node{{Name: "default/n1", State: hubblerelay.NodeState_NODE_CONNECTED, Version: "v1 <b>"},
		{Name: "default/n2", State: hubblerelay.NodeState_NODE_UNAVAILABLE}}}, r.user(ctx)
}

func newServer(t *testing.T) (*relay, *httptest.Server) {
	r := &relay{next: make(chan *observer.GetFlowsResponse), left: make(chan struct{})}
	h, err := New(r)
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

func TestPages(t *testing.T) {
	r, s := newServer(t)
	for _, c := range []struct {
		path, token string
		header      []string
		status      int
		want        []string
	}{
		{"/", "", nil, 401, []string{"the token is missing or not valid", `name="namespace"`}},
		{"/", "other", nil, 401, nil},
		{"/", "admin", []string{"Authorization", "Bearer admin"}, 401, nil},
		{"/", "admin", nil, 200, []string{"shop/old</td><td>192.0.2.1</td><td>TCP 443</td><td>a rule denies</td><td>n1", "these nodes are missing: n2", `data-events="/events"`, "08:00:00.000"}},
		{"/?namespace=shop", "admin", nil, 200, []string{`data-events="/events?namespace=shop"`, `value="shop"`}},
		{"/", "shop", nil, 403, []string{"user &#34;shop&#34; may not get &lt;flows&gt;", `name="namespace"`}},
		{"/?namespace=%22%3E%3Cscript%3E", "admin", nil, 400, []string{"give the name of a namespace"}},
		{"/?namespace=a&namespace=b", "admin", nil, 400, nil},
		{"/?number=1", "admin", nil, 400, []string{"parameter &#34;number&#34;"}},
		{"/?%zz", "admin", nil, 400, nil},
		{"/nodes", "admin", nil, 200, []string{"default/n1", "connected", "v1 &lt;b&gt;", "no answer"}},
		{"/nodes", "", nil, 401, nil},
		{"/events", "", nil, 401, nil},
		{"/events?namespace=A", "admin", nil, 400, nil},
		{"/static/style.css", "", nil, 200, nil},
		{"/live.js", "", nil, 200, nil},
		{"/templates.html", "admin", nil, 404, nil},
		{"/", "admin", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"}, 403, []string{"another site"}},
	} {
		a := get(t, s.URL+c.path, c.token, c.header...)
		body := new(strings.Builder)
		if _, err := bufio.NewReader(a.Body).WriteTo(body); err != nil {
			t.Fatal(err)
		}
		if a.StatusCode != c.status || (a.StatusCode == 401 && !strings.HasPrefix(c.path, "/events")) != (a.Header.Get("WWW-Authenticate") != "") {
			t.Errorf("%s %s: status %d, want %d, %q", c.path, c.token, a.StatusCode, c.status, a.Header.Get("WWW-Authenticate"))
		}
		for _, w := range c.want {
			if !strings.Contains(body.String(), w) {
				t.Errorf("%s %s: no %q in\n%s", c.path, c.token, w, body)
			}
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
	if last := r.requests[1]; len(last.GetWhitelist()) != 2 || last.GetWhitelist()[0].GetSourcePod()[0] != "shop/" || last.GetNumber() != kept {
		t.Errorf("the request for a namespace: %v", last)
	}
}

// Events arrive while they happen, for longer than the server's limits of pages. The stream of the relay ends with the
// client, and the client learns why the relay ends a stream.
func TestEvents(t *testing.T) {
	for name, revoked := range map[string]bool{"the client goes": false, "the relay ends": true} {
		r, s := newServer(t)
		a := get(t, s.URL+"/events?namespace=shop", "admin")
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
		r.next <- &observer.GetFlowsResponse{ResponseTypes: &observer.GetFlowsResponse_LostEvents{LostEvents: &flow.LostEvent{NumEventsLost: 7}}}
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

func FuzzRequest(f *testing.F) {
	for _, s := range []string{"", "namespace=shop", "namespace=a%2Fb", "namespace=-a", "x", "namespace=" + strings.Repeat("a", 64)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		namespace, q, err := request(&http.Request{URL: &url.URL{RawQuery: raw}})
		if err != nil {
			if status.Code(err) != codes.InvalidArgument {
				t.Fatal(err)
			}
			return
		}
		for _, w := range q.GetWhitelist() {
			for _, end := range append(w.GetSourcePod(), w.GetDestinationPod()...) {
				if end != namespace+"/" || strings.Count(end, "/") != 1 || len(end) > 64 {
					t.Fatalf("%q: %q", raw, end)
				}
			}
			if namespace != "" && len(w.GetSourcePod())+len(w.GetDestinationPod()) != 1 || len(w.GetVerdict()) != 1 {
				t.Fatalf("%q: %v", raw, q)
			}
		}
	})
}
