// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/nftables"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
)

// TestPriorityOfAnEarlierTable finds the table of a version whose chains came at the priority of kube-proxy. It is
// written again, once.
func TestPriorityOfAnEarlierTable(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	ns, err := netns.Prepared(filepath.Join(t.TempDir(), "node"))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	want := content{FromNode: FromNodeAll, Forwards: []forward{{model.HostPort{Number: 8080, Protocol: model.TCP, Port: 80}, netip.MustParseAddr("10.1.0.5")}}}
	write := func(changes bool) {
		t.Helper()
		if err := ns.Do(func() error {
			changed, err := setTable(want)
			if changed != changes {
				t.Errorf("changed %t, want %t", changed, changes)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	now := afterServices
	defer func() { afterServices = now }()
	afterServices = nftables.ChainPriorityNATDest
	write(true)
	afterServices = now
	write(true)
	write(false)
}
