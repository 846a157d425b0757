// SPDX-License-Identifier: Apache-2.0

//go:build unix

package dirlock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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

// TestDirectoryOfAnotherUser refuses a directory that another user made, who could replace what it holds: without the option
// mode, all users may create directories on a bpffs.
func TestDirectoryOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := filepath.Join(t.TempDir(), "pins")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	l, _, err := take(t, dir, time.Minute)
	if err == nil || !strings.Contains(err.Error(), "belongs to user 65534") || l != nil {
		t.Errorf("got %v", err)
	}
	if info, err := os.Stat(dir); err != nil || info.Sys().(*syscall.Stat_t).Uid != 65534 {
		t.Errorf("%v, %v", info, err)
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
