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
	if !s.KeepsClients || t.nodeOf(client) != "" {
		return all
	}
	return t.on(t.nodeOf(node), all)
}

// ByClient returns the backends to which the node of a client forwards it. to is the address that the client calls; if it
// is not set, that is a cluster IP. With internalTrafficPolicy Local, a client in the cluster reaches by a cluster IP the
// pods of its own node only.
func (t *Services) ByClient(s *model.Service, to, client netip.Addr, all []Backend) []Backend {
	if !s.OwnNode || s.Headless || to.IsValid() && !slices.Contains(s.Addresses[:s.ClusterIPs], to) {
		return all
	}
	node := t.nodeOf(client)
	if node == "" {
		return all
	}
	return t.on(node, all)
}

// on returns the backends on a node. Pods on the host network have its address.
func (t *Services) on(node string, all []Backend) []Backend {
	return slices.DeleteFunc(slices.Clone(all), func(b Backend) bool { return node == "" || t.nodeOf(b.Addresses[0]) != node })
}

// nodeOf returns the node of a pod, or of the node itself, by an address; "" for any other address.
func (t *Services) nodeOf(a netip.Addr) string {
	if pod := t.owners.Pods[a]; pod != nil {
		return pod.Node
	}
	if n := t.owners.Nodes[a]; n != nil {
		return n.Name
	}
	return ""
}
