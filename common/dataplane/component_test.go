// SPDX-License-Identifier: Apache-2.0

package dataplane_test

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

// plain is a component that records its calls and returns its name in every result.
type plain struct {
	name  string
	calls *[]string
}

func (p plain) called(what string) error {
	*p.calls = append(*p.calls, p.name+" "+what)
	return errors.New(p.name)
}

func (p plain) Apply(_ context.Context, s *model.State) ([]model.Unsupported, error) {
	return []model.Unsupported{{Construct: p.name}}, p.called("apply " + s.Node)
}
func (p plain) Sync(context.Context, time.Time) error { return p.called("sync") }
func (p plain) Problems() []string                    { return []string{p.name} }
func (p plain) PathModes() []dataplane.PathMode       { return []dataplane.PathMode{{Part: p.name}} }
func (p plain) Close() error                          { return p.called("close") }

// full also implements every optional interface.
type full struct{ plain }

func (f full) Audit(context.Context, *model.State) ([]dataplane.Drift, error) {
	f.called("audit")
	return []dataplane.Drift{{Object: f.name}}, nil
}
func (f full) Repair(context.Context) error { return f.called("repair") }
func (f full) Count(c *dataplane.Counters) error {
	c.Repairs++
	return f.called("count")
}
func (f full) EndpointAdded(s dataplane.EndpointSpec)   { f.called("added " + string(s.ID)) }
func (f full) RemoveEndpoint(id model.EndpointID) error { return f.called("remove " + string(id)) }

// TestComponentsCallAll checks that every component is called, in order, although all previous ones
// fail.
func TestComponentsCallAll(t *testing.T) {
	var calls []string
	cs := dataplane.Components{full{plain{"a", &calls}}, plain{"b", &calls}, full{plain{"c", &calls}}}
	var total dataplane.Counters
	ctx := context.Background()
	unsupported, applied := cs.Apply(ctx, &model.State{Node: "n"}, model.Features{OS: model.Windows})
	cs.EndpointAdded(dataplane.EndpointSpec{ID: "e"})
	found, err := cs.Audit(ctx, nil)
	if err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		what string
		err  error
		want string
	}{
		{"apply", applied, "a\nb\nc"}, {"sync", cs.Sync(ctx, time.Time{}), "a\nb\nc"}, {"remove", cs.RemoveEndpoint("e"), "a\nc"},
		{"repair", cs.Repair(ctx), "a\nc"}, {"count", cs.Count(&total), "a\nc"}, {"close", cs.Close(), "a\nb\nc"},
	} {
		if c.err == nil || c.err.Error() != c.want {
			t.Errorf("%s returns %q, want %q", c.what, c.err, c.want)
		}
	}
	want := "a apply n, b apply n, c apply n, a added e, c added e, a audit, c audit, a sync, b sync, c sync, a remove e, c remove e, " +
		"a repair, c repair, a count, c count, a close, b close, c close"
	if got := strings.Join(calls, ", "); got != want {
		t.Errorf("calls are\n%s, want\n%s", got, want)
	}
	if len(unsupported) != 3 || unsupported[2].OS != model.Windows || len(found) != 2 || total.Repairs != 2 || !slices.Equal(cs.Problems(), []string{"a", "b", "c"}) || len(cs.PathModes()) != 3 {
		t.Errorf("unsupported %v, drifts %v, repairs %d, problems %q, modes %v", unsupported, found, total.Repairs, cs.Problems(), cs.PathModes())
	}
}

func TestCountModes(t *testing.T) {
	got := dataplane.CountModes("pods", map[string]int{"tcx": 2, "clsact": 1, "older": 0})
	if want := []dataplane.PathMode{{Part: "pods", Mode: "clsact", Count: 1}, {Part: "pods", Mode: "tcx", Count: 2}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
