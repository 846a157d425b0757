// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestIDsStay checks that the ACLs of a rule keep their Id when a rule is inserted before it, and have another when the
// rule says something else.
func TestIDsStay(t *testing.T) {
	for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
		web := accept([]model.PortMatch{tcp(8080, 8080)}, from("shop", "web"))
		scraper := accept([]model.PortMatch{tcp(9090, 9090)}, from("ops", "scraper"))
		cart := accept([]model.PortMatch{tcp(7070, 7070)}, from("shop", "cart"))
		before := idsOf(t, profile, web, scraper)
		after := idsOf(t, profile, cart, web, scraper)
		if len(after) != len(before)+1 {
			t.Fatalf("hns %s: ids %q, then %q", profile, before, after)
		}
		for _, id := range before {
			if !slices.Contains(after, id) {
				t.Errorf("hns %s: %q is not among the ids after a rule was inserted: %q", profile, id, after)
			}
		}
		scraper.Peers = []model.Peer{from("shop", "cart")}
		edited := idsOf(t, profile, web, scraper)
		if slices.Equal(edited, before) || len(edited) != len(before) {
			t.Errorf("hns %s: an edited rule has the ids %q, as before", profile, edited)
		}
	}
}

// idsOf returns the ids of a list whose pod has a policy with ingress rules, each once.
func idsOf(t *testing.T, profile hns.Version, rules ...model.Rule) (ids []string) {
	t.Helper()
	s := scenarios()["open"]
	s.policy("billing", rules, nil)
	l := acl.Lower(s.state(), options(profile), profile.String())
	for _, a := range l.Lists["billing:eth0"] {
		if !slices.Contains(ids, a.ID) {
			ids = append(ids, a.ID)
		}
	}
	slices.Sort(ids)
	return ids
}
