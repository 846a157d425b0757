// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package main

import (
	"fmt"
	"os"
	"syscall"
)

func defaultStateDir() string { return "/var/lib/isthmus" }

// prepareStateDir creates the directory, restricted to the agent's user. It returns an error for a
// directory in which other users could put records.
func prepareStateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create --state-dir: %w: run the agent as root or use another directory", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("check --state-dir: %w", err)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 && owner != uint32(os.Geteuid()) {
		return fmt.Errorf("--state-dir %s belongs to user %d, who could replace records: use a separate directory, or chown it", dir, owner)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("--state-dir %s can be written by other users (mode %04o): use a separate directory, or chmod 0700 it", dir, info.Mode().Perm())
	}
	return nil
}
