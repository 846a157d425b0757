// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package install_test

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/cni/install"
)

// TestChangeableByOthers checks that directories that every user can change are a problem, which names them. test/wine checks the same on
// Windows (TestPluginDirectoriesOfOthers).
func TestChangeableByOthers(t *testing.T) {
	c := node(t)
	problems := func() []string {
		k, err := install.NewKeeper(c, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := k.Run(ctx, func() bool { return true }); err != nil { // once
			t.Fatal(err)
		}
		return k.Problems()
	}
	if p := problems(); len(p) > 0 || !slices.Contains(files(t, c), install.ConfName) {
		t.Fatalf("problems %q, files %v", p, files(t, c))
	}
	for _, path := range []string{c.BinDir, c.ConfDir} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
		if p := problems(); len(p) != 1 || !strings.HasPrefix(p[0], path+" can be changed by every user") {
			t.Errorf("problems %q of %s", p, path)
		}
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
