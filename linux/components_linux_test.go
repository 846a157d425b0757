// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// example is a component as CONTRIBUTING.md describes it: it refuses its section, and records its calls.
type example struct {
	calls   []string
	failed  error
	drifted bool
}

func (e *example) Apply(_ context.Context, s *model.State) ([]model.Unsupported, error) {
	e.calls = append(e.calls, "apply "+s.Node)
	return []model.Unsupported{{Construct: "example"}}, e.failed
}

func (e *example) Sync(context.Context, time.Time) error {
	e.calls = append(e.calls, "sync")
	return nil
}

func (e *example) Audit(context.Context, *model.State) (found []dataplane.Drift, _ error) {
	if e.drifted {
		found = append(found, dataplane.Drift{Object: "example"})
	}
	return found, nil
}

func (e *example) Repair(context.Context) error {
	e.calls = append(e.calls, "repair")
	e.drifted = false
	return nil
}

func (e *example) Count(c *dataplane.Counters) error {
	c.Drops["example"] = 7
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
	l, e := newLab(t), &example{drifted: true}
	l.backend.AddComponent(e)
	l.pod("web", 11)
	l.apply()
	if len(l.refused) != 1 || l.refused[0].Construct != "example" || l.refused[0].OS != model.Linux || l.refused[0].Platform == "" {
		t.Errorf("Apply returns %v", l.refused)
	}
	l.must(l.node.Do(func() error {
		found, err := l.backend.Audit(context.Background(), l.state)
		if !slices.Contains(found, dataplane.Drift{Object: "example"}) {
			t.Errorf("the audit finds %v", found)
		}
		return err
	}))
	e.failed = errors.New("no example today")
	if err := l.tryApply(); err == nil || !strings.Contains(err.Error(), "no example today") {
		t.Errorf("Apply returns %v", err)
	}
	l.must(l.node.Do(func() error { _, err := l.backend.Idle(context.Background()); return err }))
	if all := l.backend.Faults(); !slices.Contains(all, "example: out of order") {
		t.Errorf("faults %q", all)
	}
	if c := l.status(); c.Drops["example"] != 7 || !slices.Contains(c.PathModes, dataplane.PathMode{Part: "example", Mode: "on", Count: 1}) {
		t.Errorf("counters %+v", c)
	}
	l.delete("web")
	l.must(l.backend.Close())
	if want := []string{"added web:eth0", "apply node", "repair", "apply node", "sync", "remove web:eth0", "close"}; !slices.Equal(e.calls, want) {
		t.Errorf("calls %q, want %q", e.calls, want)
	}
}
