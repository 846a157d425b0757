// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"fmt"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/world"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestWithoutSCTP lowers random States for an HNS that refuses SCTP. No list names SCTP, and TCP
// and UDP are exact. Nothing is more open than the State, and all over-blocked traffic is reported.
func TestWithoutSCTP(t *testing.T) {
	seeds := uint64(8)
	if testing.Short() {
		seeds = 3
	}
	over, named := 0, 0
	for i, shape := range shapes {
		for seed := range seeds {
			state := stateOf(world.Random(seed+40, shape), "node1", nil)
			without, unsupported := acl.WithoutSCTP(state, "HNS")
			s := world.Random(seed+40, shape)
			addrs, ports := distinct(state, state, s, s)
			for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
				l := acl.Lower(without, options(profile), "")
				for id := range state.Policy.Endpoints {
					where := fmt.Sprintf("hns %s shape%d/%d %s", profile, i, seed, id)
					if acl.NamesSCTP(l.Lists[id]) {
						t.Fatalf("%s: a list names SCTP:\n%s", where, hns.FormatACLs("", l.Lists[id]))
					}
					if acl.NamesSCTP(acl.Lower(state, options(profile), "").Lists[id]) {
						named++
					}
					if err := acl.Check(without, id, options(profile), &l.Ruleset, hns.Readings()...); err != nil {
						t.Fatalf("%s: %v", where, err)
					}
					lost, err := onlyTighter(state, l, id, addrs, ports)
					if err != nil {
						t.Fatalf("%s: %v", where, err)
					}
					exact := ports[:0:0]
					for _, at := range ports {
						if at.Protocol == model.TCP || at.Protocol == model.UDP {
							exact = append(exact, at)
						}
					}
					if lost, err := onlyTighter(state, l, id, addrs, exact); err != nil || lost > 0 {
						t.Fatalf("%s: TCP and UDP: %d lost, %v", where, lost, err)
					}
					reported := false
					for _, u := range unsupported {
						reported = reported || u.Policy.Name == state.Policy.Endpoints[id].Pod.Name && u.Policy.Namespace == state.Policy.Endpoints[id].Pod.Namespace
					}
					if lost > 0 && !reported {
						t.Fatalf("%s: %d flows are denied and nothing is reported", where, lost)
					}
					over += lost
				}
			}
		}
	}
	t.Logf("denied too much=%d, lists that name SCTP otherwise=%d", over, named)
	if over == 0 || named == 0 {
		t.Error("no policy was about SCTP: the test shows nothing")
	}
}
