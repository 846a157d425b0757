// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestChainKeepsAttributes: an edited list keeps its owner, mode and extended attributes.
func TestChainKeepsAttributes(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	const name, label = "trusted.label", "system_u:object_r:etc_t:s0"
	c := chained(t, map[string]string{"10-flannel.conflist": theirList})
	path := filepath.Join(c.ConfDir, "10-flannel.conflist")
	if err := errors.Join(os.Chown(path, 1234, 4321), os.Chmod(path, 0o640), unix.Setxattr(path, name, []byte(label), 0)); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		value := make([]byte, 100)
		n, err := unix.Getxattr(path, name, value)
		if s := info.Sys().(*syscall.Stat_t); s.Uid != 1234 || s.Gid != 4321 || info.Mode() != 0o640 || err != nil || string(value[:n]) != label {
			t.Errorf("%s: owner %d:%d, mode %v, attribute %q, %v", when, s.Uid, s.Gid, info.Mode(), value[:max(0, n)], err)
		}
	}
	chain(t, c, "10-flannel.conflist")
	check("with the entry")
	remove(t, c)
	check("without the entry")
}
