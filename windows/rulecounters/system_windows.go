// SPDX-License-Identifier: Apache-2.0

package rulecounters

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/windows"
)

// System returns the Runner of vfpctrl.exe in the system directory of this host.
func System() (Runner, error) {
	dir, err := windows.GetSystemDirectory()
	if err != nil {
		return nil, fmt.Errorf("find the system directory: %w", err)
	}
	return Command(filepath.Join(dir, "vfpctrl.exe")), nil
}
