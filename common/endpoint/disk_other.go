// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package endpoint

import (
	"errors"
	"os"
	"syscall"
)

// flush does nothing: interfaces, namespaces and pins last no longer than what
// the kernel has in memory, so nothing is left that a record could be about when
// one is lost with the machine. A file that is left empty is a broken one.
func flush(*os.File) error { return nil }

// isFull reports whether a write found no space, or no quota.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// isReadOnly reports whether the file system takes no writes.
func isReadOnly(err error) bool { return errors.Is(err, syscall.EROFS) }
