// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"io/fs"
	"os"
)

// rename replaces a file. A running executable cannot be replaced, but moved aside; the next rename removes
// it.
func rename(from, to string) error {
	first := os.Rename(from, to)
	if first == nil {
		return nil
	}
	if err := ignoreMissing(os.Remove(aside(to))); err != nil {
		return errors.Join(first, err)
	}
	if err := os.Rename(to, aside(to)); err != nil {
		return errors.Join(first, err)
	}
	if err := os.Rename(from, to); err != nil {
		return errors.Join(err, os.Rename(aside(to), to))
	}
	return nil
}

// hasMode returns true: file modes have no meaning on Windows.
func hasMode(string, fs.FileMode) bool { return true }
