// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"testing"

	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

func TestRemove(t *testing.T) {
	for _, profile := range hns.Profiles() {
		n := newNode(t, profile, bridgeConfig())
		other, err := n.fake.CreateNetwork(ctx, hns.Network{Name: "nat", Type: hnstest.NAT})
		if err != nil {
			t.Fatal(err)
		}
		n.add(n.spec("a", "10.0.1.5"))
		for range 2 {
			if err := windows.Remove(ctx, n.fake, "isthmus", 0); err != nil {
				t.Fatal(err)
			}
		}
		networks, err := n.fake.Networks(ctx)
		if err != nil || len(networks) != 1 || networks[0].ID != other.ID {
			t.Errorf("hns %s: networks %v, %v, want only that of others", profile, networks, err)
		}
	}
}
