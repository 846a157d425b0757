// SPDX-License-Identifier: Apache-2.0

package complete

import (
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

// A pod of two sets of objects has one address in both, whatever else is in them, and every
// pod has a node of its operating system.
func TestPlace(t *testing.T) {
	pod := func(name string) *model.Pod { return &model.Pod{PodID: model.PodID{Namespace: "n", Name: name}} }
	windows := map[model.PodID]model.Selector{{Namespace: "n", Name: "w"}: model.MakeSelector(model.Requirement{
		Key: osLabel, Operator: model.In, Values: []string{"windows"}})}
	a := model.Objects{Pods: []*model.Pod{pod("b"), pod("w")}, NodeSelectors: windows}
	b := model.Objects{Pods: []*model.Pod{pod("a"), pod("b"), pod("w")}, NodeSelectors: windows}
	fixed := pod("fixed")
	fixed.Node, fixed.IPs = "there", []netip.Addr{netip.MustParseAddr("100.64.0.10")}
	b.Pods = append(b.Pods, fixed)
	if said := Place(&a, &b); len(said.Nodes) != 3 || said.Bound != 3 || said.Addressed != 3 {
		t.Errorf("assumed %+v", said)
	}
	was, is := a.Snapshot(), b.Snapshot()
	seen := make(map[netip.Addr]model.PodID)
	for id, p := range is.Pods.All() {
		if q, ok := was.Pods.Get(id); ok && (q.IPs[0] != p.IPs[0] || q.Node != p.Node) {
			t.Errorf("%s is at %v on %s, and at %v on %s", id, q.IPs, q.Node, p.IPs, p.Node)
		}
		if other, taken := seen[p.IPs[0]]; taken {
			t.Errorf("%s and %s have one address", id, other)
		}
		seen[p.IPs[0]] = id
		want := model.Linux
		if id.Name == "w" {
			want = model.Windows
		}
		if got := OSOf(is, p); got != want {
			t.Errorf("%s is on %s", id, got)
		}
	}
}

// Selectors select their placeholder pods; a selector that contradicts itself has none.
func TestSatisfy(t *testing.T) {
	need := func(key string, op model.Operator, values ...string) model.Requirement {
		return model.Requirement{Key: key, Operator: op, Values: values}
	}
	for name, c := range map[string]struct {
		selector model.Selector
		ok       bool
	}{
		"everything":    {model.MakeSelector(), true},
		"in":            {model.MakeSelector(need("a", model.In, "x", "y"), need("a", model.NotIn, "x")), true},
		"two in":        {model.MakeSelector(need("a", model.In, "x", "y"), need("a", model.In, "y", "z")), true},
		"exists":        {model.MakeSelector(need("a", model.Exists), need("a", model.NotIn, "x")), true},
		"exists and in": {model.MakeSelector(need("a", model.Exists), need("a", model.In, "x")), true},
		"absent":        {model.MakeSelector(need("a", model.DoesNotExist)), true},
		"contradiction": {model.MakeSelector(need("a", model.Exists), need("a", model.DoesNotExist)), false},
		"nothing left":  {model.MakeSelector(need("a", model.In, "x"), need("a", model.NotIn, "x")), false},
	} {
		labels, ok := satisfy(c.selector)
		if ok != c.ok || ok && !c.selector.Matches(model.MakeLabels(labels)) {
			t.Errorf("%s: %v, %t", name, labels, ok)
		}
	}
}
