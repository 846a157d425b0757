// SPDX-License-Identifier: Apache-2.0

package hostroute

import (
	"net/netip"
	"os"
	"testing"
)

// TestSystem looks for a route that the host must have: that of its loopback
// addresses, or the one that ISTHMUS_ROUTE names.
func TestSystem(t *testing.T) {
	want := netip.MustParsePrefix("127.0.0.0/8")
	if named := os.Getenv("ISTHMUS_ROUTE"); named != "" {
		want = netip.MustParsePrefix(named)
	}
	list, err := System{}.Routes()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		if r.Destination == want {
			t.Log(r)
			return
		}
	}
	t.Errorf("no route to %s among %v", want, list)
}
