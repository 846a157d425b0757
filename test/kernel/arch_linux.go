// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// arch is a processor architecture of guests. Its names in Go and in Debian are the same.
type arch struct {
	name    string
	kernels string   // Debian packages to boot, metapackages followed
	qemu    []string // the emulator, its machine and processor
	console string   // the serial port
	params  string   // further parameters of the kernel
}

// The processors lack what is slow to emulate. On amd64 that is copying by rep movsb and the fifth level of page tables,
// which took a fifth of the time. On arm64 it is pointer authentication: with it, a guest took ten times as long. Nor do kernels
// of arm64 guard page tables (KPTI, which random addresses need) and branches: each system call would make the emulator
// forget its translations, which took two fifths of the time.
// Of arm64 one kernel boots unless the flag -kernels names others: the versions of Linux are compared on amd64.
var arches = map[string]arch{
	"amd64": {"amd64", "linux-image-cloud-amd64,linux-image-6.12-cloud-amd64",
		[]string{"qemu-system-x86_64", "-machine", "q35,accel=tcg,hpet=off", "-cpu", "max,-erms,-fsrm,-la57"}, "ttyS0", ""},
	"arm64": {"arm64", "linux-image-6.12-cloud-arm64", []string{"qemu-system-aarch64", "-machine", "virt,accel=tcg", "-cpu", "neoverse-n1"}, "ttyAMA0",
		"nokaslr kpti=off nospectre_bhb"},
}

// apt runs the package tools for one architecture.
type apt struct {
	config string // a file of settings; empty for the architecture of this machine
}

// packages returns the package tools for an architecture. For another architecture than that of this machine, it reads
// the package lists into dir. The machine's own package system does not change.
func packages(ctx context.Context, a arch, dir string) (apt, error) {
	if a.name == runtime.GOARCH {
		return apt{}, nil
	}
	dir, err := filepath.Abs(filepath.Join(dir, "apt-"+a.name))
	if err != nil {
		return apt{}, err
	}
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return apt{}, err
		}
	}
	p := apt{config: filepath.Join(dir, "apt.conf")}
	text := fmt.Sprintf("APT::Architecture %q;\nAPT::Architectures { %q; };\nAPT::Sandbox::User \"\";\nDir::State::lists \"%s/lists\";\nDir::State::status \"/dev/null\";\nDir::Cache \"%s/cache\";\n",
		a.name, a.name, dir, dir)
	if err := os.WriteFile(p.config, []byte(text), 0o644); err != nil {
		return apt{}, err
	}
	if text, err := p.command(ctx, "apt-get", "update", "-q").CombinedOutput(); err != nil {
		return apt{}, fmt.Errorf("read the package lists of %s: %w\n%s", a.name, err, text)
	}
	return p, nil
}

func (p apt) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	if p.config != "" {
		cmd.Env = append(os.Environ(), "APT_CONFIG="+p.config)
	}
	return cmd
}
