// SPDX-License-Identifier: Apache-2.0

package dataplanetest

import (
	"context"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// Component is a dataplane.Component with all optional interfaces. It refuses its section, records its calls, and
// adds something of its own to each report of its backend: all have the name "example".
type Component struct {
	Calls []string
	// Failed is the result of Apply.
	Failed error
	// Drifted makes Audit report a drift; Repair clears it.
	Drifted bool
}

var (
	_ dataplane.Component        = (*Component)(nil)
	_ dataplane.Auditor          = (*Component)(nil)
	_ dataplane.Repairer         = (*Component)(nil)
	_ dataplane.Counter          = (*Component)(nil)
	_ dataplane.EndpointObserver = (*Component)(nil)
)

// ExampleMode is the path mode of a Component.
var ExampleMode = dataplane.PathMode{Part: "example", Mode: "on", Count: 1}

// Apply implements dataplane.Component.
func (e *Component) Apply(_ context.Context, s *model.State) ([]model.Unsupported, error) {
	e.Calls = append(e.Calls, "apply "+s.Node)
	return []model.Unsupported{{Construct: "example"}}, e.Failed
}

// Sync implements dataplane.Component.
func (e *Component) Sync(context.Context, time.Time) error {
	e.Calls = append(e.Calls, "sync")
	return nil
}

// Audit implements dataplane.Auditor.
func (e *Component) Audit(context.Context, *model.State) (found []dataplane.Drift, _ error) {
	if e.Drifted {
		found = append(found, dataplane.Drift{Object: "example"})
	}
	return found, nil
}

// Repair implements dataplane.Repairer.
func (e *Component) Repair(context.Context) error {
	e.Calls = append(e.Calls, "repair")
	e.Drifted = false
	return nil
}

// Count implements dataplane.Counter. It adds seven drops.
func (e *Component) Count(c *dataplane.Counters) error {
	if c.Drops == nil {
		c.Drops = make(map[string]uint64)
	}
	c.Drops["example"] = 7
	return nil
}

// EndpointAdded implements dataplane.EndpointObserver.
func (e *Component) EndpointAdded(spec dataplane.EndpointSpec) {
	e.Calls = append(e.Calls, "added "+string(spec.ID))
}

// RemoveEndpoint implements dataplane.EndpointObserver.
func (e *Component) RemoveEndpoint(id model.EndpointID) error {
	e.Calls = append(e.Calls, "remove "+string(id))
	return nil
}

// Problems implements dataplane.Component.
func (e *Component) Problems() []string { return []string{"example: out of order"} }

// PathModes implements dataplane.Component.
func (e *Component) PathModes() []dataplane.PathMode { return []dataplane.PathMode{ExampleMode} }

// Close implements dataplane.Component.
func (e *Component) Close() error {
	e.Calls = append(e.Calls, "close")
	return nil
}
