// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux"
)

// uname26 is the personality in which uname reports a version 2.6 (UNAME26 in linux/personality.h).
const uname26 = 0x0020000

// TestOldKernelIsRefused checks that the backend starts no data path on a kernel that is too old. The error names its
// version and the least one.
func TestOldKernelIsRefused(t *testing.T) {
	runtime.LockOSThread() // the thread ends with the test, and its personality with it
	if _, _, errno := unix.Syscall(unix.SYS_PERSONALITY, uname26, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	cfg := linux.Defaults()
	cfg.BPFFS, cfg.Uplink = filepath.Join(t.TempDir(), "bpf"), "isthmus-none" // without the check, nothing else is changed
	b, err := linux.New(context.Background(), cfg, slog.New(slog.DiscardHandler))
	if err == nil {
		t.Fatal("started", b.Close())
	}
	if !strings.Contains(err.Error(), "kernel 2.6.") || !strings.Contains(err.Error(), "older than 6.1") || !strings.Contains(err.Error(), "boot a newer kernel") {
		t.Errorf("error %q", err)
	}
}
