// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/world"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestLowererEqualsLower follows random clusters. After any history, the result of a Lowerer equals
// that of Lower, including the names of sets and the kept lists in force.
func TestLowererEqualsLower(t *testing.T) {
	seeds := uint64(8)
	if testing.Short() {
		seeds = 2
	}
	lists := 0
	for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
		for i, shape := range []world.Shape{{Pods: 8, Policies: 4}, {Pods: 8, Policies: 5, Tiers: true}, {Pods: 7, Policies: 4, Tiers: true, IPv6: true}, {Pods: 12, Policies: 3, Nodes: 1}} {
			for seed := range seeds {
				for _, noIPv6 := range []bool{false, true} {
					t.Run(fmt.Sprintf("hns%s/shape%d/%d/%t", profile, i, seed, noIPv6), func(t *testing.T) {
						o := options(profile)
						o.NoIPv6 = noIPv6
						var lowerer acl.Lowerer
						var last *model.State
						var inForce *acl.Ruleset
						s := world.Random(seed, shape)
						for round := range uint64(12) {
							state := stateOf(s, "node1", last)
							if round%5 == 4 {
								state = stateOf(s, "node1", nil) // classes have other numbers
							}
							got, want := lowerer.Lower(state, o, "x"), acl.Lower(state, o, "x")
							if !reflect.DeepEqual(got.Ruleset, want.Ruleset) || !reflect.DeepEqual(got.Unsupported, want.Unsupported) {
								t.Fatalf("round %d:\n%+v\nwant\n%+v", round, got.Ruleset, want.Ruleset)
							}
							if inForce == nil {
								inForce = &want.Ruleset
							}
							kept := got.Keep(inForce)
							if again := want.Keep(inForce); !reflect.DeepEqual(kept, again) {
								t.Fatalf("round %d keeps\n%+v\nwant\n%+v", round, kept, again)
							}
							lists += len(got.Lists)
							last, inForce = state, kept
							s = world.Mutate(seed*13+round, s, shape, 1)
						}
					})
				}
			}
		}
	}
	if lists == 0 {
		t.Error("nothing was lowered")
	}
	t.Logf("lists=%d", lists)
}
