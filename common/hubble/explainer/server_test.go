// SPDX-License-Identifier: Apache-2.0

package explainer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/analysis/usage"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

var origin = model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "p"}

// cluster has the pods a and b of node n1, and c of node n2. Policy allows TCP 80 to b and c.
func cluster() *model.Snapshot {
	pod := func(name, node, ip string) *model.Pod {
		return &model.Pod{PodID: model.PodID{Namespace: "shop", Name: name}, Node: node, IPs: []netip.Addr{netip.MustParseAddr(ip)}, Labels: model.MakeLabels(map[string]string{"app": name})}
	}
	p := &model.Policy{Origin: origin, Tier: model.TierNetworkPolicy, Isolates: [2]bool{true, false},
		Subject: model.PodSelector{Namespace: "shop", Pods: model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{"b", "c"}})}}
	p.Rules[model.Ingress] = []model.Rule{{Action: model.ActionAccept, AnyPeer: true, Ports: []model.PortMatch{{Protocol: model.TCP, First: 80, Last: 80}}}}
	return model.MakeSnapshot(nil, []*model.Node{{Name: "n1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}}, {Name: "n2", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}}},
		[]*model.Pod{pod("a", "n1", "10.0.1.2"), pod("b", "n1", "10.0.1.3"), pod("c", "n2", "10.0.2.2")}, []*model.Policy{p})
}

// dumped is node n1 as it is read back: the compiled tables.
func dumped(s *model.Snapshot) *inspect.Bundle {
	b := &inspect.Bundle{About: inspect.About{Node: "n1", Platform: "kernel 6.1"}, Cluster: inspect.MakeCluster(s)}
	local := make(map[model.EndpointID]compile.Endpoint)
	for id, pod := range s.Pods.All() {
		if pod.Node == "n1" {
			e := inspect.Endpoint{ID: model.EndpointID(id.Name + ":eth0"), Pod: id, Table: "1"}
			b.Endpoints = append(b.Endpoints, e)
			local[e.ID] = compile.Endpoint{Pod: id, IPs: pod.IPs}
		}
	}
	state, _ := compile.Once(compile.Input{Snapshot: s, Node: "n1", Endpoints: local})
	b.Installed = &inspect.Installed{State: state}
	return b
}

// start serves a node on a socket.
func start(t *testing.T, c Config) isthmusv1.ExplainClient {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	New(c).Register(g)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return isthmusv1.NewExplainClient(conn)
}

// objects reads the objects of a node.
func objects(t *testing.T, c isthmusv1.ExplainClient, have string) (version string, data []byte, _ error) {
	stream, err := c.GetCluster(t.Context(), &isthmusv1.GetClusterRequest{Have: have})
	for err == nil {
		var m *isthmusv1.GetClusterResponse
		if m, err = stream.Recv(); err == nil {
			version += m.GetVersion()
			data = append(data, m.GetData()...)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return version, data, err
}

// The objects arrive as they are, once for each version. Each snapshot has a version of its own.
func TestCluster(t *testing.T) {
	var known atomic.Pointer[model.Snapshot]
	c := start(t, Config{Snapshot: known.Load})
	if _, _, err := objects(t, c, ""); status.Code(err) != codes.Unavailable {
		t.Fatalf("without objects: %v", err)
	}
	var many []*model.Pod
	for i := range 3000 { // several parts
		many = append(many, &model.Pod{PodID: model.PodID{Namespace: "shop", Name: fmt.Sprint("web-", i)}, Node: "n1", IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})},
			Labels: model.MakeLabels(map[string]string{"app": "web"})})
	}
	first := cluster()
	for _, p := range first.Pods.All() {
		many = append(many, p)
	}
	known.Store(model.MakeSnapshot(nil, inspect.MakeCluster(first).Nodes, many, first.SortedPolicies()))
	version, data, err := objects(t, c, "")
	if err != nil || version == "" || len(data) < 2*part {
		t.Fatalf("%q, %d bytes, %v", version, len(data), err)
	}
	read, err := inspect.ReadObjects(bytes.NewReader(data), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := json.Marshal(inspect.MakeCluster(known.Load()))
	if got, _ := json.Marshal(inspect.MakeCluster(read)); !bytes.Equal(got, want) {
		t.Errorf("the objects are other ones: %.300s\n%.300s", got, want)
	}
	if again, data, err := objects(t, c, version); err != nil || again != version || len(data) != 0 {
		t.Errorf("the same version: %q, %d bytes, %v", again, len(data), err)
	}
	known.Store(first)
	if next, data, err := objects(t, c, version); err != nil || next == version || len(data) == 0 {
		t.Errorf("new objects: %q, %d bytes, %v", next, len(data), err)
	}
}

// Clients that do not read the objects delay no explanation, and there is a bound to them.
func TestSlowClients(t *testing.T) {
	s := cluster()
	var many []*model.Pod
	for i := range 20_000 { // more than gRPC buffers
		many = append(many, &model.Pod{PodID: model.PodID{Namespace: "shop", Name: fmt.Sprint("web-", i)}, Node: "n1", Labels: model.MakeLabels(map[string]string{"app": strings.Repeat("x", 60)})})
	}
	large := model.MakeSnapshot(nil, nil, many, nil)
	c := start(t, Config{Snapshot: func() *model.Snapshot { return large }, Dump: func(context.Context) (*inspect.Bundle, error) { return dumped(s), nil }})
	for range maxSending {
		stream, err := c.GetCluster(t.Context(), &isthmusv1.GetClusterRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the version and the first part
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, _, err := objects(t, c, ""); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one client more: %v", err)
	}
	if _, err := c.ExplainFlow(t.Context(), &isthmusv1.ExplainFlowRequest{Src: "10.0.1.2", Dst: "10.0.1.3", Protocol: 6, Port: 80}); err != nil {
		t.Error(err)
	}
}

// A node answers for its own pods, with the verdict of the policies next to what was read back.
func TestExplain(t *testing.T) {
	s := cluster()
	for name, c := range map[string]struct {
		from, to string
		port     uint16
		change   func(*inspect.Bundle)
		sides    string // direction, verdict, enforced verdict, exact
		reason   string
	}{
		"allowed":      {"10.0.1.2", "10.0.1.3", 80, nil, "egress allow allow true; ingress allow allow true", ""},
		"denied":       {"10.0.1.2", "10.0.1.3", 81, nil, "egress allow allow true; ingress deny deny true", ""},
		"other node":   {"10.0.1.2", "10.0.2.2", 81, nil, "egress allow allow true", ""},
		"from there":   {"10.0.2.2", "10.0.1.3", 81, nil, "ingress deny deny true", ""},
		"to the world": {"10.0.1.2", "203.0.113.1", 81, nil, "egress allow allow true", ""},
		"not here":     {"203.0.113.1", "10.0.2.2", 81, nil, "", ""},
		"damaged": {"10.0.1.2", "10.0.1.3", 81, func(b *inspect.Bundle) {
			b.Installed.State.Policy.Endpoints["b:eth0"] = b.Installed.State.Policy.Endpoints["a:eth0"]
			b.Drift = []inspect.Drift{{Object: "slots", Endpoint: "b:eth0", Detail: "slot 2 has table 1"}}
		}, "egress allow allow true; ingress deny allow false", "slots: slot 2 has table 1"},
		"not attached": {"10.0.1.2", "10.0.1.3", 80, func(b *inspect.Bundle) { b.Endpoints = nil }, "egress allow unknown false; ingress allow unknown false", "not attached"},
		"unread": {"10.0.1.2", "10.0.1.3", 80, func(b *inspect.Bundle) { b.Installed, b.About.Notes = nil, []string{"no maps"} },
			"egress allow unknown false; ingress allow unknown false", "the decisions of the data path are unknown: no maps"},
	} {
		b := dumped(s)
		if c.change != nil {
			c.change(b)
		}
		client := start(t, Config{Snapshot: func() *model.Snapshot { return s }, Dump: func(context.Context) (*inspect.Bundle, error) { return b, nil }})
		answer, err := client.ExplainFlow(t.Context(), &isthmusv1.ExplainFlowRequest{Src: c.from, Dst: c.to, Protocol: uint32(model.TCP), Port: uint32(c.port)})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var x explain.Report
		if err := json.Unmarshal(answer.GetReport(), &x); err != nil {
			t.Fatal(err)
		}
		var sides []string
		for _, side := range x.Sides {
			sides = append(sides, fmt.Sprint(side.Direction, " ", side.Decision.Verdict, " ", side.Enforced[0].Verdict, " ", side.Enforced[0].Exact))
			if side.Enforced[0].Platform != "kernel 6.1" {
				t.Errorf("%s: %+v", name, side.Enforced)
			}
		}
		if got := strings.Join(sides, "; "); got != c.sides || !strings.Contains(string(answer.GetReport()), c.reason) {
			t.Errorf("%s: %s, want %s and %q in\n%s", name, got, c.sides, c.reason, answer.GetReport())
		}
	}
}

// Requests that follow each other share a reading of the data path.
func TestReadings(t *testing.T) {
	var reads atomic.Int32
	s := cluster()
	failing := errors.New("the loop hangs")
	var fail atomic.Bool
	client := start(t, Config{Snapshot: func() *model.Snapshot { return s }, Dump: func(context.Context) (*inspect.Bundle, error) {
		if fail.Load() {
			return nil, failing
		}
		reads.Add(1)
		return dumped(s), nil
	}})
	fail.Store(true)
	request := &isthmusv1.ExplainFlowRequest{Src: "10.0.1.2", Dst: "10.0.1.3", Protocol: 6, Port: 80}
	if _, err := client.ExplainFlow(t.Context(), request); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), failing.Error()) {
		t.Errorf("a failure: %v", err)
	}
	fail.Store(false)
	ended := make(chan error)
	for range 20 {
		go func() {
			_, err := client.ExplainFlow(t.Context(), request)
			ended <- err
		}()
	}
	for range 20 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if n := reads.Load(); n > 4 { // 1, unless the machine takes longer than keep for them
		t.Errorf("%d readings for 20 requests", n)
	}
}

