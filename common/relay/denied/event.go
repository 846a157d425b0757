// SPDX-License-Identifier: Apache-2.0

package denied

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	hubblerelay "github.com/isthmus-net/isthmus/common/api/hubble/relay"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/page"
)

// Request returns the request for the flows of a query.
func Request(q page.FlowQuery) *observer.GetFlowsRequest {
	r := &observer.GetFlowsRequest{Number: uint64(q.Last), Follow: q.Follow}
	dropped := []flow.Verdict{flow.Verdict_DROPPED}
	if q.Namespace == "" {
		r.Whitelist = []*flow.FlowFilter{{Verdict: dropped}}
		return r
	}
	ends := []string{q.Namespace + "/"}
	r.Whitelist = []*flow.FlowFilter{{SourcePod: ends, Verdict: dropped}, {DestinationPod: ends, Verdict: dropped}}
	return r
}

// Event returns what an answer says.
func Event(m *observer.GetFlowsResponse) page.FlowEvent {
	e := page.FlowEvent{Lost: m.GetLostEvents().GetNumEventsLost()}
	if m.GetFlow() != nil {
		e.Flow = newFlow(m)
	}
	if s := m.GetNodeStatus(); s != nil {
		e.Nodes, e.Why = s.GetNodeNames(), s.GetMessage()
		e.State = map[hubblerelay.NodeState]page.NodeState{hubblerelay.NodeState_NODE_CONNECTED: page.Connected,
			hubblerelay.NodeState_NODE_UNAVAILABLE: page.Unavailable, hubblerelay.NodeState_NODE_ERROR: page.Partial}[s.GetStateChange()]
	}
	return e
}

// newFlow returns the flow of an answer.
func newFlow(m *observer.GetFlowsResponse) *page.Flow {
	f := m.GetFlow()
	r := &page.Flow{Time: m.GetTime().AsTime().UTC().Format("15:04:05.000"), Why: f.GetSummary(), Node: m.GetNodeName(),
		From: endOf(f.GetSource(), f.GetIP().GetSource()), To: endOf(f.GetDestination(), f.GetIP().GetDestination())}
	l4 := f.GetL4()
	switch {
	case l4.GetTCP() != nil:
		r.Port = fmt.Sprintf("%s %d", model.TCP, l4.GetTCP().GetDestinationPort())
	case l4.GetUDP() != nil:
		r.Port = fmt.Sprintf("%s %d", model.UDP, l4.GetUDP().GetDestinationPort())
	case l4.GetSCTP() != nil:
		r.Port = fmt.Sprintf("%s %d", model.SCTP, l4.GetSCTP().GetDestinationPort())
	case l4.GetICMPv4() != nil:
		r.Port = model.ICMP.String()
	case l4.GetICMPv6() != nil:
		r.Port = model.ICMPv6.String()
	}
	return r
}

// endOf names an end of a flow by what the client may see of it.
func endOf(e *flow.Endpoint, address string) string {
	switch {
	case e.GetPodName() != "":
		return e.GetNamespace() + "/" + e.GetPodName()
	case address != "":
		return address
	}
	return cmp.Or(e.GetNamespace(), "hidden")
}

// Failed turns the error of a call into that of a page.
func Failed(err error) error {
	if err == nil {
		return nil
	}
	return page.Failed(statusOf(err), errors.New(status.Convert(err).Message()))
}

// statusOf is the HTTP status of a call.
func statusOf(err error) int {
	switch status.Code(err) {
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.InvalidArgument:
		return http.StatusBadRequest
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unavailable, codes.DeadlineExceeded:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
