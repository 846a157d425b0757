// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		info, err := e.Info()
		if err != nil || e.Name() != "other.1" && info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info, err)
		}
		all[e.Name()] = string(text)
	}
	return all
}

func TestFileRotates(t *testing.T) {
	onLinux(t)
	for _, keep := range []int{0, 1, 3} {
		t.Run(fmt.Sprint(keep), func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "flows")
			for _, stray := range []string{"flows.1", "flows.7", "other.1", "flows.old"} {
				if err := os.WriteFile(filepath.Join(dir, stray), []byte("stray\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			f, err := OpenFile(path, 30, keep)
			if err != nil {
				t.Fatal(err)
			}
			for n := range 100 {
				if _, err := fmt.Fprintf(f, "line %04d\n", n); err != nil { // three have room
					t.Fatal(err)
				}
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			all := contents(t, dir)
			want := map[string]string{"other.1": "stray\n", "flows.old": "stray\n", "flows": "line 0099\n"}
			for n := 1; n <= keep; n++ {
				first := 99 - 3*n
				want[fmt.Sprintf("flows.%d", n)] = fmt.Sprintf("line %04d\nline %04d\nline %04d\n", first, first+1, first+2)
			}
			if fmt.Sprint(all) != fmt.Sprint(want) {
				t.Errorf("got %q\nwant %q", all, want)
			}
		})
	}
}

// A file that an ended process left continues after its last whole line, and its last line is found also after a
// rotation.
func TestFileContinues(t *testing.T) {
	onLinux(t)
	path := filepath.Join(t.TempDir(), "flows")
	if err := os.WriteFile(path, []byte("one\ntwo\nthr"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path, 12, 2)
	if err != nil {
		t.Fatal(err)
	}
	if last, err := f.LastLines(); err != nil || string(last) != "one\ntwo\n" {
		t.Errorf("%q, %v", last, err)
	}
	for _, line := range []string{"three\n", "a line that is longer than the file may be\n"} {
		if _, err := f.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.Close(), os.Truncate(path, 3)); err != nil {
		t.Fatal(err)
	}
	if f, err = OpenFile(path, 12, 2); err != nil {
		t.Fatal(err)
	}
	if last, err := f.LastLines(); err != nil || string(last) != "three\n" {
		t.Errorf("%q, %v", last, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	all := contents(t, filepath.Dir(path))
	if all["flows"] != "" || all["flows.1"] != "three\n" || all["flows.2"] != "one\ntwo\n" {
		t.Errorf("%q", all)
	}
}

// A line that does not fit on the disk leaves nothing behind, and later lines are written.
func TestFileFails(t *testing.T) {
	onLinux(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "flows")
	f, err := OpenFile(path, 1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	good := f.file
	if f.file, err = os.Open(path); err != nil { // a descriptor that cannot write
		t.Fatal(err)
	}
	if n, err := f.Write([]byte("lost\n")); err == nil || n != 0 {
		t.Errorf("%d, %v", n, err)
	}
	f.file.Close()
	f.file = good
	if _, err := f.Write([]byte("kept\n")); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if all := contents(t, dir); all["flows"] != "kept\n" || len(all) != 1 {
		t.Errorf("%q", all)
	}
	for _, bad := range []string{dir, filepath.Join(dir, "missing", "flows")} {
		if f, err := OpenFile(bad, 1000, 1); err == nil {
			t.Errorf("%s: opened %v", bad, f)
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(link, 1000, 1); err == nil || !strings.Contains(err.Error(), "it is not a regular file") {
		t.Errorf("a link: %v", err)
	}
}

// FuzzFile opens a file with any content. What remains are its whole lines.
func FuzzFile(f *testing.F) {
	for _, seed := range []string{"", "\n", "a", "a\nb", "a\n\n", `{"time":"2026-11-23T00:00:00Z"}` + "\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "flows")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := OpenFile(path, 1<<20, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		whole := content[:bytes.LastIndexByte(content, '\n')+1]
		if last, err := out.LastLines(); err != nil || !bytes.Equal(last, whole) {
			t.Fatalf("last lines %q, %v", last, err)
		}
		if _, err := out.Write([]byte("next\n")); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != string(whole)+"next\n" {
			t.Fatalf("%q, %v", got, err)
		}
	})
}

// onLinux skips a test of files that are used as on Linux, where isthmus-relay runs.
func onLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("isthmus-relay runs on Linux")
	}
}
