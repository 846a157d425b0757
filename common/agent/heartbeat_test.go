// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"
	"time"
)

// A clock that is set neither stalls an agent nor hides that it stalls: ages are differences of monotonic readings, which Round
// removes.
func TestClockOfHeartbeats(t *testing.T) {
	a := &Agent{wake: make(chan struct{}, 1)}
	a.heartbeat()
	a.Publish(nil)
	for name, at := range map[string]*time.Time{"heartbeat": a.beat.Load(), "arrival of a snapshot": a.arrived.Load()} {
		if at.String() == at.Round(0).String() {
			t.Errorf("%s: %s has no monotonic reading", name, at)
		}
	}
}
