// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// example is a component as CONTRIBUTING.md describes it: it refuses its section, and records its calls.
type example struct {
	calls  []string
	failed error
}

func (e *example) Apply(_ context.Context, s *model.State) ([]model.Unsupported, error) {
	e.calls = append(e.calls, "apply "+s.Node)
	return []model.Unsupported{{Construct: "example"}}, e.failed
}

func (e *example) Sync(context.Context, time.Time) error {
	e.calls = append(e.calls, "sync")
	return nil
}

func (e *example) Audit(context.Context, *model.State) ([]dataplane.Drift, error) {
	return []dataplane.Drift{{Object: "example"}}, nil
}

func (e *example) Count(c *dataplane.Counters) error {
	c.Repairs += 7
	return nil
}

func (e *example) EndpointAdded(spec dataplane.EndpointSpec) {
	e.calls = append(e.calls, "added "+string(spec.ID))
}

func (e *example) RemoveEndpoint(id model.EndpointID) error {
	e.calls = append(e.calls, "remove "+string(id))
	return nil
}

func (e *example) Problems() []string { return []string{"example: out of order"} }
func (e *example) PathModes() []dataplane.PathMode {
	return []dataplane.PathMode{{Part: "example", Mode: "on", Count: 1}}
}

func (e *example) Close() error {
	e.calls = append(e.calls, "close")
	return nil
}

// TestComponentInTheList: a component takes part in everything as soon as it is in the list.
func TestComponentInTheList(t *testing.T) {
	n, e := newNode(t, hns.Server2022, bridgeConfig()), &example{}
	n.backend.AddComponent(e)
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	s := &model.State{Node: "node1"}
	unsupported, err := n.backend.Apply(ctx, s)
	if err != nil || len(unsupported) != 1 || unsupported[0].Construct != "example" || unsupported[0].OS != model.Windows || unsupported[0].Platform == "" {
		t.Errorf("Apply returns %v, %v", unsupported, err)
	}
	e.failed = errors.New("no example today")
	if _, err := n.backend.Apply(ctx, s); err == nil || !strings.Contains(err.Error(), "no example today") {
		t.Errorf("Apply returns %v", err)
	}
	if all := n.backend.Faults(); !slices.Contains(all, "example: out of order") {
		t.Errorf("faults %q", all)
	}
	if found, err := n.backend.Audit(ctx, s); err != nil || !slices.Contains(found, dataplane.Drift{Object: "example"}) {
		t.Errorf("the audit finds %v, %v", found, err)
	}
	c, err := n.backend.Counters(ctx)
	if err != nil || c.Repairs != 7 || !slices.Contains(c.PathModes, dataplane.PathMode{Part: "example", Mode: "on", Count: 1}) {
		t.Errorf("counters %+v, %v", c, err)
	}
	if _, err := n.backend.Idle(ctx); err != nil {
		t.Error(err)
	}
	if err := errors.Join(n.backend.DeleteEndpoint(ctx, spec.ID), n.backend.Close()); err != nil {
		t.Error(err)
	}
	if want := []string{"added c1:eth0", "apply node1", "apply node1", "sync", "remove c1:eth0", "close"}; !slices.Equal(e.calls, want) {
		t.Errorf("calls %q, want %q", e.calls, want)
	}
}
