// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
)

// Endpoint is a local attachment to compile a Table for. It is decided for its
// own pod; a pod may have several.
type Endpoint struct {
	Pod model.PodID
	// IPs are the addresses that the endpoint really has. They count for its
	// pod in place of what the API shows, which may be late.
	IPs []netip.Addr
}

// Input is everything that a Compile sees.
type Input struct {
	Snapshot *model.Snapshot
	// Node is the name of the node to compile for.
	Node      string
	Endpoints map[model.EndpointID]Endpoint
	Limits    Limits
	// Previous, if given, is a State that was compiled before for this node:
	// classes that still mean the same keep their numbers, so that the backend
	// has little to change. A Compiler reads it in its first Compile only.
	Previous *model.State
}

// Once compiles what a node should enforce, from scratch. It is a pure function;
// without Previous equal inputs give equal States, with it they give States that
// are equal up to the numbers of classes. Every construct that cannot be compiled
// exactly is returned as an Unsupported and fails closed.
func Once(in Input) (*model.State, []model.Unsupported) { return New().Compile(in) }
