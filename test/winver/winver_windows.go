// SPDX-License-Identifier: Apache-2.0

package winver

import (
	"fmt"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// Read returns the version with the number of the update, such as 10.0.20348.2700, and whether the system is Wine
// instead of Windows.
func Read() (version string, wine bool) {
	v := windows.RtlGetVersion()
	version = fmt.Sprintf("%d.%d.%d", v.MajorVersion, v.MinorVersion, v.BuildNumber)
	if key, err := registry.OpenKey(registry.LOCAL_MACHINE, `SOFTWARE\Microsoft\Windows NT\CurrentVersion`, registry.QUERY_VALUE); err == nil {
		if update, _, err := key.GetIntegerValue("UBR"); err == nil {
			version = fmt.Sprintf("%s.%d", version, update)
		}
		_ = key.Close() // nothing was written
	}
	return version, windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil
}
