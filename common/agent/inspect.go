// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// inspectServer serves isthmusctl.
type inspectServer struct {
	isthmusv1.UnimplementedInspectServer
	agent *Agent
}

// GetNode implements isthmusv1.InspectServer. It does not need the loop, so it answers when the loop hangs.
func (s *inspectServer) GetNode(ctx context.Context, _ *isthmusv1.GetNodeRequest) (*isthmusv1.GetNodeResponse, error) {
	a := s.agent
	v := a.view.Load()
	r := &isthmusv1.GetNodeResponse{Node: a.cfg.NodeName, Os: string(v.features.OS), Version: a.cfg.Version, Platform: v.features.Platform,
		Ready: v.ready, Problems: a.allProblems(v), Endpoints: int32(v.endpoints), PodsKnown: int32(v.pods), Policies: int32(v.policies),
		Tables: int32(v.tables), PeerClasses: int32(v.peerClasses), PortClasses: int32(v.portClasses)}
	if !v.appliedAt.IsZero() {
		r.AppliedUnixNano = v.appliedAt.UnixNano()
	}
	for _, p := range v.ranges {
		r.PodCidrs = append(r.PodCidrs, p.String())
	}
	for _, u := range v.unsupported {
		r.Unsupported = append(r.Unsupported, u.String())
	}
	if v.backend == nil {
		return r, nil
	}
	ctx, cancel := context.WithTimeout(ctx, countersTimeout)
	defer cancel()
	n, err := v.backend.Counters(ctx)
	if err != nil {
		r.Problems = append(r.Problems, "cannot read counters: "+oneLine(err))
		return r, nil
	}
	r.IngressAllowed, r.IngressDenied = n.Verdicts[model.Ingress][model.Allow], n.Verdicts[model.Ingress][model.Deny]
	r.DeniedIpv4, r.DeniedIpv6 = uint32(n.Deny.Entries[0]), uint32(n.Deny.Entries[1])
	for _, d := range n.Deny.Devices {
		r.DenyDevices = append(r.DenyDevices, &isthmusv1.DenyDevice{Name: d.Name, Mode: d.Mode})
	}
	for _, w := range n.PathModes {
		r.PathModes = append(r.PathModes, &isthmusv1.PathMode{Part: w.Part, Mode: w.Mode, Count: uint32(w.Count)})
	}
	r.Problems = append(r.Problems, n.Deny.Problems...)
	r.EgressAllowed, r.EgressDenied = n.Verdicts[model.Egress][model.Allow], n.Verdicts[model.Egress][model.Deny]
	return r, nil
}

// ListEndpoints implements isthmusv1.InspectServer. It reads problems of attachments from the data path.
func (s *inspectServer) ListEndpoints(ctx context.Context, _ *isthmusv1.ListEndpointsRequest) (*isthmusv1.ListEndpointsResponse, error) {
	r := &isthmusv1.ListEndpointsResponse{}
	err := s.agent.do(ctx, func(l *loop) { r.Endpoints = l.list() })
	if err != nil {
		return nil, status.Error(codes.Unavailable, asError(err).Error())
	}
	return r, nil
}

// list describes the endpoints in order of creation, then the attachments without a record.
func (l *loop) list() []*isthmusv1.Endpoint {
	installed := make(map[model.EndpointID]dataplane.Installed)
	var unread error
	if l.backend != nil {
		ctx, cancel := l.opContext()
		defer cancel()
		all, err := l.backend.Endpoints(ctx)
		unread = err
		for _, i := range all {
			installed[i.ID] = i
		}
	}
	var list []*isthmusv1.Endpoint
	for _, e := range l.sorted() {
		if e.State == endpoint.Released {
			continue
		}
		list = append(list, l.describe(e, installed, unread))
		delete(installed, e.ID())
	}
	for id, i := range installed {
		list = append(list, &isthmusv1.Endpoint{Attachment: attachmentMessage(id), Problems: append([]string{"no endpoint record: the next GC removes it"}, i.Problems...)})
	}
	return list
}

func (l *loop) describe(e *entry, installed map[model.EndpointID]dataplane.Installed, unread error) *isthmusv1.Endpoint {
	d := &isthmusv1.Endpoint{Attachment: attachmentMessage(e.ID()), PodNamespace: e.Namespace, PodName: e.Name, HostIfName: e.attachment.HostIfName}
	for _, ip := range e.IPs {
		d.Addresses = append(d.Addresses, ip.String())
	}
	if e.Bandwidth != (model.Bandwidth{}) {
		d.Bandwidth = &isthmusv1.Bandwidth{IngressRate: e.Bandwidth.Ingress.Rate, IngressBurst: e.Bandwidth.Ingress.Burst,
			EgressRate: e.Bandwidth.Egress.Rate, EgressBurst: e.Bandwidth.Egress.Burst}
	}
	id := e.ID()
	if l.enforced.covered[id] {
		d.Table = l.enforced.inForce.Policy.Endpoints[id].Table.String()
	}
	if e.problem != nil {
		d.Problems = append(d.Problems, oneLine(e.problem))
	}
	if e.State == endpoint.Adding {
		d.Problems = append(d.Problems, "is attached only in part")
	}
	i, ok := installed[id]
	switch {
	case l.backend == nil:
		d.Problems = append(d.Problems, "the data path is not open")
	case unread != nil:
		d.Problems = append(d.Problems, "cannot read the data path: "+oneLine(unread))
	case !ok:
		d.Problems = append(d.Problems, "is not attached")
	default:
		d.Problems = append(d.Problems, i.Problems...)
	}
	if l.snapshot == nil {
		return d
	}
	pod, ok := l.snapshot.Pods.Get(e.Pod())
	switch {
	case !ok:
		d.Problems = append(d.Problems, fmt.Sprintf("pod %s is not known: all traffic is denied", e.Pod()))
		return d
	case l.outlived(e):
		d.Problems = append(d.Problems, fmt.Sprintf("another pod now has the name %s: all traffic is denied", e.Pod()))
		return d
	}
	ns := l.snapshot.Namespace(pod.Namespace)
	for _, p := range l.snapshot.SortedPolicies() {
		if p.Subject.MatchesNamespace(ns) && p.Subject.Pods.Matches(pod.Labels) {
			d.Policies = append(d.Policies, p.Origin.String())
		}
	}
	return d
}

func attachmentMessage(id model.EndpointID) *isthmusv1.Attachment {
	a := attachmentOf(id)
	return &isthmusv1.Attachment{ContainerId: a.ContainerID, IfName: a.IfName}
}
