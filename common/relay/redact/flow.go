// SPDX-License-Identifier: Apache-2.0

package redact

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
)

// The types of events in Flow.event_type.
const (
	eventDrop    = 1
	eventVerdict = 5
)

// The identities of ends that are not pods, and of a hidden end.
const (
	identityHidden     = 0
	identityHost       = 1
	identityWorld      = 2
	identityRemoteNode = 6
)

// hiddenSummary replaces the cause of a verdict that the rules of a hidden end decided.
const hiddenSummary = "decided at the other end"

// Flow returns what a scope shows of a flow, nil if neither end belongs to it. The result is a new message of the
// fields that are known to be harmless, so that a new field stays hidden. It shares parts with the argument.
func Flow(scope access.Scope, key []byte, f *flow.Flow) *flow.Flow {
	if f == nil || !scope.All && !scope.Sees(f.GetSource().GetNamespace()) && !scope.Sees(f.GetDestination().GetNamespace()) {
		return nil
	}
	src, dst := showEnd(scope, f.GetSource()), showEnd(scope, f.GetDestination())
	out := &flow.Flow{Time: f.GetTime(), Verdict: f.GetVerdict(), L4: f.GetL4(), Type: f.GetType(), TrafficDirection: f.GetTrafficDirection(),
		IsReply: f.GetIsReply(), Aggregate: f.GetAggregate(), Source: src.endpoint, Destination: dst.endpoint}
	if src.named {
		out.SourceNames, out.SourceService = f.GetSourceNames(), showService(scope, f.GetSourceService())
	}
	if dst.named {
		out.DestinationNames, out.DestinationService = f.GetDestinationNames(), showService(scope, f.GetDestinationService())
	}
	if ip := f.GetIP(); ip != nil {
		out.IP = &flow.IP{IpVersion: ip.GetIpVersion(), Encrypted: ip.GetEncrypted()}
		if src.address {
			out.IP.Source = ip.GetSource()
		}
		if dst.address {
			out.IP.Destination = ip.GetDestination()
		}
		if scope.Nodes {
			out.IP.SourceXlated = ip.GetSourceXlated()
		}
	}
	if scope.Nodes {
		out.NodeName, out.NodeLabels, out.Emitter, out.Interface, out.Uuid = f.GetNodeName(), f.GetNodeLabels(), f.GetEmitter(), f.GetInterface(), f.GetUuid()
	} else {
		out.Uuid = blind(key, f.GetUuid())
	}
	showCause(out, f, scope, src, dst)
	return out
}

// end is one end of a flow, reduced to what a scope shows.
type end struct {
	endpoint *flow.Endpoint
	// own is true for a pod of the scope. named and address are true if the scope shows names and address.
	own, named, address bool
}

// showEnd shows pods of the scope, addresses outside of the cluster, and that another end is a node or hidden.
func showEnd(scope access.Scope, e *flow.Endpoint) end {
	pod := e.GetNamespace() != "" || e.GetPodName() != ""
	switch {
	case pod && scope.Sees(e.GetNamespace()):
		return end{&flow.Endpoint{ID: e.GetID(), Identity: e.GetIdentity(), Namespace: e.GetNamespace(), Labels: e.GetLabels(),
			PodName: e.GetPodName(), Workloads: e.GetWorkloads(), ClusterName: e.GetClusterName()}, true, true, true}
	case pod:
		return end{endpoint: &flow.Endpoint{Identity: identityHidden, Labels: []string{"isthmus:hidden"}}}
	case e.GetIdentity() == identityWorld:
		return end{&flow.Endpoint{Identity: identityWorld, Labels: []string{"reserved:world"}}, false, true, true}
	case e.GetIdentity() == identityHost:
		return end{endpoint: &flow.Endpoint{Identity: identityHost, Labels: []string{"reserved:host"}}, address: scope.Nodes}
	case e.GetIdentity() == identityRemoteNode:
		return end{endpoint: &flow.Endpoint{Identity: identityRemoteNode, Labels: []string{"reserved:remote-node"}}, address: scope.Nodes}
	}
	return end{endpoint: &flow.Endpoint{Labels: []string{"reserved:unknown"}}, address: scope.All && scope.Nodes}
}

func showService(scope access.Scope, s *flow.Service) *flow.Service {
	if s == nil || !scope.Sees(s.GetNamespace()) {
		return nil
	}
	return &flow.Service{Name: s.GetName(), Namespace: s.GetNamespace()}
}

// showCause shows why a flow has its verdict, if the rules of a pod of the scope decided. Otherwise it shows only
// that a policy or another check decided, as the client would notice itself.
func showCause(out, f *flow.Flow, scope access.Scope, src, dst end) {
	var whole [4]bool
	if src.own {
		out.EgressAllowedBy, whole[0] = showPolicies(scope, f.GetEgressAllowedBy())
		out.EgressDeniedBy, whole[1] = showPolicies(scope, f.GetEgressDeniedBy())
	}
	if dst.own {
		out.IngressAllowedBy, whole[2] = showPolicies(scope, f.GetIngressAllowedBy())
		out.IngressDeniedBy, whole[3] = showPolicies(scope, f.GetIngressDeniedBy())
	}
	egress, ingress := f.GetTrafficDirection() == flow.TrafficDirection_EGRESS, f.GetTrafficDirection() == flow.TrafficDirection_INGRESS
	if egress && whole[0] && whole[1] || ingress && whole[2] && whole[3] {
		out.EventType, out.PolicyMatchType, out.DropReasonDesc = f.GetEventType(), f.GetPolicyMatchType(), f.GetDropReasonDesc()
		out.Summary, out.PolicyLog = f.GetSummary(), f.GetPolicyLog()
		return
	}
	out.Summary, out.PolicyLog = hiddenSummary, []string{hiddenSummary}
	out.EventType = &flow.CiliumEventType{Type: eventDrop}
	if f.GetEventType().GetType() == eventVerdict {
		out.EventType.Type = eventVerdict
		if f.GetVerdict() == flow.Verdict_DROPPED {
			out.DropReasonDesc, out.EventType.SubType = flow.DropReason_POLICY_DENIED, int32(flow.DropReason_POLICY_DENIED)
		}
	}
}

// showPolicies shows the policies of the scope and those of the whole cluster, and reports whether these are all.
func showPolicies(scope access.Scope, list []*flow.Policy) (shown []*flow.Policy, whole bool) {
	for _, p := range list {
		if n := p.GetNamespace(); n == "" || scope.Sees(n) {
			shown = append(shown, p)
		}
	}
	return shown, len(shown) == len(list)
}

// blind returns an identifier of a flow from which the node and the number of its flows do not follow.
func blind(key []byte, uuid string) string {
	if uuid == "" {
		return ""
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(uuid))
	b := mac.Sum(nil)[:16]
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80 // version 8: of the application
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
