// SPDX-License-Identifier: Apache-2.0

package statefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// recorder is a file that notes the calls of write. It fails at one of them.
type recorder struct{ calls, fails string }

var errDisk = errors.New("disk")

func (r *recorder) call(name string) error {
	r.calls += name + " "
	if name == r.fails {
		return errDisk
	}
	return nil
}

func (r *recorder) Write(text []byte) (int, error) { return len(text), r.call("write") }
func (r *recorder) Sync() error                    { return r.call("sync") }
func (r *recorder) Close() error                   { return r.call("close") }

// TestDataIsOnTheDisk checks that data is flushed before a file gets its name, and that an error of the disk is one of Save.
func TestDataIsOnTheDisk(t *testing.T) {
	for fails, want := range map[string]string{"": "write sync close ", "write": "write close ", "sync": "write sync close ", "close": "write sync close "} {
		r := &recorder{fails: fails}
		err := write(r, []byte("x"))
		if r.calls != want || (err == nil) != (fails == "") || fails != "" && !errors.Is(err, errDisk) {
			t.Errorf("failing at %q: calls %q, %v; want %q", fails, r.calls, err, want)
		}
	}
}

func TestSaveAndLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	var got []string
	decode := func(text []byte) error { return json.Unmarshal(text, &got) }
	if err := Load(file, decode); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrDamaged) {
		t.Errorf("no file: %v", err)
	}
	for _, want := range []string{"a", "b"} {
		if err := Save(file, []string{want}); err != nil {
			t.Fatal(err)
		}
		if err := Load(file, decode); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%q, %v", got, err)
		}
	}
	if err := Save(file, func() {}); err == nil {
		t.Error("a function is saved")
	}
	if err := os.Mkdir(file+temp, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Save(file, []string{"c"}); err == nil {
		t.Error("no error")
	}
	if err := Load(file, decode); err != nil || got[0] != "b" {
		t.Errorf("after an error: %q, %v", got, err)
	}
}

// TestDamagedFile checks what a power cut leaves of a file that was not flushed: nothing, zeros, or a part.
func TestDamagedFile(t *testing.T) {
	for _, text := range []string{"", "\x00\x00\x00", `["a`, strings.Repeat(" ", maxSize) + "[]"} {
		file := filepath.Join(t.TempDir(), "state.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		decode := func(text []byte) error { return json.Unmarshal(text, new([]string)) }
		if err := Load(file, decode); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), file+Aside) {
			t.Errorf("%.10q: %v", text, err)
		}
		if aside, err := os.ReadFile(file + Aside); err != nil || !bytes.Equal(aside, []byte(text)) {
			t.Errorf("%.10q: aside is %.10q, %v", text, aside, err)
		}
		if err := Load(file, decode); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%.10q: again: %v", text, err)
		}
		if err := Remove(file); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) > 0 {
			t.Errorf("%.10q: %v is left, %v", text, left, err)
		}
	}
}
