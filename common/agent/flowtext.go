// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// Verdicts of a packet, as in requests and metrics.
const (
	verdictAllow = "allow"
	verdictDeny  = "deny"
	verdictDrop  = "drop"
)

var flowVerdicts = []string{verdictAllow, verdictDeny, verdictDrop}

// describeFlow converts an event to its API form, without the names of its addresses.
func describeFlow(e *model.FlowEvent) *isthmusv1.FlowEvent {
	d := &isthmusv1.FlowEvent{UnixNano: e.Time.UnixNano(), PodNamespace: e.Pod.Namespace, PodName: e.Pod.Name, Direction: e.Direction.String(),
		Verdict: verdictAllow, Reason: e.Drop, SrcPort: uint32(e.SrcPort), DstPort: uint32(e.DstPort),
		Table: e.Table, Epoch: e.Epoch, PeerClass: uint32(e.Class)}
	switch {
	case e.Drop != "":
		d.Verdict = verdictDrop
	case e.Verdict == model.Deny:
		d.Verdict = verdictDeny
	}
	if !e.Src.IsValid() {
		d.EtherType = uint32(e.Detail)
	} else {
		d.Src, d.Dst, d.Protocol = e.Src.String(), e.Dst.String(), e.Protocol.String()
		if e.Protocol == model.ICMP || e.Protocol == model.ICMPv6 {
			d.IcmpType = uint32(e.Detail)
		}
	}
	if e.Service != (netip.AddrPort{}) {
		d.Service = e.Service.String()
	}
	if e.Masquerade != (netip.AddrPort{}) {
		d.Masquerade = e.Masquerade.String()
	}
	if c := e.Cause; c != nil {
		d.Cause = c.String()
		if c.Reason == model.ReasonRule || c.Reason == model.ReasonIsolated {
			d.Policy = c.Origin.String()
		}
		if c.Reason == model.ReasonRule {
			d.Rule, d.Tier = strconv.Itoa(c.Rule), c.Tier.String()
			if c.RuleName != "" {
				d.Rule = c.RuleName
			}
		}
	}
	return d
}

// logFlow logs a denied or dropped packet.
func logFlow(log *slog.Logger, e *isthmusv1.FlowEvent) {
	var attrs []any
	add := func(name, value string) {
		if value != "" && value != "/" {
			attrs = append(attrs, name, value)
		}
	}
	add("pod", e.PodNamespace+"/"+e.PodName)
	add("direction", e.Direction)
	add("reason", e.Reason)
	add("because", e.Cause)
	add("src", e.Src)
	add("dst", e.Dst)
	add("protocol", e.Protocol)
	if e.DstPort != 0 {
		attrs = append(attrs, "src port", e.SrcPort, "dst port", e.DstPort)
	}
	add("service", e.Service)
	add("masquerade", e.Masquerade)
	add("peer", e.PeerNamespace+"/"+e.PeerName)
	add("peer node", e.PeerNode)
	log.Info("flow "+map[string]string{verdictDeny: "denied", verdictDrop: "dropped"}[e.Verdict], attrs...)
}

// wantedFlows builds a filter from a request.
func wantedFlows(r *isthmusv1.WatchFlowsRequest) (func(*isthmusv1.FlowEvent) bool, error) {
	if r.GetPodName() != "" && r.GetPodNamespace() == "" {
		return nil, fmt.Errorf("pod %q: give its namespace too", shorten(r.GetPodName()))
	}
	for _, v := range r.GetVerdicts() {
		if !slices.Contains(flowVerdicts, v) {
			return nil, fmt.Errorf("verdict %q: give %s", shorten(v), strings.Join(flowVerdicts, ", "))
		}
	}
	is := func(namespace, name string) bool {
		return namespace == r.GetPodNamespace() && (r.GetPodName() == "" || name == r.GetPodName())
	}
	return func(e *isthmusv1.FlowEvent) bool {
		if len(r.GetVerdicts()) > 0 && !slices.Contains(r.GetVerdicts(), e.Verdict) {
			return false
		}
		return r.GetPodNamespace() == "" || is(e.PodNamespace, e.PodName) || is(e.PeerNamespace, e.PeerName)
	}, nil
}

// WatchFlows implements isthmusv1.InspectServer.
func (s *inspectServer) WatchFlows(r *isthmusv1.WatchFlowsRequest, stream grpc.ServerStreamingServer[isthmusv1.WatchFlowsResponse]) error {
	wants, err := wantedFlows(r)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.agent.checkFlowEvents(); err != nil {
		return err
	}
	past, reader, err := s.agent.flows.follow(int(r.GetLast()), wants, r.GetFollow())
	if err != nil {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	if reader != nil {
		defer s.agent.flows.end(reader)
	}
	for _, e := range past {
		if err := stream.Send(&isthmusv1.WatchFlowsResponse{Event: e}); err != nil {
			return err
		}
	}
	for reader != nil {
		select {
		case <-stream.Context().Done():
			return nil
		case m, ok := <-reader.events:
			if !ok {
				return status.Error(codes.Unavailable, "isthmus-agent is stopping")
			}
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkFlowEvents returns why this node reports no flow events, or nil.
func (a *Agent) checkFlowEvents() error {
	v := a.view.Load()
	if v.backend == nil {
		return status.Error(codes.FailedPrecondition, "the data path is not open yet")
	}
	if _, ok := v.backend.(dataplane.Watcher); !ok {
		what := "the data path"
		if v.features.OS == model.Windows {
			what = "HNS"
		}
		return status.Errorf(codes.Unimplemented, "%s of this node (%s, %s) does not report single flows", what, v.features.OS, v.features.Platform)
	}
	if a.cfg.Flows.Off {
		return status.Error(codes.FailedPrecondition, "flow events are off: start the agent without --flow-events=off")
	}
	return nil
}
