// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestUnreadableList: while another program keeps the list of prepared endpoints from being read, no agent starts. One without the list
// would remove the endpoint of a running pod.
func TestUnreadableList(t *testing.T) {
	n := newNode(t, hns.Server2022, poolConfig(t, bridgeConfig()))
	n.mustPrepare(spare("10.0.1.7"))
	spec := n.spec("c1", "10.0.1.7")
	spec.DNS = clusterFirst("10.96.0.10")
	n.mustAttach(spec)
	file := n.config.PreparedFile
	if err := os.Rename(file, file+".kept"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := windows.New(ctx, n.config, n.fake, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "read the list of prepared endpoints") {
		t.Errorf("an agent starts: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".kept", file); err != nil {
		t.Fatal(err)
	}
	n.start()
	found, err := n.backend.Endpoints(ctx)
	if err != nil || len(found) != 1 || found[0].ID != spec.ID {
		t.Errorf("endpoints %+v, %v", found, err)
	}
}
