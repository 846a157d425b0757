// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package install

import (
	"io/fs"
	"os"
	"path/filepath"
)

// rename replaces a file and makes the change durable across a power failure.
func rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

func hasMode(path string, mode fs.FileMode) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode() == mode
}
