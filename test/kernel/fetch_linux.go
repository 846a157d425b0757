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
func (p apt) fetch(ctx context.Context, name, dir string, out io.Writer) (image, error) {
	pkg, err := p.resolve(ctx, name, dir)
	if err != nil {
		return image{}, err
	}
	root, err := filepath.Abs(filepath.Join(dir, pkg))
	if err != nil {
		return image{}, err
	}
	if _, err := os.Stat(root); err != nil {
		fmt.Fprintf(out, "kernel: fetching %s\n", pkg)
		if err := p.unpack(ctx, root, pkg); err != nil {
			return image{}, err
		}
	}
	release := strings.TrimPrefix(pkg, "linux-image-")
	return image{release: release, vmlinuz: filepath.Join(root, "boot", "vmlinuz-"+release), modules: filepath.Join(root, "lib", "modules", release)}, nil
}

// resolve returns the kernel package that a metapackage depends on.
func (p apt) resolve(ctx context.Context, name, dir string) (string, error) {
	if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
		return name, nil // a kernel that someone unpacked there
	}
	text, err := p.command(ctx, "apt-cache", "depends", "--", name).Output()
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

// unpack downloads packages and unpacks them into root. An error leaves root unchanged.
func (p apt) unpack(ctx context.Context, root string, names ...string) error {
	part := root + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if err := os.MkdirAll(part, 0o755); err != nil {
		return err
	}
	download := p.command(ctx, "apt-get", append([]string{"download", "-q", "--"}, names...)...)
	download.Dir = part
	if text, err := download.CombinedOutput(); err != nil {
		return fmt.Errorf("download %s: %w\n%s", strings.Join(names, " "), err, text)
	}
	debs, err := filepath.Glob(filepath.Join(part, "*.deb"))
	if err != nil || len(debs) != len(names) {
		return fmt.Errorf("download %s: got %d packages: %v", strings.Join(names, " "), len(debs), err)
	}
	for _, d := range debs {
		if text, err := exec.CommandContext(ctx, "dpkg-deb", "-x", d, part).CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w\n%s", filepath.Base(d), err, text)
		}
		if err := os.Remove(d); err != nil {
			return err
		}
	}
	return os.Rename(part, root)
}
