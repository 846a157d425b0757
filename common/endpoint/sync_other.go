// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package endpoint

import "os"

// syncDir makes renames and removals in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if e := d.Close(); err == nil {
		err = e
	}
	return err
}
