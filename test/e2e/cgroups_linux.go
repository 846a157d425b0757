// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
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

// cgroupRoot is where machine and nodes have their cgroups.
const cgroupRoot = "/sys/fs/cgroup"

// kubeletControllers are the controllers of version 2 that a kubelet wants in its root cgroup, if the machine has them.
var kubeletControllers = []string{"cpu", "cpuset", "hugetlb", "memory", "pids"}

// cgroups are the cgroups of a machine, and the nodes' cgroups in them. With version 1, each directory of root is a
// hierarchy; with version 2, root is the only one.
type cgroups struct {
	root string
	// record is a file that holds the controllers that the root passed on before the first node. Only version 2 needs it.
	record string
}

func (l *lab) cgroups() cgroups { return cgroups{cgroupRoot, filepath.Join(l.dir, "controllers")} }

// unified reports whether the machine has version 2 only. Where it has both, version 1 has the controllers, and
// version 2 is in a directory.
func (c cgroups) unified() bool {
	_, err := os.Stat(filepath.Join(c.root, "cgroup.controllers"))
	return err == nil
}

// makeNode makes a node's cgroups, the root cgroups of its kubelet. They hold no processes themselves: the node's
// first processes stay in the cgroup of the lab.
func (c cgroups) makeNode(name string) error {
	if c.unified() {
		return c.makeUnified(name)
	}
	entries, err := os.ReadDir(c.root)
	if err != nil {
		return err
	}
	made := 0
	for _, h := range entries {
		if !h.IsDir() || h.Name() == "unified" {
			continue
		}
		if err := makeHierarchy(filepath.Join(c.root, h.Name()), name); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
		made++
	}
	if made == 0 {
		return fmt.Errorf("no cgroups at %s: mount -t cgroup2 cgroup2 %s", c.root, c.root)
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
func (c cgroups) makeUnified(name string) error {
	if _, err := os.Stat(c.record); missing(err) {
		now, err := os.ReadFile(filepath.Join(c.root, "cgroup.subtree_control"))
		if err == nil {
			err = os.WriteFile(c.record, now, 0o600)
		}
		if err != nil {
			return fmt.Errorf("record cgroup controllers: %w", err)
		}
	}
	dir := filepath.Join(c.root, name)
	if err := passOn(c.root); err != nil {
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

// restore takes back the controllers that the root passes on since the record was made: this program enabled some, runc
// all others. A controller that other cgroups pass on stays.
func (c cgroups) restore() error {
	before, err := os.ReadFile(c.record)
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	now, err := controllers(c.root, "cgroup.subtree_control")
	if missing(err) { // another version, after a boot
		return os.Remove(c.record)
	}
	if err != nil {
		return err
	}
	for _, name := range now {
		if slices.Contains(strings.Fields(string(before)), name) {
			continue
		}
		if err := setController(c.root, "-"+name); err != nil && !errors.Is(err, syscall.EBUSY) {
			return err
		}
	}
	return os.Remove(c.record)
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

// clearNode removes a node's cgroups once their processes have ended. runc makes some in version 2, too, where the
// machine has both.
func (c cgroups) clearNode(name string) error {
	tops := []string{filepath.Join(c.root, name)}
	if !c.unified() {
		var err error
		if tops, err = filepath.Glob(filepath.Join(c.root, "*", name)); err != nil {
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
		err := until(context.Background(), 10*time.Second, "the end of processes", func() error {
			if err := syscall.Rmdir(dir); err != nil && !missing(err) {
				return fmt.Errorf("remove cgroup %s: %w", dir, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
