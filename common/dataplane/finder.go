// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"net"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
)

// HandlePrefix begins the handle of an Interface. An EndpointSpec may have a handle in place of NetNS.
const HandlePrefix = "interface:"

// Finder is implemented by a Backend that finds the interfaces which another CNI plugin made.
type Finder interface {
	// Interfaces lists the interfaces that connect the node with network namespaces of others. It changes
	// nothing.
	Interfaces(ctx context.Context) ([]Interface, error)
	// CloseInterface drops every packet of an interface without an endpoint, until AddEndpoint names it. claim
	// is kept across restarts and appears in Interfaces. A missing interface is not an error.
	CloseInterface(ctx context.Context, handle, claim string) error
	// FindInterface returns the MAC of the interface to which AddEndpoint would attach, or its error about the
	// interface. It changes nothing.
	FindInterface(ctx context.Context, spec EndpointSpec) (net.HardwareAddr, error)
}

// Interface is an interface that another CNI plugin made.
type Interface struct {
	// Handle names the interface and is never used for another one.
	Handle string
	// Name is the name of the end in the namespace of the node, IfName that of the pod's end.
	Name, IfName string
	// Addresses are those of the pod's end. If the node routes to the interface, they are those that it routes
	// there.
	Addresses []netip.Addr
	// Owner is the endpoint of the interface; "" if it has none.
	Owner model.EndpointID
	// Closed says that the interface has no endpoint, and drops every packet. ClosedFor is the claim of
	// CloseInterface; "" if its endpoint was removed.
	Closed    bool
	ClosedFor string
	// Problem says why policy cannot be enforced on the interface; "" if it can.
	Problem string
}
