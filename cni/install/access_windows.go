// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"fmt"
	"io/fs"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Rights by which a process can change what the runtime starts: new files in a directory, other content, other access.
const changing = windows.FILE_WRITE_DATA | windows.FILE_APPEND_DATA | 0x40 /* FILE_DELETE_CHILD */ | windows.DELETE | windows.WRITE_DAC |
	windows.WRITE_OWNER | windows.GENERIC_WRITE | windows.GENERIC_ALL

// trustedInstaller is the service that owns the files of Windows.
const trustedInstaller = "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"

// checkAccess returns an error for a file or directory that others than the system and administrators can change: the runtime
// starts as the system what is there. A missing file is not an error.
func checkAccess(path string) error {
	sd, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read who can change %s: %w", path, err)
	}
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return fmt.Errorf("read who can change %s: read the user of the agent: %w", path, err)
	}
	changed := func(who string) error {
		return fmt.Errorf(`%s can be changed by %s, whose programs the container runtime would then run as the system: icacls "%s" /inheritance:r /grant *S-1-5-18:(OI)(CI)F *S-1-5-32-544:(OI)(CI)F *S-1-5-32-545:(OI)(CI)RX, and check what it holds`,
			path, who, path)
	}
	owner, _, err := sd.Owner()
	if err != nil || owner == nil || !trusted(owner, user.User.Sid) {
		return changed(fmt.Sprintf("its owner %s", owner))
	}
	list, _, err := sd.DACL()
	if err != nil || list == nil {
		return changed("every user")
	}
	for i := range uint32(list.AceCount) {
		var ace *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(list, i, &ace); err != nil {
			return fmt.Errorf("read who can change %s: %w", path, err)
		}
		sid := (*windows.SID)(unsafe.Pointer(&ace.SidStart))
		if ace.Header.AceType == windows.ACCESS_ALLOWED_ACE_TYPE && ace.Header.AceFlags&windows.INHERIT_ONLY_ACE == 0 &&
			ace.Mask&changing != 0 && !trusted(sid, user.User.Sid) {
			return changed(fmt.Sprintf("user or group %s", sid))
		}
	}
	return nil
}

// copyAccess gives a file the access list of another one. Without it a new file has that of its directory, which may let more users read.
func copyAccess(from, to string) error {
	sd, err := windows.GetNamedSecurityInfo(from, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return fmt.Errorf("read the access list of %s: %w", from, err)
	}
	list, _, err := sd.DACL()
	if err != nil {
		return fmt.Errorf("read the access list of %s: %w", from, err)
	}
	control, _, err := sd.Control()
	if err != nil {
		return fmt.Errorf("read the access list of %s: %w", from, err)
	}
	inherits := windows.SECURITY_INFORMATION(windows.UNPROTECTED_DACL_SECURITY_INFORMATION)
	if control&windows.SE_DACL_PROTECTED != 0 {
		inherits = windows.PROTECTED_DACL_SECURITY_INFORMATION
	}
	if err := windows.SetNamedSecurityInfo(to, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION|inherits, nil, nil, list, nil); err != nil {
		return fmt.Errorf("set the access list of %s: %w", to, err)
	}
	return nil
}

// trusted reports whether a user could change everything on the host anyway, or is that of the agent.
func trusted(sid, self *windows.SID) bool {
	return sid.IsWellKnown(windows.WinLocalSystemSid) || sid.IsWellKnown(windows.WinBuiltinAdministratorsSid) ||
		sid.String() == trustedInstaller || sid.Equals(self)
}
