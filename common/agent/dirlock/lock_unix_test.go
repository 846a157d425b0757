// SPDX-License-Identifier: Apache-2.0

//go:build unix

package dirlock_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestOnlyForTheOwner closes a directory that others could open, and lock.
func TestOnlyForTheOwner(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, filepath.Join(dir, "new")} {
		l, _, err := take(t, d, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: mode %o, %v, want 700", d, info.Mode().Perm(), err)
		}
	}
}

// TestDirectoryIsRemoved takes a directory that another process removes again and again.
func TestDirectoryIsRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			os.Remove(dir)
		}
	}()
	defer func() { cancel(); <-done }()
	for range 100 {
		l, _, err := take(t, dir, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		l.Release()
	}
}

// TestDirectoryIsReplaced waits for a holder that removes the directory, as
// uninstall does, and takes the new one.
func TestDirectoryIsReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	_, end := hold(t, dir)
	time.AfterFunc(150*time.Millisecond, func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
		end.Close()
	})
	l, _, err := take(t, dir, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	if _, _, err := take(t, dir, 0); err == nil {
		t.Error("the lock is on the directory that was removed")
	}
}
