// SPDX-License-Identifier: Apache-2.0

//go:build unix

package dirlock

import (
	"errors"
	"os"
	"syscall"
)

// closeToOthers restricts the directory to its owner: a user who can open a directory can lock it.
func closeToOthers(dir string) error {
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm()&0o077 == 0 {
		return err
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
