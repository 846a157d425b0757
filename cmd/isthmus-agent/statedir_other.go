// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package main

import (
	"fmt"
	"os"
)

func defaultStateDir() string { return "/var/lib/isthmus" }

// prepareStateDir makes the directory, for the agent's user only, and refuses
// one in which others could put records of theirs.
func prepareStateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create --state-dir: %w: run the agent as root or give another directory", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("check --state-dir: %w", err)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("--state-dir %s can be written by others (mode %04o): give a directory of the agent's own, or chmod 0700 it", dir, info.Mode().Perm())
	}
	return nil
}
