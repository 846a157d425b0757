// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/windows"
)

func defaultStateDir() string {
	base := os.Getenv("ProgramData")
	if base == "" {
		base = `C:\ProgramData`
	}
	return filepath.Join(base, "isthmus")
}

// stateDirAccess lets only the system and administrators in. It is protected: nothing is inherited from ProgramData, where
// every user may create files.
const stateDirAccess = "O:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)"

// prepareStateDir creates the directory, or takes one that the system or an administrator has made, and restricts it with
// all that it holds. It returns an error for what another user made: that user could change it at any time, and the
// agent would believe it.
func prepareStateDir(dir string) error {
	dir = filepath.Clean(dir)
	if dir == filepath.VolumeName(dir)+`\` {
		return fmt.Errorf("--state-dir %s is a whole volume: use a separate directory", dir)
	}
	sd, err := windows.SecurityDescriptorFromString(stateDirAccess)
	if err != nil {
		return fmt.Errorf("create the access list of --state-dir: %w", err)
	}
	list, _, err := sd.DACL()
	if err != nil {
		return fmt.Errorf("create the access list of --state-dir: %w", err)
	}
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return fmt.Errorf("prepare --state-dir: read the user of the agent: %w", err)
	}
	if err := makeStateDir(dir, sd); err != nil {
		return fmt.Errorf("create --state-dir: %w: run the agent as an administrator or use another directory", err)
	}
	// A directory comes before its entries: once it is restricted no other user can add any.
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = restrict(path, list, user.User.Sid)
		}
		if path != dir && errors.Is(err, fs.ErrNotExist) {
			return nil // an agent that is stopping has removed it
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("restrict --state-dir %s: %w", dir, err)
	}
	return nil
}

// restrict sets the access list of a file or directory that no other user owns.
func restrict(path string, list *windows.ACL, self *windows.SID) error {
	if err := checkOwner(path, self); err != nil {
		return err
	}
	const protected = windows.DACL_SECURITY_INFORMATION | windows.PROTECTED_DACL_SECURITY_INFORMATION
	err := windows.SetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, protected, nil, nil, list, nil)
	if err != nil {
		return fmt.Errorf("set the access list of %s: %w: run the agent as an administrator", path, err)
	}
	return nil
}

// makeStateDir creates the directory unless it exists. It is restricted from the beginning.
func makeStateDir(dir string, sd *windows.SECURITY_DESCRIPTOR) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return err
	}
	access := &windows.SecurityAttributes{SecurityDescriptor: sd}
	access.Length = uint32(unsafe.Sizeof(*access))
	if err := windows.CreateDirectory(name, access); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// checkOwner returns an error for a link, which could lead anywhere, and for a file or directory whose owner is neither
// the system, nor the administrators, nor the user of the agent. An owner can change the access list at any time.
func checkOwner(path string, self *windows.SID) error {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return err
	}
	attributes, err := windows.GetFileAttributes(name)
	if err != nil {
		return fmt.Errorf("read the attributes of %s: %w", path, err)
	}
	if attributes&windows.FILE_ATTRIBUTE_REPARSE_POINT != 0 {
		return fmt.Errorf("%s is a link or a mount point: delete it, or use another directory", path)
	}
	remedy := fmt.Sprintf(`delete it, or if you trust what it holds: takeown /a /r /f "%s"`, path)
	sd, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return fmt.Errorf("read the owner of %s: %w: %s", path, err, remedy)
	}
	owner, _, err := sd.Owner()
	switch {
	case err != nil || owner == nil:
		return fmt.Errorf("%s has no owner: %s", path, remedy)
	case owner.IsWellKnown(windows.WinLocalSystemSid), owner.IsWellKnown(windows.WinBuiltinAdministratorsSid), owner.Equals(self):
		return nil
	}
	return fmt.Errorf("%s belongs to another user (%s), who could change it at any time: %s", path, owner, remedy)
}
