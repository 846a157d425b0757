// SPDX-License-Identifier: Apache-2.0

package redact

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/relay"
	"github.com/isthmus-net/isthmus/common/hubble"
)

func TestNamespaces(t *testing.T) {
	pods := func(src, dst []string) *flow.FlowFilter { return &flow.FlowFilter{SourcePod: src, DestinationPod: dst} }
	for want, list := range map[string][]*flow.FlowFilter{
		"[shop] <nil>":         {pods([]string{"shop/"}, nil), pods(nil, []string{"shop/web"})},
		"[pay shop] <nil>":     {pods([]string{"shop/"}, []string{"pay/"})},
		"[default] <nil>":      {pods([]string{"web"}, nil)},
		"[] <nil>":             {pods([]string{"/web"}, nil)},
		"[shop-a] <nil>":       {pods([]string{"shop-a/"}, []string{"/web", "x/"})},
		"[] the part before /": {pods([]string{"Shop*/"}, nil)},
		"[] <nil>, one open":   {pods([]string{"shop/"}, nil), {Verdict: []flow.Verdict{flow.Verdict_DROPPED}}},
		"[] <nil>, one mixed":  {pods([]string{"shop/", "/web"}, nil)},
	} {
		got, err := Namespaces(&observer.GetFlowsRequest{Whitelist: list})
		text := fmt.Sprint(got, " ", err)
		if err != nil {
			text = "[] the part before /"
		}
		if text != want[:min(len(want), len(text))] || len(text) > len(want) {
			t.Errorf("%v: %s, want %s", list, text, want)
		}
	}
}

// TestRequest checks that agents get a request for flows of the scope only, whatever the client filters by.
func TestRequest(t *testing.T) {
	in := func(src, dst string) *flow.Flow {
		return &flow.Flow{Source: &flow.Endpoint{Namespace: src, PodName: "a"}, Destination: &flow.Endpoint{Namespace: dst, PodName: "b"}}
	}
	request := &observer.GetFlowsRequest{Number: 5, First: true, Whitelist: []*flow.FlowFilter{{SourcePod: []string{"shop/"}, DestinationLabel: []string{"app=secret"}}}}
	for _, c := range []struct {
		scope access.Scope
		want  [3]bool
	}{
		{access.Scope{Namespaces: []string{"shop"}}, [3]bool{true, true, false}},
		{access.Scope{}, [3]bool{}},
		{access.Scope{All: true}, [3]bool{true, true, true}},
	} {
		v, err := NewView(c.scope, request, nil)
		if err != nil {
			t.Fatal(err)
		}
		q, err := hubble.NewQuery(v.Request())
		if err != nil || q.Number != 0 || q.First || v.Request().GetFieldMask() != nil {
			t.Fatalf("%v: request %v, %v", c.scope, v.Request(), err)
		}
		for i, f := range []*flow.Flow{in("shop", "pay"), in("pay", "shop"), in("pay", "shop-b")} {
			if got := q.Filter.Matches(f); got != c.want[i] {
				t.Errorf("%v: flow %d selected: %t", c.scope, i, got)
			}
		}
	}
	if v, err := NewView(access.Everything, request, nil); err != nil || v.Request() != request {
		t.Errorf("an administrator's request: %v, %v", v.Request(), err)
	}
}

func TestStates(t *testing.T) {
	v, err := NewView(access.Scope{Namespaces: []string{"shop"}}, &observer.GetFlowsRequest{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	state := func(s relay.NodeState) *observer.GetFlowsResponse {
		return &observer.GetFlowsResponse{NodeName: "n1", ResponseTypes: &observer.GetFlowsResponse_NodeStatus{NodeStatus: &relay.NodeStatusEvent{StateChange: s, NodeNames: []string{"n1", "n2"}, Message: "n1 is down"}}}
	}
	got := v.State(state(relay.NodeState_NODE_UNAVAILABLE))
	want := &observer.GetFlowsResponse{ResponseTypes: &observer.GetFlowsResponse_NodeStatus{NodeStatus: &relay.NodeStatusEvent{StateChange: relay.NodeState_NODE_UNAVAILABLE, NodeNames: []string{hiddenNode, hiddenNode}, Message: "flows are missing"}}}
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if v.State(state(relay.NodeState_NODE_CONNECTED)) != nil || v.State(state(relay.NodeState_NODE_GONE)) != nil {
		t.Error("names of nodes are shown")
	}
	lost := v.Flow(&observer.GetFlowsResponse{NodeName: "n1", ResponseTypes: &observer.GetFlowsResponse_LostEvents{LostEvents: &flow.LostEvent{NumEventsLost: 7}}})
	if lost.GetNodeName() != "" || lost.GetLostEvents().GetNumEventsLost() != 7 {
		t.Errorf("lost flows: %v", lost)
	}
}
