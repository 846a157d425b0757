// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"fmt"
)

// RequestType says what a modification does with the policies that it carries.
type RequestType string

// The request types.
const (
	// Add appends policies; nothing is compared with what is there.
	Add RequestType = "Add"
	// Remove takes away policies whose settings equal the given ones.
	Remove RequestType = "Remove"
	// Update replaces. Whether only the types that the request carries or all
	// policies are replaced is not documented: callers send all of them. On a
	// network it replaces the sets with the same ids and nothing else.
	Update RequestType = "Update"
)

// HostNamespace stands for the host's own compartment in AttachEndpoint.
const HostNamespace = "host"

// Client reads and writes the objects of HNS. Answers are the full objects as
// HNS stores them, with members that nobody asked for. Every error is an
// *Error, to be told apart with errors.Is and the four class errors, except for
// the context's own.
//
// A call that the context interrupts may still take effect later. Methods may
// be called from several goroutines; HNS works on them one after the other.
type Client interface {
	// Version returns the version of HNS, by which features are known.
	Version(ctx context.Context) (Version, error)

	// Networks lists all networks.
	Networks(ctx context.Context) ([]Network, error)
	// CreateNetwork makes a network and its vSwitch. The adapter may be bound
	// anew, which disturbs the host's traffic for seconds, and policies such as
	// DrMacAddress appear later. ErrConflict: the name is taken.
	CreateNetwork(ctx context.Context, n Network) (Network, error)
	// ModifyNetwork changes policies of a network. ErrGone: there is no such
	// network. ErrRefused: a policy is malformed, unknown to this version, or
	// in use.
	ModifyNetwork(ctx context.Context, id string, r RequestType, policies ...Policy) (Network, error)
	// DeleteNetwork removes a network with everything on it.
	DeleteNetwork(ctx context.Context, id string) error

	// Endpoints lists the endpoints of a network, remote ones included.
	// ErrGone: the network, or an endpoint in the middle of the listing, was
	// removed meanwhile; list again.
	Endpoints(ctx context.Context, network string) ([]Endpoint, error)
	// CreateEndpoint makes an endpoint on e.HostComputeNetwork with its
	// policies in force from the start. ErrConflict: the address is taken.
	// ErrRefused: the address is reserved or outside the subnets, or a policy
	// is malformed. A failed creation leaves nothing.
	CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error)
	// ModifyEndpoint changes policies of an endpoint in one step. ErrGone:
	// there is no such endpoint.
	ModifyEndpoint(ctx context.Context, id string, r RequestType, policies ...Policy) (Endpoint, error)
	// DeleteEndpoint detaches and removes an endpoint. ErrGone: there is none.
	DeleteEndpoint(ctx context.Context, id string) error

	// Namespace returns a namespace. ErrGone: there is no such namespace.
	Namespace(ctx context.Context, id string) (Namespace, error)
	// AttachEndpoint puts an endpoint into a namespace, or into the host's
	// compartment with HostNamespace. ErrGone: either does not exist.
	// ErrConflict: the endpoint is in another namespace, or on the host already.
	// ErrRefused: it is remote.
	AttachEndpoint(ctx context.Context, namespace, endpoint string) error
	// DetachEndpoint takes an endpoint out of a namespace. ErrGone: either does
	// not exist, or the endpoint is not in it.
	DetachEndpoint(ctx context.Context, namespace, endpoint string) error
}

// Stats are the packet counts of an endpoint since it was made. HNS does not
// say why packets were dropped.
type Stats struct {
	PacketsReceived, PacketsSent uint64
	DroppedIn, DroppedOut        uint64
}

// State is how far an endpoint has got.
type State int

// The states as schema 1 numbers them; schema 2 does not show them.
const (
	StateNone State = iota
	StateCreated
	StateAttached
	StateAttachedSharing
	StateDetached
	StateDegraded
	StateDestroyed
)

// Broken reports whether an endpoint in this state moves no packets and never
// will by itself.
func (s State) Broken() bool { return s == StateDegraded || s == StateDestroyed }

// String returns "degraded (5)".
func (s State) String() string {
	names := [...]string{"none", "created", "attached", "attached and shared", "detached", "degraded", "destroyed"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("unknown (%d)", int(s))
	}
	return fmt.Sprintf("%s (%d)", names[s], int(s))
}

// Stater is implemented by clients that can tell the states of endpoints.
type Stater interface {
	// EndpointStates returns the state of every endpoint by its GUID in lower
	// case, those of other networks included.
	EndpointStates(ctx context.Context) (map[string]State, error)
}

// Meter is implemented by clients that can count packets.
type Meter interface {
	// EndpointStats returns the counts of an endpoint. ErrGone: there is none.
	EndpointStats(ctx context.Context, id string) (Stats, error)
}
