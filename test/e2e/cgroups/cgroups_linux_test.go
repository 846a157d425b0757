// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCgroupVersions checks which machines have cgroup v2 only, and where nodes have their cgroups with version 1.
func TestCgroupVersions(t *testing.T) {
	c := Tree{Root: t.TempDir()}
	if err := c.MakeNode("n1"); err == nil || !strings.Contains(err.Error(), "mount -t cgroup2") {
		t.Errorf("without cgroups: %v", err)
	}
	// As systemd mounts both versions.
	for _, dir := range []string{"cpuset", "memory", "unified"} {
		if err := os.Mkdir(filepath.Join(c.Root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for file, text := range map[string]string{"cpuset/cpuset.cpus": "0-1\n", "cpuset/cpuset.mems": "0\n", "unified/cgroup.controllers": "\n"} {
		if err := os.WriteFile(filepath.Join(c.Root, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("memory", filepath.Join(c.Root, "mem")); err != nil {
		t.Fatal(err)
	}
	if c.unified() {
		t.Error("a machine with both versions is taken for one with version 2 only")
	}
	for range 2 { // a node that comes back has its cgroups already
		if err := c.MakeNode("n1"); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, pattern := range []string{"n1", "*/n1", "*/n1/*"} {
		paths, err := filepath.Glob(filepath.Join(c.Root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, paths...)
	}
	for i := range got {
		got[i] = strings.TrimPrefix(got[i], c.Root+"/")
	}
	if want := []string{"cpuset/n1", "mem/n1", "memory/n1", "cpuset/n1/cpuset.cpus", "cpuset/n1/cpuset.mems"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if err := os.WriteFile(filepath.Join(c.Root, "cgroup.controllers"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if !c.unified() {
		t.Error("a machine with version 2 is not recognised")
	}
}

// TestUnifiedCgroups makes the cgroups of two nodes in this kernel's cgroups of version 2, with what controllers it has there.
func TestUnifiedCgroups(t *testing.T) {
	c := unifiedMachine(t)
	have := read(t, c.Root, "cgroup.controllers")
	have = slices.DeleteFunc(have, func(name string) bool { return !slices.Contains(kubeletControllers, name) })
	t.Logf("controllers: %q", have)
	for _, name := range []string{"n1", "n2", "n1"} { // a node may come back
		if err := c.MakeNode(name); err != nil {
			t.Fatal(err)
		}
		if got := read(t, filepath.Join(c.Root, name), "cgroup.controllers"); !slices.Equal(got, have) {
			t.Errorf("cgroup %s has controllers %q, want %q", name, got, have)
		}
	}
	// As a kubelet and runc leave them.
	if err := os.MkdirAll(filepath.Join(c.Root, "n1/kubepods/besteffort/pod1/container"), 0o755); err != nil {
		t.Fatal(err)
	}
	again := Tree{c.Root, filepath.Join(t.TempDir(), "again")} // another lab
	if err := again.MakeNode("m1"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"n1", "n2", "n9"} { // there are fewer nodes than are removed
		if err := c.ClearNode(name); err != nil {
			t.Error(err)
		}
	}
	if err := c.Restore(); err != nil {
		t.Error(err)
	}
	if got := read(t, filepath.Join(c.Root, "m1"), "cgroup.controllers"); !slices.Equal(got, have) {
		t.Errorf("the end of a lab leaves the other lab the controllers %q, want %q", got, have)
	}
	if err := again.ClearNode("m1"); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(c.Root, "[mn][0-9]")); err != nil || len(left) > 0 {
		t.Errorf("left: %q %v", left, err)
	}
}

// TestControllersRestored checks that the root passes on the same controllers before and after a lab.
func TestControllersRestored(t *testing.T) {
	c := unifiedMachine(t)
	if err := c.MakeNode("n1"); err != nil {
		t.Fatal(err)
	}
	// runc enables all that it finds.
	for _, name := range read(t, c.Root, "cgroup.controllers") {
		if err := setController(c.Root, "+"+name); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.ClearNode("n1"); err != nil {
		t.Error(err)
	}
	for range 2 { // make cluster-stop also runs after a lab that has ended
		if err := c.Restore(); err != nil {
			t.Error(err)
		}
	}
	if got := read(t, c.Root, "cgroup.subtree_control"); len(got) > 0 {
		t.Errorf("the root still passes on %q", got)
	}
}

// TestProcessesInRoot checks the message for a container whose root cgroup is not the machine's.
func TestProcessesInRoot(t *testing.T) {
	c := unifiedMachine(t)
	if len(read(t, c.Root, "cgroup.controllers")) == 0 {
		t.Skip("needs a controller of version 2, which the kernel can refuse")
	}
	dir, err := os.Open(c.Root)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	err = c.MakeNode("n1")
	if !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "--cgroupns=host") {
		t.Errorf("%v, want an error that names --cgroupns=host", err)
	}
	if err := errors.Join(cmd.Process.Kill(), c.Restore()); err != nil {
		t.Error(err)
	}
	cmd.Wait() // it was killed
}

// unifiedMachine returns an empty cgroup of version 2, which takes the place of a machine's root.
func unifiedMachine(t *testing.T) Tree {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount cgroups")
	}
	dir := t.TempDir()
	if err := unix.Mount("cgroup2", dir, "cgroup2", 0, ""); err != nil {
		t.Fatalf("mount cgroups of version 2: %v", err)
	}
	machine := Tree{dir, filepath.Join(t.TempDir(), "controllers")}
	name := fmt.Sprintf("isthmus-test-%d", os.Getpid())
	t.Cleanup(func() {
		if err := errors.Join(removeCgroups(filepath.Join(dir, name)), machine.Restore(), unix.Unmount(dir, 0)); err != nil {
			t.Error(err)
		}
	})
	err := machine.MakeNode(name)
	if errors.Is(err, syscall.EBUSY) { // a container that does not see the machine's root
		t.Logf("without controllers: %v", err)
		err = os.Mkdir(filepath.Join(dir, name), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := Tree{filepath.Join(dir, name), filepath.Join(t.TempDir(), "controllers")}
	for _, controller := range read(t, c.Root, "cgroup.subtree_control") { // the new machine's root passes on none
		if err := setController(c.Root, "-"+controller); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func read(t *testing.T, dir, file string) []string {
	t.Helper()
	words, err := controllers(dir, file)
	if err != nil {
		t.Fatal(err)
	}
	return words
}
