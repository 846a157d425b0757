// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
)

// TestChainKeepsAccess checks that a configuration keeps its access list, also where it is wrapped in a list, and after removal. One that
// only administrators may read can hold credentials of the other network. The list here is one that Wine tells from that of other files.
func TestChainKeepsAccess(t *testing.T) {
	for _, name := range []string{"10-flannel.conflist", "20-other.conf"} {
		t.Run(name, func(t *testing.T) {
			text := map[string]string{"10-flannel.conflist": theirList, "20-other.conf": theirConf}[name]
			c := chained(t, map[string]string{name: text, "README": "no configuration"})
			path := filepath.Join(c.ConfDir, name)
			sd, err := windows.SecurityDescriptorFromString("D:P(A;;FA;;;SY)(A;;FA;;;BA)(A;;FA;;;WD)")
			if err != nil {
				t.Fatal(err)
			}
			list, _, err := sd.DACL()
			if err != nil {
				t.Fatal(err)
			}
			if err := windows.SetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, nil, nil, list, nil); err != nil {
				t.Fatal(err)
			}
			want := access(t, path)
			if want == access(t, filepath.Join(c.ConfDir, "README")) {
				t.Fatalf("every file has the access list %s", want)
			}
			if _, wrote, err := c.Chain(); err != nil || !wrote {
				t.Fatal(wrote, err)
			}
			check := func() {
				t.Helper()
				entries, err := os.ReadDir(c.ConfDir)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range entries {
					if got := access(t, filepath.Join(c.ConfDir, e.Name())); e.Name() != "README" && got != want {
						t.Errorf("%s: access list %s, want %s", e.Name(), got, want)
					}
				}
			}
			check()
			remove(t, c)
			check()
		})
	}
}

// access returns the access list of a file.
func access(t *testing.T, path string) string {
	t.Helper()
	sd, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		t.Fatal(err)
	}
	_, list, ok := strings.Cut(sd.String(), "D:")
	if !ok {
		t.Fatalf("%s has no access list: %s", path, sd)
	}
	return list
}
