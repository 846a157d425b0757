// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tools are the commands that tests run, and toolPackages the packages that have them.
var (
	tools        = []string{"nft", "ip", "tc"}
	toolPackages = []string{"nftables", "iproute2"}
)

// fetchTools fetches the tools of an architecture, unless they are there already, and returns the directory where the
// packages are unpacked. For this machine's architecture that is the root directory.
func (p apt) fetchTools(ctx context.Context, out io.Writer) (string, error) {
	if p.config == "" {
		return "/", nil
	}
	root := filepath.Join(filepath.Dir(p.config), "tools")
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	text, err := p.command(ctx, "apt-cache", append([]string{"depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks",
		"--no-replaces", "--no-enhances", "--"}, toolPackages...)...).Output()
	if err != nil {
		return "", fmt.Errorf("list the packages of %s: %w", strings.Join(tools, ", "), err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimRight(line, "\n"); !strings.ContainsAny(line, " <") {
			names = append(names, line)
		}
	}
	fmt.Fprintf(out, "kernel: fetching %s\n", strings.Join(names, " "))
	return root, p.unpack(ctx, root, names...)
}

// copyTool copies a command below root, and the libraries that it needs, into a guest.
func copyTool(root, name, guest string) error {
	tool, err := find(root, name, "usr/sbin", "sbin", "usr/bin", "bin")
	if err != nil {
		return err
	}
	if err := copyFile(tool, filepath.Join(guest, "bin", name)); err != nil {
		return err
	}
	done := make(map[string]bool)
	for todo := []string{tool}; len(todo) > 0; todo = todo[1:] {
		loader, needed, err := linked(todo[0])
		if err != nil {
			return err
		}
		if loader != "" {
			if err := copyFile(filepath.Join(root, loader), filepath.Join(guest, loader)); err != nil {
				return err
			}
		}
		for _, n := range needed {
			if done[n] {
				continue
			}
			done[n] = true
			from, err := find(root, n, "lib/*-linux-gnu*", "usr/lib/*-linux-gnu*", "lib", "usr/lib")
			if err != nil {
				return err
			}
			if err := copyFile(from, filepath.Join(guest, "lib", n)); err != nil {
				return err
			}
			todo = append(todo, from)
		}
	}
	return nil
}

// find returns the first file of that name in directories below root, which may be patterns. A link to an absolute path leads
// below root, too.
func find(root, name string, dirs ...string) (string, error) {
	for _, d := range dirs {
		found, err := filepath.Glob(filepath.Join(root, d, name))
		if err != nil {
			return "", err
		}
		if len(found) == 0 {
			continue
		}
		if to, err := os.Readlink(found[0]); err == nil && filepath.IsAbs(to) {
			return filepath.Join(root, to), nil
		}
		return found[0], nil
	}
	return "", fmt.Errorf("%s: %w below %s", name, fs.ErrNotExist, root)
}

// linked returns the path of the program that loads a command, and the names of the libraries that a command or a
// library needs.
func linked(path string) (loader string, needed []string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		text, err := io.ReadAll(p.Open())
		if err != nil {
			return "", nil, fmt.Errorf("%s: %w", path, err)
		}
		loader = strings.TrimRight(string(text), "\x00")
	}
	needed, err = f.ImportedLibraries()
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", path, err)
	}
	return loader, needed, nil
}

// copyFile copies a file, not the link that leads to it, and makes it executable.
func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
