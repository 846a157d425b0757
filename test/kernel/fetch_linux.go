// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// image is an unpacked kernel package.
type image struct {
	release string // as uname -r prints it
	vmlinuz string
	modules string // the directory of the modules
}

// fetch downloads and unpacks the package that a metapackage depends on, unless it is in dir
// already.
func fetch(ctx context.Context, name, dir string, out io.Writer) (image, error) {
	pkg, err := resolve(ctx, name)
	if err != nil {
		return image{}, err
	}
	root, err := filepath.Abs(filepath.Join(dir, pkg))
	if err != nil {
		return image{}, err
	}
	if _, err := os.Stat(root); err != nil {
		fmt.Fprintf(out, "kernel: fetching %s\n", pkg)
		if err := unpack(ctx, pkg, root); err != nil {
			return image{}, err
		}
	}
	release := strings.TrimPrefix(pkg, "linux-image-")
	return image{release: release, vmlinuz: filepath.Join(root, "boot", "vmlinuz-"+release), modules: filepath.Join(root, "lib", "modules", release)}, nil
}

// resolve returns the kernel package that a metapackage depends on.
func resolve(ctx context.Context, name string) (string, error) {
	text, err := exec.CommandContext(ctx, "apt-cache", "depends", "--", name).Output()
	if err != nil {
		return "", fmt.Errorf("look for package %s: %w (run apt-get update)", name, err)
	}
	for line := range strings.Lines(string(text)) {
		if pkg, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: linux-image-"); ok {
			return "linux-image-" + pkg, nil
		}
	}
	return name, nil
}

// unpack downloads a package and unpacks it into root. An error leaves root unchanged.
func unpack(ctx context.Context, pkg, root string) error {
	part := root + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if err := os.MkdirAll(part, 0o755); err != nil {
		return err
	}
	download := exec.CommandContext(ctx, "apt-get", "download", "-q", "--", pkg)
	download.Dir = part
	if text, err := download.CombinedOutput(); err != nil {
		return fmt.Errorf("download %s: %w\n%s", pkg, err, text)
	}
	debs, err := filepath.Glob(filepath.Join(part, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("download %s: got %d packages: %v", pkg, len(debs), err)
	}
	if text, err := exec.CommandContext(ctx, "dpkg-deb", "-x", debs[0], part).CombinedOutput(); err != nil {
		return fmt.Errorf("unpack %s: %w\n%s", pkg, err, text)
	}
	if err := os.Remove(debs[0]); err != nil {
		return err
	}
	return os.Rename(part, root)
}
