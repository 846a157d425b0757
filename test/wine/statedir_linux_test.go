// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestStateDirOfOthers checks a state directory that exists before the first start. The agent refuses what another user
// owns, and names it. It takes its own user's, and then no other user can write any of it. Wine keeps owners and access
// lists as owners and modes of files; it has no links.
func TestStateDirOfOthers(t *testing.T) {
	m := machine(t)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "isthmus")
	inner, file := filepath.Join(dir, "endpoints"), filepath.Join(dir, "endpoints", "record.json")
	if err := os.MkdirAll(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	all := []string{dir, inner, file}
	for _, path := range all {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	start := func() error {
		return m.StartAgent("win1", string(newManifests(t)), "--state-dir", Path(dir))
	}
	for _, path := range all {
		if err := os.Chown(path, 1000, 1000); err != nil {
			t.Fatal(err)
		}
		err := start()
		if err == nil {
			t.Errorf("the agent runs although another user owns %s: %v", path, m.StopAgent())
		} else if want := Path(path) + " belongs to another user"; !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "takeown /a /r /f") {
			t.Errorf("error %v, want one that says %q", err, want)
		}
		if err := os.Chown(path, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := start(); err != nil {
		t.Fatal(err)
	}
	if err := m.StopAgent(); err != nil {
		t.Error(err)
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o002 != 0 {
			t.Errorf("%s can be written by other users: %s", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
