// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"

	"github.com/isthmus-net/isthmus/common/model"
)

// Auditor is a Backend that can compare installed with intended state.
type Auditor interface {
	// Audit reads the state in force and compares it with the State of the last successful Apply. It
	// changes nothing; an Apply of that State repairs the returned differences. Endpoints covers the
	// attachments.
	Audit(ctx context.Context, s *model.State) ([]Drift, error)
}

// Drift is one difference between installed and intended state.
type Drift struct {
	// Object is the kind of object that differs; a backend has a handful of kinds.
	Object string
	// Endpoint is set if the object belongs to one.
	Endpoint model.EndpointID
	Detail   string
}
