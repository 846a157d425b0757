// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package install

import (
	"fmt"
	"os"
)

// checkAccess returns an error for a file or directory that every user can change: the runtime starts as root what is there. A
// missing file is not an error.
func checkAccess(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return ignoreMissing(err)
	}
	if info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("%s can be changed by every user, whose programs the container runtime would then run as root: chmod o-w %s, and check what it holds", path, path)
	}
	return nil
}
