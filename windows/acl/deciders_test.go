// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/windows/acl"
)

// BenchmarkDeciders explains a list of 50 rules for 10,000 addresses.
func BenchmarkDeciders(b *testing.B) {
	addresses := make(map[netip.Addr]model.PeerClass)
	rows := make(map[model.PeerClass]*model.Row)
	denied := model.Decision{Cause: &model.Cause{Reason: model.ReasonIsolated}}
	for c := range model.PeerClass(50) {
		rows[c+1] = &model.Row{Cells: []model.Decision{denied, {Verdict: model.Allow, Cause: &model.Cause{Reason: model.ReasonRule, Rule: int(c)}}}}
		if c%2 == 0 {
			rows[c+1].Cells = append(rows[c+1].Cells, rows[c+1].Cells[1])
		}
	}
	for i := range 10_000 {
		addresses[netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})] = model.PeerClass(i%50 + 1)
	}
	side := model.Side{Default: &model.Row{Cells: []model.Decision{denied}}, Rows: immutable.MakeMap(rows)}
	s := &model.State{Policy: model.PolicyState{Tables: map[model.TableID]*model.Table{{1}: {ID: model.TableID{1}, Sides: [2]model.Side{side, side}}},
		Ports:     []model.PortRange{{Protocol: model.TCP, First: 80, Last: 80, Class: 1}, {Protocol: model.TCP, First: 443, Last: 443, Class: 2}},
		Addresses: immutable.MakeMap(addresses), Endpoints: map[model.EndpointID]model.EndpointState{"a": {Table: model.TableID{1}}}}}
	for _, sets := range []bool{false, true} {
		o := acl.Options{Sets: sets}.Defaults()
		l := acl.Lower(s, o, "bench")
		b.Run(fmt.Sprintf("sets=%t,acls=%d", sets, len(l.Lists["a"])), func(b *testing.B) {
			for b.Loop() {
				if all, err := acl.Deciders(s, "a", o, &l.Ruleset); err != nil || len(all) == 0 {
					b.Fatal(err)
				}
			}
		})
	}
}
