// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// AtNode returns the Service, and the port of it, to which a node forwards connections to a port of its own address. It
// returns nil if the address is not that of a node, or if the port leads to no Service.
func (t *Services) AtNode(a netip.Addr, protocol model.Protocol, port uint16) (*model.Service, model.ServicePort) {
	if t.owners.Nodes[a] == nil || port == 0 {
		return nil, model.ServicePort{}
	}
	for _, s := range t.all {
		for _, p := range s.Ports {
			if p.Node == port && p.Protocol == protocol {
				return s, p
			}
		}
	}
	return nil, model.ServicePort{}
}

// ByNode returns the backends to which a node forwards a client of its node port. With externalTrafficPolicy Local, a
// client outside the cluster reaches the pods of the node only.
func (t *Services) ByNode(s *model.Service, node, client netip.Addr, all []Backend) []Backend {
	if !s.KeepsClients || t.owners.Pods[client] != nil || t.owners.Nodes[client] != nil {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(b Backend) bool {
		pod := t.owners.Pods[b.Addresses[0]]
		return pod == nil || t.owners.Nodes[node] == nil || pod.Node != t.owners.Nodes[node].Name
	})
}
