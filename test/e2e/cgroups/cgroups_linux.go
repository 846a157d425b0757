// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Root is where machine and nodes have their cgroups.
const Root = "/sys/fs/cgroup"

// kubeletControllers are the controllers of version 2 that a kubelet wants in its root cgroup, if the machine has them.
var kubeletControllers = []string{"cpu", "cpuset", "hugetlb", "memory", "pids"}

// Tree are the cgroups of a machine, and the nodes' cgroups in them. With version 1, each directory of Root is a
// hierarchy; with version 2, Root is the only one.
type Tree struct {
	Root string
	// Record is a file that holds the controllers that the root passed on before the first node. Only version 2 needs it.
	Record string
}

// unified reports whether the machine has version 2 only. Where it has both, version 1 has the controllers, and
// version 2 is in a directory.
func (t Tree) unified() bool {
	_, err := os.Stat(filepath.Join(t.Root, "cgroup.controllers"))
	return err == nil
}

// MakeNode makes a node's cgroups, the root cgroups of its kubelet. They hold no processes themselves: the node's
// first processes stay in the cgroup of the lab.
func (t Tree) MakeNode(name string) error {
	if t.unified() {
		return t.makeUnified(name)
	}
	entries, err := os.ReadDir(t.Root)
	if err != nil {
		return err
	}
	made := 0
	for _, h := range entries {
		if !h.IsDir() || h.Name() == "unified" {
			continue
		}
		if err := makeHierarchy(filepath.Join(t.Root, h.Name()), name); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
		made++
	}
	if made == 0 {
		return fmt.Errorf("no cgroups at %s: mount -t cgroup2 cgroup2 %s", t.Root, t.Root)
	}
	return nil
}

// makeHierarchy makes a cgroup of version 1. A cpuset without processors and memory takes no processes.
func makeHierarchy(hierarchy, name string) error {
	dir := filepath.Join(hierarchy, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(hierarchy, file))
		if missing(err) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), value, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// makeUnified makes a cgroup of version 2. It passes its controllers on, too: so the end of another lab cannot take them
// away.
func (t Tree) makeUnified(name string) error {
	if _, err := os.Stat(t.Record); missing(err) {
		now, err := os.ReadFile(filepath.Join(t.Root, "cgroup.subtree_control"))
		if err == nil {
			err = os.WriteFile(t.Record, now, 0o600)
		}
		if err != nil {
			return fmt.Errorf("record cgroup controllers: %w", err)
		}
	}
	dir := filepath.Join(t.Root, name)
	if err := passOn(t.Root); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	return passOn(dir)
}

// passOn enables the controllers of a cgroup in the cgroups below it.
func passOn(dir string) error {
	have, err := controllers(dir, "cgroup.controllers")
	if err != nil {
		return err
	}
	for _, name := range kubeletControllers {
		if !slices.Contains(have, name) {
			continue
		}
		err := setController(dir, "+"+name)
		if errors.Is(err, syscall.EBUSY) {
			// Only the machine's root may do both.
			return fmt.Errorf("%w: the cgroup has processes of its own, as in a container: start the container with --cgroupns=host", err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Restore takes back the controllers that the root passes on since the record was made: this program enabled some, runc
// all others. A controller that other cgroups pass on stays.
func (t Tree) Restore() error {
	before, err := os.ReadFile(t.Record)
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	now, err := controllers(t.Root, "cgroup.subtree_control")
	if missing(err) { // another version, after a boot
		return os.Remove(t.Record)
	}
	if err != nil {
		return err
	}
	for _, name := range now {
		if slices.Contains(strings.Fields(string(before)), name) {
			continue
		}
		if err := setController(t.Root, "-"+name); err != nil && !errors.Is(err, syscall.EBUSY) {
			return err
		}
	}
	return os.Remove(t.Record)
}

// controllers reads a list of controllers.
func controllers(dir, file string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil, fmt.Errorf("read cgroup controllers: %w", err)
	}
	return strings.Fields(string(text)), nil
}

// setController enables or disables one controller in the cgroups below one.
func setController(dir, change string) error {
	if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(change), 0o644); err != nil {
		return fmt.Errorf("change cgroup controller %s: %w", change, err)
	}
	return nil
}

// ClearNode removes a node's cgroups once their processes have ended. runc makes some in version 2, too, where the
// machine has both.
func (t Tree) ClearNode(name string) error {
	tops := []string{filepath.Join(t.Root, name)}
	if !t.unified() {
		var err error
		if tops, err = filepath.Glob(filepath.Join(t.Root, "*", name)); err != nil {
			return err
		}
	}
	for _, top := range tops {
		if err := removeCgroups(top); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroups removes a cgroup, if it exists, and those below it.
func removeCgroups(top string) error {
	var all []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		if missing(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(all) { // innermost first
		if err := removeCgroup(dir); err != nil && !missing(err) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// removeCgroup waits for the end of processes in a cgroup.
func removeCgroup(dir string) error {
	for began := time.Now(); ; time.Sleep(300 * time.Millisecond) {
		if err := syscall.Rmdir(dir); err == nil || missing(err) || time.Since(began) > 10*time.Second {
			return err
		}
	}
}

func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
