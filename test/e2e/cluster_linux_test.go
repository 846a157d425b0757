// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"
)

// TestRunsAfter checks that make cluster prints the time of all that it does, images and packages included.
func TestRunsAfter(t *testing.T) {
	c := config{name: "local", nodes: 2, began: time.Unix(1000, 0)}
	if got, want := c.runsAfter(time.Unix(1100, 0), time.Unix(1130, 0)), "cluster local of 2 nodes runs after 30s, 2m10s after make began"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	c.began = time.Time{}
	if got, want := c.runsAfter(time.Unix(1100, 0), time.Unix(1130, 0)), "cluster local of 2 nodes runs after 30s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
