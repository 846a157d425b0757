// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestComponentInTheList checks that a component takes part in everything as soon as it is in the list.
func TestComponentInTheList(t *testing.T) {
	n, e := newNode(t, hns.Server2022, bridgeConfig()), &dataplanetest.Component{Drifted: true}
	n.backend.AddComponent(e)
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	s := &model.State{Node: "node1"}
	unsupported, err := n.backend.Apply(ctx, s)
	if err != nil || len(unsupported) != 1 || unsupported[0].Construct != "example" || unsupported[0].OS != model.Windows || unsupported[0].Platform == "" {
		t.Errorf("Apply returns %v, %v", unsupported, err)
	}
	e.Failed = errors.New("no example today")
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
	if err != nil || c.Drops["example"] != 7 || !slices.Contains(c.PathModes, dataplanetest.ExampleMode) {
		t.Errorf("counters %+v, %v", c, err)
	}
	if _, err := n.backend.Idle(ctx); err != nil {
		t.Error(err)
	}
	if err := errors.Join(n.backend.DeleteEndpoint(ctx, spec.ID), n.backend.Close()); err != nil {
		t.Error(err)
	}
	if want := []string{"added c1:eth0", "apply node1", "apply node1", "sync", "remove c1:eth0", "close"}; !slices.Equal(e.Calls, want) {
		t.Errorf("calls %q, want %q", e.Calls, want)
	}
}
