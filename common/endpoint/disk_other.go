// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package endpoint

import (
	"errors"
	"os"
	"syscall"
)

// flush does nothing. Interfaces, namespaces and pins last no longer than the running kernel. A record that
// is lost in a crash of the machine therefore describes nothing that still exists. An empty file counts as
// damaged.
func flush(*os.File) error { return nil }

// isFull reports whether a write failed for lack of space or quota.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// isReadOnly reports whether the file system is read-only.
func isReadOnly(err error) bool { return errors.Is(err, syscall.EROFS) }
