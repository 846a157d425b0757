// SPDX-License-Identifier: Apache-2.0

package further_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/agent/further"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// things is the number of pods, of nodes and of addresses.
const things = 6

func address(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, 0, byte(n)}) }

// A reader that has followed a cluster says the same about every address as one that reads it for the first time.
func TestReadFollows(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	some := func() (all []netip.Addr) {
		for range rng.IntN(3) {
			all = append(all, address(rng.IntN(things)))
		}
		return all
	}
	pods, nodes, records := make(map[int]*model.Pod), make(map[int]*model.Node), make(map[int]endpoint.Record)
	var follows further.Owners
	refused := 0
	for round := range 3000 {
		switch n := rng.IntN(things); rng.IntN(3) {
		case 0:
			delete(pods, n)
			if rng.IntN(3) > 0 {
				pods[n] = &model.Pod{PodID: model.PodID{Namespace: "shop", Name: fmt.Sprint(n)}, IPs: some(), Finished: rng.IntN(4) == 0}
			}
		case 1:
			delete(nodes, n)
			if rng.IntN(3) > 0 {
				nodes[n] = &model.Node{Name: fmt.Sprint(n), Addresses: some()}
			}
		default:
			delete(records, n)
			if rng.IntN(3) > 0 {
				records[n] = endpoint.Record{State: endpoint.Ready, Namespace: "shop", Name: fmt.Sprint(n), IPs: some(), Further: some()}
			}
		}
		s := model.MakeSnapshot(nil, values(nodes), values(pods), nil)
		var first further.Owners
		first.Read(s, values(records))
		follows.Read(s, values(records))
		for _, r := range records {
			for _, a := range r.Further {
				want, _ := first.Refusal(r.Pod(), a)
				if got, _ := follows.Refusal(r.Pod(), a); got != want {
					t.Fatalf("round %d: address %s of pod %s %q, want %q", round, a, r.Pod(), got, want)
				}
				if want != "" {
					refused++
				}
			}
		}
	}
	if refused == 0 {
		t.Error("no address had another owner")
	}
}

func values[V any](m map[int]V) (all []V) {
	for n := range things {
		if v, ok := m[n]; ok {
			all = append(all, v)
		}
	}
	return all
}
