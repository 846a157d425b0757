// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"net/netip"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

// flowMessage converts a flow to its message.
func flowMessage(f *observe.Flow) *isthmusv1.FlowEvent {
	m := &isthmusv1.FlowEvent{UnixNano: f.Time.UnixNano(), PodNamespace: f.Pod.Namespace, PodName: f.Pod.Name, Direction: f.Direction.String(),
		Verdict: f.Outcome().String(), Reason: f.Drop.String(), SrcPort: uint32(f.SrcPort), DstPort: uint32(f.DstPort),
		PeerNamespace: f.Peer.Namespace, PeerName: f.Peer.Name, PeerNode: f.PeerNode,
		Table: f.Table, Epoch: f.Epoch, PeerClass: uint32(f.Class)}
	if !f.Src.IsValid() {
		m.EtherType = uint32(f.Detail)
	} else {
		m.Src, m.Dst, m.Protocol = f.Src.String(), f.Dst.String(), f.Protocol.String()
		if f.Protocol == model.ICMP || f.Protocol == model.ICMPv6 {
			m.IcmpType = uint32(f.Detail)
		}
	}
	if f.Service != (netip.AddrPort{}) {
		m.Service = f.Service.String()
	}
	if f.Masquerade != (netip.AddrPort{}) {
		m.Masquerade = f.Masquerade.String()
	}
	if c := f.Cause; c != nil {
		m.Cause = c.String()
		if c.Reason == model.ReasonRule || c.Reason == model.ReasonIsolated {
			m.Policy = c.Origin.String()
		}
		if c.Reason == model.ReasonRule {
			m.Rule, m.Tier = strconv.Itoa(c.Rule), c.Tier.String()
			if c.RuleName != "" {
				m.Rule = c.RuleName
			}
		}
	}
	return m
}

// WatchFlows implements isthmusv1.InspectServer.
func (s *inspectServer) WatchFlows(r *isthmusv1.WatchFlowsRequest, stream grpc.ServerStreamingServer[isthmusv1.WatchFlowsResponse]) error {
	filter, err := observe.ParseFilter(r.GetPodNamespace(), r.GetPodName(), r.GetVerdicts())
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	flows, err := s.agent.Flows()
	if errors.Is(err, errors.ErrUnsupported) {
		return status.Error(codes.Unimplemented, err.Error())
	}
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	if why := flows.Incomplete(); why != "" {
		if err := stream.SendHeader(metadata.Pairs(isthmusv1.IncompleteHeader, why)); err != nil {
			return err
		}
	}
	if !r.GetFollow() {
		return sendFlows(stream, flows.Last(int(r.GetLast()), filter))
	}
	past, reader, err := flows.Follow(int(r.GetLast()), filter)
	if err != nil {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	defer reader.Close()
	if err := sendFlows(stream, past); err != nil {
		return err
	}
	for {
		list, err := reader.Next(stream.Context())
		switch {
		case errors.Is(err, observe.ErrStopped):
			return status.Error(codes.Unavailable, "isthmus-agent is stopping")
		case err != nil: // the client left
			return nil
		}
		if err := sendFlows(stream, list); err != nil {
			return err
		}
	}
}

func sendFlows(stream grpc.ServerStreamingServer[isthmusv1.WatchFlowsResponse], list []observe.Delivery) error {
	for _, d := range list {
		m := &isthmusv1.WatchFlowsResponse{Missed: d.Missed, Undelivered: d.Undelivered}
		if d.Flow != nil {
			m.Event = flowMessage(d.Flow)
		}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}
