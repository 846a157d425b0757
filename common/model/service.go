// SPDX-License-Identifier: Apache-2.0

package model

import "net/netip"

// Service holds the fields of a Service that policies depend on: how clients outside the cluster reach its
// pods, and whether nodes masquerade them.
type Service struct {
	Namespace, Name string
	// Pods selects the backend pods in the Service's namespace. Without a selector in the Service it
	// matches nothing.
	Pods Selector
	// External is how clients outside the cluster reach it: "NodePort", "LoadBalancer" or "externalIPs";
	// empty if they cannot.
	External string
	// KeepsClients is true if nodes forward packets only to their own pods and keep the client's address
	// (externalTrafficPolicy: Local).
	KeepsClients bool
	// Addresses are its cluster IPs, external IPs and those of its load balancer.
	Addresses []netip.Addr
}

// HidesClients reports whether a node that forwards a client's packets to a pod of another
// node replaces the client's address by its own.
func (s *Service) HidesClients() bool { return s.External != "" && !s.KeepsClients }
