// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
)

// Endpoint is a local attachment to compile a Table for. Policies apply to it as to its own
// pod; a pod may have several endpoints.
type Endpoint struct {
	Pod model.PodID
	// IPs are the addresses that the endpoint really has. They replace the pod's addresses
	// in the API, which may be late.
	IPs []netip.Addr
	// Further are its further addresses. No other object has them, see model.EndpointState.
	Further []netip.Addr
}

// Input is everything that a Compile reads.
type Input struct {
	Snapshot *model.Snapshot
	// Node is the name of the node to compile for.
	Node      string
	Endpoints map[model.EndpointID]Endpoint
	Limits    Limits
	// Observe says which endpoints are observed.
	Observe model.Observation
	// Previous, if not nil, is a State compiled before for this node. Classes that keep
	// their meaning keep their numbers, so that the backend has little to change. A Compiler
	// reads Previous in its first Compile only.
	Previous *model.State
}

// Once compiles the state that a node should enforce, from scratch. It is a pure function.
// Without Previous equal inputs give equal States; with it the States are equal up to the
// numbers of classes. Once returns every construct that it cannot compile exactly as an
// Unsupported, and such a construct fails closed.
func Once(in Input) (*model.State, []model.Unsupported) { return New().Compile(in) }
