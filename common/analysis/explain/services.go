// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// hiddenClients returns a note for every Service that may hide the client of a flow
// from outside the cluster. If such a Service receives the packets on another node than
// the pod's, that node masquerades them, and policy decides on the node's address.
func hiddenClients(s *model.Snapshot, owners model.Owners, client netip.Addr, pod *model.Pod, services []*model.Service) []string {
	if owners.Pods[client] != nil || owners.Nodes[client] != nil || s.PodRange(client) {
		return nil
	}
	var notes []string
	for _, v := range services {
		if v.HidesClients() && v.Namespace == pod.Namespace && v.Pods.Matches(pod.Labels) {
			notes = append(notes, fmt.Sprintf("Service %s/%s (%s) leads to this pod: if its packets arrive at another node, policy sees that "+
				"node's address instead of %s; externalTrafficPolicy: Local keeps the client's address", v.Namespace, v.Name, v.External, client))
		}
	}
	return notes
}

// behindNode says that a port of a node leads to a Service or a pod, about whose pods policy decides.
func behindNode(s *model.Snapshot, n *model.Node, f model.Flow, services []*model.Service) []string {
	for _, v := range services {
		if slices.ContainsFunc(v.Ports, func(p model.ServicePort) bool { return p.Node == f.Port && p.Protocol == f.Protocol && f.Port != 0 }) {
			return []string{fmt.Sprintf("%s %d of node %s leads to Service %s/%s: explain the flows to its pods", f.Protocol, f.Port, n.Name, v.Namespace, v.Name)}
		}
	}
	for _, pod := range s.Pods.All() {
		if pod.Node != n.Name || !pod.Policed() {
			continue
		}
		if h, ok := pod.HostPort(netip.AddrPortFrom(f.Dst, f.Port), f.Protocol); ok {
			return []string{fmt.Sprintf("%s %d of node %s is a host port of %s: explain the flow to port %d of that pod", f.Protocol, f.Port, n.Name, pod.PodID, h.Port)}
		}
	}
	return nil
}
