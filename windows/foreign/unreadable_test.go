// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows/foreign"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestUnreadableRegistry: while another program keeps the list of endpoints from being read, no agent starts. One without the list would replace
// it, and with it the claims to endpoints that are closed.
func TestUnreadableRegistry(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	if err := os.RemoveAll(n.file); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(n.file, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := foreign.New(ctx, foreign.Config{File: n.file}, n.fake, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "read the list of endpoints") {
		t.Errorf("an agent starts: %v", err)
	}
}
