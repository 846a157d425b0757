// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/model"
)

// authority knows the users admin, who may do everything, and shop, who reads the flows of the namespace shop.
type authority struct{ revoked, down atomic.Bool }

func (a *authority) Authenticate(_ context.Context, token string) (access.User, error) {
	if token != "admin" && token != "shop" {
		return access.User{}, access.ErrUnauthenticated
	}
	return access.User{Name: token}, nil
}

func (a *authority) Allowed(_ context.Context, u access.User, r access.Right) (bool, error) {
	if a.down.Load() {
		return false, errors.New("dial tcp 10.96.0.1:443: connection refused")
	}
	return u.Name == "admin" || r.Resource == access.Flows && r.Namespace == "shop" && !a.revoked.Load(), nil
}

// bearer and basic add a token to calls.
func bearer(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

func basic(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("any:"+token)))
}

// guarded starts a relay with access control over an agent a, whose flows begin in the namespace shop.
func guarded(t *testing.T, by access.Authority, clock func() time.Time) (observer.ObserverClient, *agent) {
	dir := t.TempDir()
	a := newAgent(t, dir, "a", 100)
	pool := NewPool(nil, quietLog)
	t.Cleanup(pool.Close)
	nodes := addresses(a)
	nodes["gone"] = ""
	if err := pool.Set(nodes); err != nil {
		t.Fatal(err)
	}
	r := New(pool, access.NewChecker(by, clock), "1", quietLog)
	r.checkEvery = 20 * time.Millisecond
	conn, _ := dial(t, r)
	return observer.NewObserverClient(conn), a
}

// receive reads a stream to its end.
func receive(stream grpc.ServerStreamingClient[observer.GetFlowsResponse], err error) (list []*observer.GetFlowsResponse, _ error) {
	for err == nil {
		var m *observer.GetFlowsResponse
		if m, err = stream.Recv(); err == nil {
			list = append(list, m)
		}
	}
	return list, err
}

var ofShop = []*flow.FlowFilter{{SourcePod: []string{"shop/"}}, {DestinationPod: []string{"shop/"}}}

