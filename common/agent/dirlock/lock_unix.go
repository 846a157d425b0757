// SPDX-License-Identifier: Apache-2.0

//go:build unix

package dirlock

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// closeToOthers restricts the directory to its owner: a user who can open a directory can lock it. It refuses one of another
// user, who could replace what it holds.
func closeToOthers(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 && owner != uint32(os.Geteuid()) {
		return fmt.Errorf("it belongs to user %d, who could replace what it holds: find out who made it, and remove it", owner)
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	return os.Chmod(dir, info.Mode().Perm()&0o700)
}

// tryLock locks the directory itself. That needs no file, so it works on a full or read-only disk and on a
// bpffs.
func tryLock(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errHeld
		}
		return nil, os.NewSyscallError("flock", err)
	}
	mine, err := f.Stat()
	if err == nil {
		var there os.FileInfo
		if there, err = os.Stat(dir); err == nil && os.SameFile(mine, there) {
			return f, nil
		}
	}
	f.Close()
	if err == nil {
		return nil, errHeld // the directory was replaced in the meantime
	}
	return nil, err
}
