// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

func defaultStateDir() string {
	base := os.Getenv("ProgramData")
	if base == "" {
		base = `C:\ProgramData`
	}
	return filepath.Join(base, "isthmus")
}

// prepareStateDir makes the directory and takes away what it inherits from
// ProgramData, where every user may create files: only the system and
// administrators are let in.
func prepareStateDir(dir string) error {
	if filepath.Clean(dir) == filepath.VolumeName(dir)+`\` {
		return fmt.Errorf("--state-dir %s is a whole volume: give a directory of the agent's own", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create --state-dir: %w: run the agent as an administrator or give another directory", err)
	}
	sd, err := windows.SecurityDescriptorFromString("O:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)")
	if err != nil {
		return fmt.Errorf("make the access list of --state-dir: %w", err)
	}
	owner, _, ownerErr := sd.Owner()
	list, _, listErr := sd.DACL()
	if err := errors.Join(ownerErr, listErr); err != nil {
		return fmt.Errorf("make the access list of --state-dir: %w", err)
	}
	err = windows.SetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT,
		windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, owner, nil, list, nil)
	if err != nil {
		return fmt.Errorf("close --state-dir to others: %w: run the agent as an administrator", err)
	}
	return nil
}
