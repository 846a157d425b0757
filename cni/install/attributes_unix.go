// SPDX-License-Identifier: Apache-2.0

//go:build unix

package install

import (
	"bytes"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// copyAccess gives a new file the owner of the one that it replaces, its SELinux label, and its other extended attributes. It
// ignores errors: an agent without the right to set them must still add its entry.
func copyAccess(from, to string) error {
	if info, err := os.Stat(from); err == nil {
		s := info.Sys().(*syscall.Stat_t)
		_ = os.Chown(to, int(s.Uid), int(s.Gid))
	}
	names, _ := attribute(func(b []byte) (int, error) { return unix.Listxattr(from, b) })
	for name := range bytes.SplitSeq(bytes.TrimSuffix(names, []byte{0}), []byte{0}) {
		if value, err := attribute(func(b []byte) (int, error) { return unix.Getxattr(from, string(name), b) }); err == nil && len(name) > 0 {
			_ = unix.Setxattr(to, string(name), value, 0)
		}
	}
	return nil
}

// attribute calls read with a buffer that is large enough.
func attribute(read func([]byte) (int, error)) ([]byte, error) {
	size, err := read(nil)
	if err != nil || size == 0 {
		return nil, err
	}
	b := make([]byte, size)
	size, err = read(b)
	return b[:max(0, size)], err
}
