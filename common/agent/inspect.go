// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/isthmus-net/isthmus/common/cniapi"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// inspectServer serves isthmusctl.
type inspectServer struct {
	cniapi.UnimplementedInspectServer
	agent *Agent
}

// GetNode implements cniapi.InspectServer. It does not need the loop, so it answers when the loop hangs.
func (s *inspectServer) GetNode(ctx context.Context, _ *cniapi.GetNodeRequest) (*cniapi.GetNodeResponse, error) {
	a := s.agent
	v := a.view.Load()
	r := &cniapi.GetNodeResponse{Node: a.cfg.NodeName, Os: string(v.features.OS), Version: a.cfg.Version, Platform: v.features.Platform,
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
		r.DenyDevices = append(r.DenyDevices, &cniapi.DenyDevice{Name: d.Name, Mode: d.Mode})
	}
	for _, w := range n.PathModes {
		r.PathModes = append(r.PathModes, &cniapi.PathMode{Part: w.Part, Mode: w.Mode, Count: uint32(w.Count)})
	}
	r.Problems = append(r.Problems, n.Deny.Problems...)
	r.EgressAllowed, r.EgressDenied = n.Verdicts[model.Egress][model.Allow], n.Verdicts[model.Egress][model.Deny]
	return r, nil
}

// ListEndpoints implements cniapi.InspectServer. It reads problems of attachments from the data path.
func (s *inspectServer) ListEndpoints(ctx context.Context, _ *cniapi.ListEndpointsRequest) (*cniapi.ListEndpointsResponse, error) {
	r := &cniapi.ListEndpointsResponse{}
	err := s.agent.do(ctx, func(l *loop) { r.Endpoints = l.list() })
	if err != nil {
		return nil, status.Error(codes.Unavailable, asError(err).Error())
	}
	return r, nil
}

// list describes the endpoints in order of creation, then the attachments without a record.
func (l *loop) list() []*cniapi.Endpoint {
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
	var list []*cniapi.Endpoint
	for _, e := range l.sorted() {
		if e.State == endpoint.Released {
			continue
		}
		list = append(list, l.describe(e, installed, unread))
		delete(installed, e.ID())
	}
	for id, i := range installed {
		list = append(list, &cniapi.Endpoint{Attachment: attachmentOf(id), Problems: append([]string{"no endpoint record: the next GC removes it"}, i.Problems...)})
	}
	return list
}

func (l *loop) describe(e *entry, installed map[model.EndpointID]dataplane.Installed, unread error) *cniapi.Endpoint {
	d := &cniapi.Endpoint{Attachment: attachmentOf(e.ID()), PodNamespace: e.Namespace, PodName: e.Name, HostIfName: e.attachment.HostIfName}
	for _, ip := range e.IPs {
		d.Addresses = append(d.Addresses, ip.String())
	}
	if e.Bandwidth != (model.Bandwidth{}) {
		d.Bandwidth = &cniapi.Bandwidth{IngressRate: e.Bandwidth.Ingress.Rate, IngressBurst: e.Bandwidth.Ingress.Burst,
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
