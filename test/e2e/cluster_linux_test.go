// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// TestRunsAfter checks that make cluster prints the time of all that it does, images and packages included.
func TestRunsAfter(t *testing.T) {
	c := config{name: "local", nodes: 2, began: time.Unix(1000, 0)}
	if got, want := c.runsAfter(time.Unix(1100, 0), time.Unix(1130, 0)), "cluster local of 2 nodes runs after 30s, 2m10s after make began"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	c.began = time.Time{}
	if got, want := c.runsAfter(time.Unix(1100, 0), time.Unix(1130, 0)), "cluster local of 2 nodes runs after 30s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestGiveToUser checks that the kubeconfig file belongs to the user who ran sudo make cluster, who types kubectl next.
func TestGiveToUser(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	user := "1000"
	if os.Geteuid() != 0 { // may give it to itself only
		user = strconv.Itoa(os.Geteuid())
	}
	for _, uid := range []string{"", user, ""} {
		if err := giveToUser(file, uid, strconv.Itoa(os.Getegid())); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Sys().(*syscall.Stat_t).Uid; strconv.Itoa(int(got)) != user || info.Mode().Perm() != 0o600 {
		t.Errorf("owner %d, mode %v, want %s and 0600", got, info.Mode(), user)
	}
	if err := giveToUser(file, "root", "0"); err == nil {
		t.Error("a name is taken for a number")
	}
}