// reportOf reads the report of a node.
func reportOf(ctx context.Context, c isthmusv1.ExplainClient) (r *usage.Report, err error) {
	stream, err := c.GetReport(ctx, &isthmusv1.GetReportRequest{})
	var data []byte
	for err == nil {
		var m *isthmusv1.GetReportResponse
		if m, err = stream.Recv(); err == nil {
			data = append(data, m.GetData()...)
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, err
	}
	r = new(usage.Report)
	return r, json.Unmarshal(data, r)
}

// A node reports itself and the numbers of its rules in parts. Readers share a report. A reader that leaves does not spoil it.
func TestReport(t *testing.T) {
	var reads atomic.Int32
	hold := make(chan struct{})
	s := cluster()
	c := start(t, Config{Snapshot: func() *model.Snapshot { return s }, Brief: func(ctx context.Context) *inspect.Bundle {
		if reads.Add(1) == 1 {
			<-ctx.Done()
			return &inspect.Bundle{}
		}
		<-hold
		b := &inspect.Bundle{About: inspect.About{Node: "n1", Version: "v1", OS: model.Linux, Problems: make([]string, 1000), Settings: []string{"--key=secret"}, Modes: []string{"pods: tcx (2)"}},
			Cluster: inspect.Cluster{Policies: s.SortedPolicies()}, Endpoints: []inspect.Endpoint{{Policies: []model.Origin{origin}}, {}}}
		cause := model.Cause{Reason: model.ReasonRule, Origin: origin, Tier: model.TierNetworkPolicy}
		b.Counts = &inspect.Counts{Causes: []inspect.Count{{Decision: model.Decision{Verdict: model.Allow, Cause: &cause}, Flows: 7}}}
		for i := range 3000 {
			b.About.Unsupported = append(b.About.Unsupported, model.Unsupported{Policy: origin, Rule: i, Reason: strings.Repeat("r", 100)})
		}
		return b
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := reportOf(ctx, c); status.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("a reader that leaves: %v", err)
	}
	type answer struct {
		*usage.Report
		error
	}
	answers := make(chan answer)
	for range 10 {
		go func() {
			r, err := reportOf(t.Context(), c)
			answers <- answer{r, err}
		}()
	}
	close(hold)
	for range 10 {
		a := <-answers
		if a.error != nil {
			t.Fatal(a.error)
		}
		if p := a.Policies; len(p.Items) != 1 || *p.Items[0].Allowed != 7 || p.Items[0].Pods != 1 || a.Endpoints != 2 || a.About.Version != "v1" || len(a.About.Modes) != 1 {
			t.Errorf("%+v", a.Report)
		}
		if len(a.About.Problems) > 100 || len(a.About.Unsupported)+a.Unlisted != 3000 || a.Unlisted == 0 || a.About.Settings != nil {
			t.Errorf("it is not bounded: %d problems, %d unsupported, %d not listed, %v", len(a.About.Problems), len(a.About.Unsupported), a.Unlisted, a.About.Settings)
		}
	}
	if n := reads.Load(); n > 4 { // 2, unless the machine takes longer than keepReport for them
		t.Errorf("%d reports for 11 requests", n)
	}
}

// An answer about thousands of rules fits into a message, and says what it leaves out.
func TestLargeReport(t *testing.T) {
	side := explain.Side{Direction: "ingress"}
	for range 5000 {
		side.Rules = append(side.Rules, explain.Rule{Policy: "NetworkPolicy shop/p", PeerMisses: []string{strings.Repeat("x", 300), "2", "3", "4", "5"}})
	}
	raw, err := encode(&explain.Report{Sides: []explain.Side{side}})
	var x explain.Report
	if err != nil || len(raw) > maxReport || json.Unmarshal(raw, &x) != nil {
		t.Fatalf("%d bytes, %v", len(raw), err)
	}
	if s := x.Sides[0]; len(s.Rules) != maxRules || len(s.Rules[0].PeerMisses) != maxMisses || !strings.Contains(fmt.Sprint(s.Notes), "of 5000 rules") {
		t.Errorf("%d rules, %v", len(s.Rules), s.Notes)
	}
}

func FuzzFlow(f *testing.F) {
	f.Add("10.0.0.1", "10.0.0.2", uint32(6), uint32(80))
	f.Add("::1", "fe80::1%eth0", uint32(256), uint32(65536))
	f.Add("::ffff:10.0.0.1", "10.0.0.2", uint32(1), uint32(0))
	f.Fuzz(func(t *testing.T, src, dst string, protocol, port uint32) {
		flow, err := flowOf(&isthmusv1.ExplainFlowRequest{Src: src, Dst: dst, Protocol: protocol, Port: port})
		if err == nil && (flow.Src.Is4() != flow.Dst.Is4() || flow.Src.Zone() != "" || flow.Dst.Zone() != "" || flow.Src.Is4In6() || protocol > 255 || port > 65535) {
			t.Errorf("%+v", flow)
		}
	})
}
