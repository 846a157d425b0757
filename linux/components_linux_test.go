// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
)

// TestComponentInTheList checks that a component takes part in everything as soon as it is in the list.
func TestComponentInTheList(t *testing.T) {
	l, e := newLab(t), &dataplanetest.Component{Drifted: true}
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
	e.Failed = errors.New("no example today")
	if err := l.tryApply(); err == nil || !strings.Contains(err.Error(), "no example today") {
		t.Errorf("Apply returns %v", err)
	}
	l.must(l.node.Do(func() error { _, err := l.backend.Idle(context.Background()); return err }))
	if all := l.backend.Faults(); !slices.Contains(all, "example: out of order") {
		t.Errorf("faults %q", all)
	}
	if c := l.status(); c.Drops["example"] != 7 || !slices.Contains(c.PathModes, dataplanetest.ExampleMode) {
		t.Errorf("counters %+v", c)
	}
	l.delete("web")
	l.must(l.backend.Close())
	if want := []string{"added web:eth0", "apply node", "repair", "apply node", "sync", "remove web:eth0", "close"}; !slices.Equal(e.Calls, want) {
		t.Errorf("calls %q, want %q", e.Calls, want)
	}
}
