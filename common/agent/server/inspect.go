// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/agent"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/model"
)

// inspectServer serves isthmusctl.
type inspectServer struct {
	isthmusv1.UnimplementedInspectServer
	agent *agent.Agent
}

// GetNode implements isthmusv1.InspectServer.
func (s *inspectServer) GetNode(ctx context.Context, _ *isthmusv1.GetNodeRequest) (*isthmusv1.GetNodeResponse, error) {
	return nodeMessage(s.agent.Node(ctx)), nil
}

// ListEndpoints implements isthmusv1.InspectServer.
func (s *inspectServer) ListEndpoints(ctx context.Context, _ *isthmusv1.ListEndpointsRequest) (*isthmusv1.ListEndpointsResponse, error) {
	list, err := s.agent.Endpoints(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, agent.AsError(err).Error())
	}
	r := &isthmusv1.ListEndpointsResponse{}
	for _, e := range list {
		r.Endpoints = append(r.Endpoints, endpointMessage(e))
	}
	return r, nil
}

// nodeMessage converts a description of a node to its message.
func nodeMessage(n agent.NodeStatus) *isthmusv1.GetNodeResponse {
	c := n.Counters
	m := &isthmusv1.GetNodeResponse{Node: n.Name, Os: string(n.Features.OS), Version: n.Version, Mode: n.Mode, Platform: n.Features.Platform,
		Ready: n.Ready, Problems: n.Problems, Endpoints: int32(n.Endpoints), PodsKnown: int32(n.Pods), Policies: int32(n.Policies),
		Tables: int32(n.Tables), PeerClasses: int32(n.PeerClasses), PortClasses: int32(n.PortClasses),
		IngressAllowed: c.Verdicts[model.Ingress][model.Allow], IngressDenied: c.Verdicts[model.Ingress][model.Deny],
		EgressAllowed: c.Verdicts[model.Egress][model.Allow], EgressDenied: c.Verdicts[model.Egress][model.Deny],
		AllowedNotCounted: c.Counted != model.AllFlows, DeniedNotCounted: c.Counted == model.NoFlows,
		DeniedIpv4: uint32(c.Deny.Entries[0]), DeniedIpv6: uint32(c.Deny.Entries[1])}
	if !n.AppliedAt.IsZero() {
		m.AppliedUnixNano = n.AppliedAt.UnixNano()
	}
	for _, p := range n.PodCIDRs {
		m.PodCidrs = append(m.PodCidrs, p.String())
	}
	for _, u := range n.Unsupported {
		m.Unsupported = append(m.Unsupported, u.String())
	}
	for _, d := range c.Deny.Devices {
		m.DenyDevices = append(m.DenyDevices, &isthmusv1.DenyDevice{Name: d.Name, Mode: d.Mode})
	}
	for _, w := range c.PathModes {
		m.PathModes = append(m.PathModes, &isthmusv1.PathMode{Part: w.Part, Mode: w.Mode, Count: uint32(w.Count)})
	}
	m.Facts, m.Repairs = c.Facts, n.Repairs
	return m
}

// endpointMessage converts a description of an attachment to its message.
func endpointMessage(e agent.EndpointStatus) *isthmusv1.Endpoint {
	a := agent.AttachmentOf(e.ID)
	m := &isthmusv1.Endpoint{Attachment: &isthmusv1.Attachment{ContainerId: a.ContainerID, IfName: a.IfName},
		PodNamespace: e.Pod.Namespace, PodName: e.Pod.Name, HostIfName: e.HostIfName, Table: e.Table, Problems: e.Problems,
		Unenforced: e.Unenforced, Observed: e.Observed, Attached: e.Attached}
	for _, ip := range e.Addresses {
		m.Addresses = append(m.Addresses, ip.String())
	}
	for _, p := range e.Policies {
		m.Policies = append(m.Policies, p.String())
	}
	if b := e.Bandwidth; b != (model.Bandwidth{}) {
		m.Bandwidth = &isthmusv1.Bandwidth{IngressRate: b.Ingress.Rate, IngressBurst: b.Ingress.Burst,
			EgressRate: b.Egress.Rate, EgressBurst: b.Egress.Burst}
	}
	if v := e.Verdicts; v != nil {
		m.Verdicts = &isthmusv1.Verdicts{IngressAllowed: v[model.Ingress][model.Allow], IngressDenied: v[model.Ingress][model.Deny],
			EgressAllowed: v[model.Egress][model.Allow], EgressDenied: v[model.Egress][model.Deny]}
	}
	return m
}
