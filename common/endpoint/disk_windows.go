// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// flush makes what was written to a file durable: endpoints of HNS may outlive
// the machine's run. The rename that follows is in NTFS's journal.
func flush(f *os.File) error { return f.Sync() }

// isFull reports whether a write found no space, or no quota.
func isFull(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL) || errors.Is(err, windows.ERROR_DISK_QUOTA_EXCEEDED)
}

// isReadOnly reports whether the volume takes no writes.
func isReadOnly(err error) bool { return errors.Is(err, windows.ERROR_WRITE_PROTECT) }
