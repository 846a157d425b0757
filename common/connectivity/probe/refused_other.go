// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package probe

import (
	"errors"
	"syscall"
)

// refused reports whether the host says that nothing listens at a port.
func refused(_ string, err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
