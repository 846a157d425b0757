// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"fmt"
	"slices"
)

// RequestType is the operation of a modification on the policies that it carries.
type RequestType string

// The request types.
const (
	// Add appends policies without comparing them with the current ones.
	Add RequestType = "Add"
	// Remove removes policies whose settings equal the given ones.
	Remove RequestType = "Remove"
	// Update replaces policies. It is not documented whether it replaces all policies or only the types in
	// the request: callers send all of them. On a network it replaces only the sets with the same ids.
	Update RequestType = "Update"
)

// HostNamespace means the host's own compartment in AttachEndpoint.
const HostNamespace = "host"

// Client reads and writes the objects of HNS. Results are the full objects as HNS stores them, with members
// that the request did not contain. Every error is an *Error, which errors.Is matches with one of the four
// class errors. The only exceptions are the context's own errors.
//
// A call that the context interrupts may still take effect later. Methods are safe for concurrent use; HNS
// executes calls one after the other.
type Client interface {
	// Version returns the version of HNS, which determines its features.
	Version(ctx context.Context) (Version, error)

	// Networks lists all networks.
	Networks(ctx context.Context) ([]Network, error)
	// CreateNetwork creates a network and its vSwitch. HNS may rebind the adapter, which disturbs the
	// host's traffic for seconds. Policies such as DrMacAddress appear later. ErrConflict: the name is in
	// use.
	CreateNetwork(ctx context.Context, n Network) (Network, error)
	// ModifyNetwork changes policies of a network. ErrGone: the network does not exist. ErrRefused: a
	// policy is malformed, unknown to this version, or in use.
	ModifyNetwork(ctx context.Context, id string, r RequestType, policies ...Policy) (Network, error)
	// DeleteNetwork removes a network with everything on it.
	DeleteNetwork(ctx context.Context, id string) error

	// Endpoints lists the endpoints of a network, remote ones included. ErrGone: the network, or an
	// endpoint in the middle of the listing, was removed meanwhile; list again.
	Endpoints(ctx context.Context, network string) ([]Endpoint, error)
	// CreateEndpoint creates an endpoint on e.HostComputeNetwork with its policies in force from the start.
	// ErrConflict: the address is in use. ErrRefused: the address is reserved or outside the subnets, or a
	// policy is malformed. A failed creation leaves nothing.
	CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error)
	// ModifyEndpoint changes policies of an endpoint in one step. ErrGone: the endpoint does not exist.
	ModifyEndpoint(ctx context.Context, id string, r RequestType, policies ...Policy) (Endpoint, error)
	// DeleteEndpoint detaches and removes an endpoint. ErrGone: it does not exist.
	DeleteEndpoint(ctx context.Context, id string) error

	// Namespace returns a namespace. ErrGone: it does not exist.
	Namespace(ctx context.Context, id string) (Namespace, error)
	// AttachEndpoint attaches an endpoint to a namespace, or to the host's compartment with HostNamespace.
	// ErrGone: either does not exist. ErrConflict: the endpoint is in another namespace, or on the host
	// already. ErrRefused: it is remote.
	AttachEndpoint(ctx context.Context, namespace, endpoint string) error
	// DetachEndpoint detaches an endpoint from a namespace. ErrGone: either does not exist, or the endpoint
	// is not in it.
	DetachEndpoint(ctx context.Context, namespace, endpoint string) error
}

// Stats are the packet counts of an endpoint since its creation. HNS does not report why packets were
// dropped.
type Stats struct {
	PacketsReceived, PacketsSent uint64
	DroppedIn, DroppedOut        uint64
}

// State is the state of an endpoint.
type State int

// The states as numbered in schema 1; schema 2 does not show them.
const (
	StateNone State = iota
	StateCreated
	StateAttached
	StateAttachedSharing
	StateDetached
	StateDegraded
	StateDestroyed
)

// Broken reports whether an endpoint in this state forwards no packets and will not recover by itself.
func (s State) Broken() bool { return s == StateDegraded || s == StateDestroyed }

// String returns "degraded (5)".
func (s State) String() string {
	names := [...]string{"none", "created", "attached", "attached and shared", "detached", "degraded", "destroyed"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("unknown (%d)", int(s))
	}
	return fmt.Sprintf("%s (%d)", names[s], int(s))
}

// Stater is implemented by clients that can read the states of endpoints.
type Stater interface {
	// EndpointStates returns the state of every endpoint, including those of other networks, by its GUID in
	// lower case.
	EndpointStates(ctx context.Context) (map[string]State, error)
}

// Summarizer is implemented by clients that can describe all endpoints in one call.
type Summarizer interface {
	// Summary returns a text that changes if an endpoint comes or goes, or gets another namespace, address or policy. Remote endpoints do not
	// count. A listing makes three calls for each endpoint, also for the remote ones: kube-proxy makes one for each backend of a Service.
	Summary(ctx context.Context) (string, error)
}

// Meter is implemented by clients that can count packets.
type Meter interface {
	// EndpointStats returns the counts of an endpoint. ErrGone: it does not exist.
	EndpointStats(ctx context.Context, id string) (Stats, error)
}

// The flags of a load balancer: with direct server return, and for IPv6.
const (
	DSRFlag      = 1
	BalancerIPv6 = 2
)

// LoadBalancer is the part of a load balancer that Isthmus reads. kube-proxy makes them.
type LoadBalancer struct {
	// FrontendVIPs are the addresses of the Service; empty, or an empty text, for a NodePort.
	FrontendVIPs []string
	Flags        uint32
	Ports        []BalancerPort
}

// BalancerPort is a port of a Service.
type BalancerPort struct {
	Protocol uint32
	External uint16
}

// DSR reports whether backends see the client and answer it directly.
func (b *LoadBalancer) DSR() bool { return b.Flags&DSRFlag != 0 }

// HasAddress reports whether it serves an address, not a port of the node.
func (b *LoadBalancer) HasAddress() bool {
	return slices.ContainsFunc(b.FrontendVIPs, func(a string) bool { return a != "" })
}

// Balancers is implemented by clients that can list load balancers.
type Balancers interface {
	// LoadBalancers lists all load balancers of the host.
	LoadBalancers(ctx context.Context) ([]LoadBalancer, error)
}
