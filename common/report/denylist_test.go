// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// A deny list has a condition and an event if an entry is left out, or if the node does not enforce it everywhere. A
// list that is enforced as written has neither, and a list that is gone has no report.
func TestDenyLists(t *testing.T) {
	lists := make(map[string]*model.DenyList)
	for _, name := range []string{"fine", "bad-entry", "off"} {
		lists[name] = &model.DenyList{Name: name, UID: "uid-" + name}
	}
	s := model.MakeSnapshot(nil, nil, nil, nil)
	s.DenyLists = immutable.MakeMap(lists)
	f := Facts{Node: "n1", Platform: model.Features{OS: model.Linux}, Ready: true, Snapshot: s, Unsupported: []model.Unsupported{
		{Policy: lists["off"].Origin(), Rule: -1, Construct: "spec.entries", Effect: model.Refused, Reason: "XDP is switched off"},
		{Policy: model.Origin{Kind: model.KindDenyList, Name: "gone"}, Rule: -1, Construct: "spec.entries", Effect: model.Refused, Reason: "XDP is switched off"}}}
	r := Make(f, map[model.Origin]Remarks{lists["bad-entry"].Origin().Key(): {Notes: []string{`spec.entries[1]: "nonsense"`}},
		{Kind: model.KindDenyList, Name: "gone"}: {Notes: []string{"late"}}})
	for name, want := range map[string]string{"bad-entry": `spec.entries[1]: "nonsense"`, "off": "XDP is switched off"} {
		c, ok := r.Conditions[lists[name].Origin().Key()]
		if !ok || c.Reason != "Refused" || !strings.Contains(c.Message, want) {
			t.Errorf("%s: condition %+v, want %q", name, c, want)
		}
	}
	if len(r.Conditions) != 2 || len(r.Events) != 2 {
		t.Errorf("conditions %v, events %v: want those of two lists", r.Conditions, r.Events)
	}
	for _, e := range r.Events {
		if e.Object.Kind != model.KindDenyList || e.Object.UID != "uid-"+e.Object.Name {
			t.Errorf("event %+v", e)
		}
	}
}
