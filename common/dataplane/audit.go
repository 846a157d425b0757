// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"

	"github.com/isthmus-net/isthmus/common/model"
)

// Auditor is a Backend that can compare what the system holds with what it
// should.
type Auditor interface {
	// Audit reads what is in force and compares it with the State that the
	// last Apply has put in force. It changes nothing; an Apply of that State
	// repairs what is returned. Attachments are looked at by Endpoints.
	Audit(ctx context.Context, s *model.State) ([]Drift, error)
}

// Drift is one thing that is not as Isthmus has left it.
type Drift struct {
	// Object is the kind of thing; a backend has a handful of kinds.
	Object string
	// Endpoint is set if the thing belongs to one.
	Endpoint model.EndpointID
	Detail   string
}
