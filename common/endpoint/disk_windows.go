// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// flush makes the written data durable, since HNS endpoints may survive a restart of the machine. NTFS
// journals the rename that follows.
func flush(f *os.File) error { return f.Sync() }

// isFull reports whether a write failed for lack of space or quota.
func isFull(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL) || errors.Is(err, windows.ERROR_DISK_QUOTA_EXCEEDED)
}

// isReadOnly reports whether the volume is read-only.
func isReadOnly(err error) bool { return errors.Is(err, windows.ERROR_WRITE_PROTECT) }
