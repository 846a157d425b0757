// SPDX-License-Identifier: Apache-2.0

package dirlock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/windows"
)

// lockFile is locked in place of the directory, which LockFileEx does not take.
// It holds the process id of the last holder, and stays.
const lockFile = "agent.lock"

// The byte that is locked is far behind the content, as nothing else may read or
// write what is locked.
const lockedAt = 1 << 30

// closeToOthers has nothing to do: the directory inherits its access list from
// the state directory, which is closed to others.
func closeToOthers(string) error { return nil }

func tryLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	at := &windows.Overlapped{Offset: lockedAt}
	err = windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, at)
	if err != nil {
		f.Close()
		if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
			return nil, errHeld
		}
		return nil, os.NewSyscallError("LockFileEx", err)
	}
	// It is for messages only. Padding covers a longer number of an earlier holder.
	_, _ = f.WriteAt(fmt.Appendf(nil, "%-10d", os.Getpid()), 0)
	return f, nil
}

// holder names the process that has the lock.
func holder(dir string) string {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if err != nil {
		return "another process"
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, 10))
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return "another process"
	}
	return fmt.Sprintf("process %d", pid)
}
