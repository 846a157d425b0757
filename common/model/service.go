// SPDX-License-Identifier: Apache-2.0

package model

import "net/netip"

// Service holds the fields of a Service on which the verdict of policies depends: to which pods and ports
// nodes forward connections, how clients outside the cluster reach them, and whether nodes masquerade them.
type Service struct {
	Namespace, Name string
	// Pods selects the backend pods in the Service's namespace. Without a selector in the Service it
	// matches nothing.
	Pods Selector
	// Selects is true if the Service has a selector.
	Selects bool
	Ports   []ServicePort
	// Headless is true if it has no cluster IP: clients find and call the addresses of its pods.
	Headless bool
	// ExternalName is the DNS name that replaces its own; empty for other types of Services.
	ExternalName string
	// External is how clients outside the cluster reach it: "NodePort", "LoadBalancer" or "externalIPs";
	// empty if they cannot.
	External string
	// KeepsClients is true if nodes forward packets only to their own pods and keep the client's address
	// (externalTrafficPolicy: Local).
	KeepsClients bool
	// OwnNode is true if a client in the cluster that calls a cluster IP reaches only backends on its own node
	// (internalTrafficPolicy: Local).
	OwnNode bool
	// Addresses are its cluster IPs, external IPs and those of its load balancer. The first ClusterIPs are cluster IPs, the next
	// ExternalIPs external IPs.
	Addresses               []netip.Addr
	ClusterIPs, ExternalIPs int
	// Sources are the clients that nodes accept at the addresses of its load balancer. A family without prefixes is not restricted.
	Sources []netip.Prefix
	// NoIPv4 and NoIPv6 are true if its IP families do not have the version (ipFamilies).
	NoIPv4, NoIPv6 bool
}

// ServicePort is a port of a Service.
type ServicePort struct {
	// Name may be empty if there is one port.
	Name     string
	Protocol Protocol
	// Port is the port that clients call.
	Port uint16
	// Target is the port of the pods, and TargetName the name that they give it. One of them is set.
	Target     uint16
	TargetName string
	// Node is the port of every node that leads to the Service; 0 if there is none.
	Node uint16
}

// EndpointSlice holds a part of the endpoints of a Service.
type EndpointSlice struct {
	Namespace, Name string
	// Service is the name of the Service in its namespace; empty if the slice belongs to none.
	Service string
	// Ports are the ports of the endpoints, under the names of the ports of the Service.
	Ports []NamedPort
	// Addresses are those of the ready endpoints.
	Addresses []netip.Addr
	// Draining are those of endpoints that terminate and still serve: nodes use them while no endpoint is ready.
	Draining []netip.Addr
}

// Serves reports whether clients reach the Service by an IP version, as far as its IP families say.
func (s *Service) Serves(v6 bool) bool { return v6 && !s.NoIPv6 || !v6 && !s.NoIPv4 }

// HidesClients reports whether a node that forwards a client's packets to a pod of another
// node replaces the client's address by its own.
func (s *Service) HidesClients() bool { return s.External != "" && !s.KeepsClients }
