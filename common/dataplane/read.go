// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"encoding/json"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
)

// Reader is a Backend that reads its decisions back from the system, so that a tool can compare them with the
// policies.
type Reader interface {
	// ReadDecisions reads what the system decides now, whatever this process has written. It changes nothing.
	// The agent calls it from the goroutine of the other methods.
	ReadDecisions(ctx context.Context) (Decisions, error)
}

// Decisions are what a system decides: State where it stores classes, Lists where it stores rules.
type Decisions struct {
	// State has no terms, and causes only where they are stored. Its endpoints have neither pods nor addresses.
	State *model.State
	// Lists are rules in a form of the system's own.
	Lists json.RawMessage
	// NodeAddresses are the node's addresses besides those of its Node object, as rules use them.
	NodeAddresses []netip.Addr
	// Problems name what was read and has no meaning.
	Problems []string
}
