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

// prepareStateDir creates the directory and removes the access that it inherits from ProgramData, where
// every user may create files. Only the system and administrators keep access.
func prepareStateDir(dir string) error {
	if filepath.Clean(dir) == filepath.VolumeName(dir)+`\` {
		return fmt.Errorf("--state-dir %s is a whole volume: use a separate directory", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create --state-dir: %w: run the agent as an administrator or use another directory", err)
	}
	sd, err := windows.SecurityDescriptorFromString("O:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)")
	if err != nil {
		return fmt.Errorf("create the access list of --state-dir: %w", err)
	}
	owner, _, ownerErr := sd.Owner()
	list, _, listErr := sd.DACL()
	if err := errors.Join(ownerErr, listErr); err != nil {
		return fmt.Errorf("create the access list of --state-dir: %w", err)
	}
	err = windows.SetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT,
		windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, owner, nil, list, nil)
	if err != nil {
		return fmt.Errorf("restrict --state-dir to administrators: %w: run the agent as an administrator", err)
	}
	return nil
}