func TestAccess(t *testing.T) {
	by := &authority{}
	c, a := guarded(t, by, nil)
	for n := range 10 {
		a.add(n)
	}
	a.store.Add([]model.FlowEvent{{Time: time.Now(), Pod: model.PodID{Namespace: "pay", Name: "vault"}, Verdict: model.Deny, Direction: model.Egress, Protocol: model.TCP,
		Src: netip.MustParseAddr("10.0.0.9"), Dst: netip.MustParseAddr("10.0.0.2"), SrcPort: 99}})
	admin, shop := bearer(t.Context(), "admin"), basic(t.Context(), "shop")
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		s, err := c.ServerStatus(admin, &observer.ServerStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if s.GetNumFlows() == 11 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("status %v", s)
		}
	}
	for _, q := range []struct {
		what    string
		ctx     context.Context
		request *observer.GetFlowsRequest
		code    codes.Code
		want    string // numbers of flows, or part of the error
	}{
		{"no token", t.Context(), &observer.GetFlowsRequest{}, codes.Unauthenticated, "the token is missing or not valid"},
		{"wrong token", bearer(t.Context(), "x"), &observer.GetFlowsRequest{}, codes.Unauthenticated, "not valid"},
		{"two tokens", bearer(admin, "admin"), &observer.GetFlowsRequest{}, codes.Unauthenticated, "missing"},
		{"admin", admin, &observer.GetFlowsRequest{Number: 3}, codes.OK, "8 9 99"},
		{"all namespaces", shop, &observer.GetFlowsRequest{}, codes.PermissionDenied, "name namespaces whose flows you may read"},
		{"another namespace", shop, &observer.GetFlowsRequest{Whitelist: []*flow.FlowFilter{{SourcePod: []string{"pay/"}}}}, codes.PermissionDenied, `user "shop" may not get flows.inspect.isthmus.dev in namespace pay`},
		{"its namespace", shop, &observer.GetFlowsRequest{Whitelist: ofShop, Number: 3}, codes.OK, "7 8 9"},
		{"its namespace, first", shop, &observer.GetFlowsRequest{Whitelist: ofShop, Number: 2, First: true}, codes.OK, "0 1"},
		{"its namespace, filtered", shop, &observer.GetFlowsRequest{Number: 2, First: true, Whitelist: []*flow.FlowFilter{{SourcePod: []string{"shop/"}, Verdict: []flow.Verdict{flow.Verdict_FORWARDED}}}}, codes.OK, "1 3"},
		{"by node", shop, &observer.GetFlowsRequest{Whitelist: []*flow.FlowFilter{{SourcePod: []string{"shop/"}, NodeName: []string{"a"}}}}, codes.OK, ""},
	} {
		list, err := receive(c.GetFlows(q.ctx, q.request))
		var numbers []string
		for _, m := range list {
			if f := m.GetFlow(); f != nil {
				numbers = append(numbers, fmt.Sprint(number(f)))
			}
			if text := m.String(); q.ctx == shop && (strings.Contains(text, "vault") || m.GetNodeName() != "" || m.GetFlow().GetNodeName() != "" || strings.Contains(text, "gone")) {
				t.Errorf("%s: shown: %s", q.what, text)
			}
		}
		if q.code == codes.OK {
			if got := strings.Join(numbers, " "); got != q.want || !errors.Is(err, io.EOF) {
				t.Errorf("%s: flows %s, %v, want %s", q.what, got, err, q.want)
			}
		} else if status.Code(err) != q.code || !strings.Contains(err.Error(), q.want) || len(list) > 0 {
			t.Errorf("%s: %d answers, %v, want %s %q", q.what, len(list), err, q.code, q.want)
		}
	}
	if _, err := c.ServerStatus(shop, &observer.ServerStatusRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("status: %v", err)
	}
	if _, err := c.GetNodes(shop, &observer.GetNodesRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("nodes: %v", err)
	}
	if _, err := c.GetNamespaces(shop, &observer.GetNamespacesRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("namespaces: %v", err)
	}
	if n, err := c.GetNamespaces(admin, &observer.GetNamespacesRequest{}); err != nil || len(n.GetNamespaces()) != 2 {
		t.Errorf("namespaces: %v, %v", n, err)
	}
}

// TestRevoked follows flows until the right is gone, or the API server gives no answer.
func TestRevoked(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*authority)
		code   codes.Code
	}{
		"revoked": {func(a *authority) { a.revoked.Store(true) }, codes.PermissionDenied},
		"down":    {func(a *authority) { a.down.Store(true) }, codes.Unavailable},
	} {
		by := &authority{}
		var ahead atomic.Int64
		client, _ := guarded(t, by, func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
		stream, err := client.GetFlows(bearer(t.Context(), "shop"), &observer.GetFlowsRequest{Follow: true, Whitelist: ofShop})
		if err != nil {
			t.Fatal(err)
		}
		if m, err := stream.Recv(); err != nil || m.GetNodeStatus().GetNodeNames()[0] != "(hidden)" {
			t.Fatalf("%s: %v, %v", name, m, err)
		}
		c.change(by)
		ahead.Store(int64(access.AllowFor))
		_, err = receive(stream, nil)
		if status.Code(err) != c.code || strings.Contains(err.Error(), "10.96.0.1") {
			t.Errorf("%s: the stream ends with %v, want %s", name, err, c.code)
		}
	}
}

// TestStreamsOfAUser opens as many streams as a user may have.
func TestStreamsOfAUser(t *testing.T) {
	c, _ := guarded(t, &authority{}, nil)
	ctx := bearer(t.Context(), "shop")
	for range maxUserStreams {
		stream, err := c.GetFlows(ctx, &observer.GetFlowsRequest{Follow: true, Whitelist: ofShop})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := receive(c.GetFlows(ctx, &observer.GetFlowsRequest{Follow: true, Whitelist: ofShop})); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
	if _, err := receive(c.GetFlows(bearer(t.Context(), "admin"), &observer.GetFlowsRequest{})); !errors.Is(err, io.EOF) {
		t.Errorf("another user: %v", err)
	}
}
