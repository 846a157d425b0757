// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/linux/loader"
)

// A node without a data path has no answer. One without the maps of deny lists denies nothing.
func TestDenyWithoutDataPath(t *testing.T) {
	dir := t.TempDir()
	for _, args := range []string{"deny list", "deny check 192.0.2.1"} {
		args := append(strings.Fields(args), "--bpffs", dir)
		if status, out, errs := ctl(args...); status != 2 || out != "" || !strings.Contains(errs, dir) || !strings.Contains(errs, "start the agent") {
			t.Errorf("%q: exit status %d, %q, %q", args, status, out, errs)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, loader.LayoutVersion), 0o700); err != nil {
		t.Fatal(err)
	}
	if status, out, errs := ctl("deny", "check", "192.0.2.1", "--bpffs", dir); status != 0 || !strings.Contains(out, "192.0.2.1  allowed") {
		t.Errorf("without lists: exit status %d, %q, %q", status, out, errs)
	}
}
