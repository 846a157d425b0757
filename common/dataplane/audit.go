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

// ObjectLister is a Backend that lists the kinds of objects that its Audit names.
type ObjectLister interface {
	// AuditedObjects returns every Object of a Drift. Metrics begin with a series for each.
	AuditedObjects() []string
}

// Checker is a Backend that finds quickly which attachments do not enforce policy. Other Backends are only
// audited.
type Checker interface {
	// Check returns the attachments whose packets may pass without a decision, or cannot pass at all.
	// Their Problems name the missing parts. It reads the system and changes nothing there. The agent calls
	// it every few seconds, from the goroutine of the other methods. AddEndpoint, followed by an Apply of
	// the State in force, repairs what it returns.
	Check(ctx context.Context) ([]Installed, error)
}

// Drift is one difference between installed and intended state.
type Drift struct {
	// Object is the kind of object that differs; a backend has a handful of kinds.
	Object string
	// Endpoint is set if the object belongs to one.
	Endpoint model.EndpointID
	// Open is true if packets may pass that the State denies. A Backend that cannot tell sets it. The agent never
	// delays the repair of such a difference.
	Open   bool
	Detail string
}
