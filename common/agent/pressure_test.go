// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
)

func TestPressureNamesMapsThatAreNearlyFull(t *testing.T) {
	found := pressure(map[string]dataplane.MapUsage{
		"rows": {Entries: 90, Capacity: 100}, "tables": {Entries: 89, Capacity: 100}, "conns4": {Entries: 7, Capacity: 7}, "none": {},
	})
	if len(found) != 2 || !strings.Contains(found[0], "map conns4") || !strings.Contains(found[1], "map rows has reached 90 % of its 100 entries") {
		t.Errorf("got %q", found)
	}
}
