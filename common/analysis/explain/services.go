// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"

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
