// SPDX-License-Identifier: Apache-2.0

package redact

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/relay"
	"github.com/isthmus-net/isthmus/common/hubble"
)

// Namespaces returns the namespaces to which a request is limited, sorted; none if it is not limited. Each entry of
// the allow list then names a namespace for one of the ends. It expects a request that hubble.NewQuery accepts.
func Namespaces(request *observer.GetFlowsRequest) ([]string, error) {
	var all []string
	for _, f := range request.GetWhitelist() {
		var named []string
		for _, pods := range [][]string{f.GetSourcePod(), f.GetDestinationPod()} {
			var of []string
			for _, pattern := range pods {
				n, err := namespaceOf(pattern)
				if err != nil {
					return nil, err
				}
				if n == "" {
					of = nil // a pattern for any namespace does not limit the end
					break
				}
				of = append(of, n)
			}
			named = append(named, of...)
		}
		if len(named) == 0 {
			return nil, nil
		}
		all = append(all, named...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// namespaceOf returns the namespace of a pattern for pods; empty for any.
func namespaceOf(pattern string) (string, error) {
	namespace, _, ok := strings.Cut(pattern, "/")
	if !ok {
		return "default", nil
	}
	if len(namespace) > 63 || strings.Trim(namespace, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return "", fmt.Errorf("pod %q: the part before / is not the name of a namespace", pattern)
	}
	return namespace, nil
}

// View is what a client sees of the flows of a request.
type View struct {
	scope   access.Scope
	query   *hubble.Query
	request *observer.GetFlowsRequest
	// key makes identifiers of flows that reveal no node.
	key []byte
}

// NewView returns the View of a client with a scope. It rejects what hubble.NewQuery rejects. The key is secret and
// the same for all views of a process.
func NewView(scope access.Scope, request *observer.GetFlowsRequest, key []byte) (*View, error) {
	q, err := hubble.NewQuery(request)
	if err != nil {
		return nil, err
	}
	v := &View{scope: scope, query: q, request: request, key: key}
	if !v.full() {
		v.request = narrowed(scope, request)
	}
	return v, nil
}

// full reports whether the client sees everything.
func (v *View) full() bool { return v.scope.All && v.scope.Nodes }

// Request returns the request for agents. Its Number does not count what the client does not see.
func (v *View) Request() *observer.GetFlowsRequest { return v.request }

// narrowed returns a request for all flows of a scope, in the time of another request.
func narrowed(scope access.Scope, request *observer.GetFlowsRequest) *observer.GetFlowsRequest {
	n := &observer.GetFlowsRequest{Follow: request.GetFollow(), Since: request.GetSince(), Until: request.GetUntil()}
	if n.GetFollow() && request.GetNumber() > 0 && n.GetSince() == nil {
		n.Number = math.MaxUint64 // all kept flows: the caller counts those that the client sees
	}
	if scope.All {
		return n
	}
	if len(scope.Namespaces) == 0 {
		n.Blacklist = []*flow.FlowFilter{{}} // matches every flow
		return n
	}
	var pods []string
	for _, name := range scope.Namespaces {
		pods = append(pods, name+"/")
	}
	n.Whitelist = []*flow.FlowFilter{{SourcePod: pods}, {DestinationPod: pods}}
	return n
}

// Flow returns what the client sees of an answer of an agent, nil if it sees nothing. It leaves the states of nodes
// alone, for State.
func (v *View) Flow(m *observer.GetFlowsResponse) *observer.GetFlowsResponse {
	if v.full() || m.GetNodeStatus() != nil {
		return m
	}
	out := &observer.GetFlowsResponse{Time: m.GetTime()}
	if v.scope.Nodes {
		out.NodeName = m.GetNodeName()
	}
	if l := m.GetLostEvents(); l != nil {
		out.ResponseTypes = &observer.GetFlowsResponse_LostEvents{LostEvents: &flow.LostEvent{
			Source: l.GetSource(), NumEventsLost: l.GetNumEventsLost(), First: l.GetFirst(), Last: l.GetLast()}}
		return out
	}
	f := Flow(v.scope, v.key, m.GetFlow())
	if f == nil || !v.query.Filter.Matches(f) {
		return nil
	}
	out.ResponseTypes = &observer.GetFlowsResponse_Flow{Flow: v.query.Mask.Apply(f)}
	return out
}

// hiddenNode stands for the name of a node.
const hiddenNode = "(hidden)"

// State returns what the client sees of a state of nodes, nil if it sees nothing. A client without the right to
// data of nodes learns how many nodes are missing.
func (v *View) State(m *observer.GetFlowsResponse) *observer.GetFlowsResponse {
	s := m.GetNodeStatus()
	if v.scope.Nodes || s == nil {
		return m
	}
	out := &relay.NodeStatusEvent{StateChange: s.GetStateChange()}
	switch s.GetStateChange() {
	case relay.NodeState_NODE_UNAVAILABLE:
		out.Message = "flows are missing"
	case relay.NodeState_NODE_ERROR:
		out.Message = "a node does not report all its flows"
	default:
		return nil
	}
	for range s.GetNodeNames() {
		out.NodeNames = append(out.NodeNames, hiddenNode)
	}
	return &observer.GetFlowsResponse{Time: m.GetTime(), ResponseTypes: &observer.GetFlowsResponse_NodeStatus{NodeStatus: out}}
}
