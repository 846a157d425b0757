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

// lockFile is locked in place of the directory, because LockFileEx cannot lock a directory. It holds the
// process id of the last holder, and is never removed.
const lockFile = "agent.lock"

// lockedAt is the offset of the locked byte. It lies far beyond the content, as other processes can neither
// read nor write locked bytes.
const lockedAt = 1 << 30

// closeToOthers does nothing: the directory inherits its access list from the state directory, which is
// restricted.
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
	// The id is for messages only. Padding overwrites a longer id of an earlier holder.
	_, _ = f.WriteAt(fmt.Appendf(nil, "%-10d", os.Getpid()), 0)
	return f, nil
}

// holder returns the process that holds the lock, as its file names it.
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
