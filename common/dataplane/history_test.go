// SPDX-License-Identifier: Apache-2.0

package dataplane_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
)

// TestHistory checks that repeated repairs are one entry with the last time, and that old entries
// are removed.
func TestHistory(t *testing.T) {
	var h dataplane.History
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	h.Add("route", at(1))
	h.Add("link", at(2))
	h.Add("route", at(3))
	got := h.Last()
	if len(got) != 2 || got[1] != (dataplane.Repair{What: "route", At: at(3), Times: 2}) || got[0].What != "link" {
		t.Errorf("%+v", got)
	}
	for n := range 100 {
		h.Add(fmt.Sprint(n), at(n))
	}
	if got = h.Last(); len(got) != 20 || got[0].What != "80" || got[19].What != "99" {
		t.Errorf("%d, %+v", len(got), got)
	}
}
