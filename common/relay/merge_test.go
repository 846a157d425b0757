// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
)

func at(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }

func arrival(ms int) *observer.GetFlowsResponse {
	return &observer.GetFlowsResponse{Time: stamp(at(ms))}
}

// TestMerge sends flows of several nodes with random delays below hold: they leave in order of time, none stays longer
// than hold, and none is lost or repeated.
func TestMerge(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		m := newMerger(100*time.Millisecond, 1000)
		arrivals := make(map[int][]int) // the times of flows, by the time of arrival
		total := 500
		for range total {
			made := random.IntN(2000)
			due := made + random.IntN(100)
			arrivals[due] = append(arrivals[due], made)
		}
		left, last := 0, time.Time{}
		for now := range 2300 {
			for _, made := range arrivals[now] {
				m.add(arrival(made), at(now))
			}
			for _, a := range m.due(at(now)) {
				made := a.GetTime().AsTime()
				if made.Before(last) || at(now).Sub(made) > 200*time.Millisecond {
					t.Fatalf("seed %d: at %d a flow of %s left after one of %s", seed, now, made, last)
				}
				last = made
				left++
			}
		}
		if left != total || len(m.heap) > 0 || len(m.queue) > 0 || len(m.gone) > 0 {
			t.Fatalf("seed %d: %d of %d flows left; %d, %d, %d remain", seed, left, total, len(m.heap), len(m.queue), len(m.gone))
		}
	}
}

// TestMergeIsBounded checks that flows leave early, in order, when too many wait.
func TestMergeIsBounded(t *testing.T) {
	m := newMerger(time.Hour, 3)
	for _, made := range []int{5, 3, 4, 1, 2} {
		m.add(arrival(made), at(5))
	}
	got := ""
	for _, a := range append(m.due(at(6)), m.all()...) {
		got += fmt.Sprint(a.GetTime().AsTime().Sub(at(0)).Milliseconds(), " ")
	}
	if got != "1 2 3 4 5 " {
		t.Errorf("got %s", got)
	}
	n := &newest{limit: 2}
	for _, made := range []int{5, 3, 4, 1, 2} {
		n.add(arrival(made))
	}
	if list := n.all(); len(list) != 2 || !list[0].GetTime().AsTime().Equal(at(4)) || !list[1].GetTime().AsTime().Equal(at(5)) {
		t.Errorf("the newest are %v", list)
	}
}
