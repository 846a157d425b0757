// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// TestEdit compares edits with those of a plain map, for few and for many changes.
func TestEdit(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	plain := make(map[int]*model.Node)
	var m immutable.Map[int, *model.Node]
	for step := range 300 {
		changes := make(map[int]*model.Node)
		want := maps.Clone(plain)
		touched := false
		for range 1 + r.IntN(1<<r.IntN(9)) {
			k := r.IntN(2000)
			if r.IntN(4) == 0 {
				changes[k] = nil
			} else {
				changes[k] = &model.Node{Name: fmt.Sprint(r.IntN(3))}
			}
		}
		for k, v := range changes {
			was := want[k]
			switch {
			case v == nil && was == nil, v != nil && was != nil && v.Name == was.Name: // no change: the pointer stays the same
			case v == nil:
				delete(want, k)
				touched = true
			default:
				want[k] = v
				touched = true
			}
		}
		before := maps.Collect(m.All())
		next, changed := edit(m, changes)
		if got := maps.Collect(next.All()); !maps.Equal(got, want) || changed != touched {
			t.Fatalf("step %d: %d entries, want %d; changed %t, want %t", step, len(got), len(want), changed, touched)
		}
		if !maps.Equal(before, maps.Collect(m.All())) {
			t.Fatal("the old map was modified")
		}
		m, plain = next, want
	}
}
