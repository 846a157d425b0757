// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
)

// target is one platform, and the packages that are built for it.
type target struct {
	os, arch string
	commands []string // packages, from the top of the checkout
}

func (t target) String() string { return t.os + "-" + t.arch }

// name returns the file name of a command.
func (t target) name(command string) string {
	name := filepath.Base(command)
	if name == "conformance" || name == "smoke" {
		name = "isthmus-" + name
	}
	if t.os == "windows" {
		name += ".exe"
	}
	return name
}

// targets returns the platforms of a release.
func targets() []target {
	all := []string{"cmd/isthmus-agent", "cmd/isthmus-cni", "cmd/isthmus-controller", "cmd/isthmus-relay", "cmd/isthmusctl"}
	return []target{
		{"linux", "amd64", all},
		{"linux", "arm64", all},
		{"windows", "amd64", append(slices.Clone(all), "test/conformance", "test/smoke")},
	}
}

// goCommand returns a call of go in the checkout, with the toolchain of go.mod, and without
// settings of the machine that would change what is built.
func (s source) goCommand(ctx context.Context, extra []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = s.dir
	cmd.Env = slices.Concat(os.Environ(), s.goEnv, []string{"CGO_ENABLED=0", "GOTOOLCHAIN=" + s.goVer, "GOFLAGS=", "GOWORK=off", "GOENV=off",
		"GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0", "GOFIPS140=off", "GODEBUG="}, extra)
	return cmd
}

// goEnv returns the settings of go that say where modules come from and caches are, and
// change nothing of what is built. GOENV=off would hide those of "go env -w".
func goEnv(ctx context.Context, dir string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", "env", "-json", "GOPROXY", "GOSUMDB", "GONOSUMDB", "GONOPROXY", "GOPRIVATE", "GOINSECURE",
		"GOCACHE", "GOMODCACHE", "GOPATH")
	cmd.Dir = dir
	text, err := output(cmd)
	if err != nil {
		return nil, err
	}
	var values map[string]string
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		return nil, fmt.Errorf("read go env -json: %w", err)
	}
	var all []string
	for name, v := range values {
		all = append(all, name+"="+v)
	}
	return all, nil
}

// build writes the commands of a target into a directory. The binaries hold no path of
// this machine, and no state of git but the version.
func (s source) build(ctx context.Context, t target, version, dir string, extra ...string) error {
	for _, c := range t.commands {
		cmd := s.goCommand(ctx, append([]string{"GOOS=" + t.os, "GOARCH=" + t.arch}, extra...), "build", "-trimpath", "-buildvcs=false",
			"-ldflags", "-s -w -X main.version="+version, "-o", filepath.Join(dir, t.name(c)), "./"+c)
		if _, err := output(cmd); err != nil {
			return fmt.Errorf("build %s for %s: %w", c, t, err)
		}
	}
	return nil
}

// module is a Go module that a binary contains.
type module struct {
	path, version string
	sum           string // as in go.sum
}

func (m module) key() string { return m.path + "@" + m.version }

// modules returns the modules that a binary contains, as the linker has recorded them, and
// the version of Go.
func modules(binary string) ([]module, string, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, "", fmt.Errorf("read modules of %s: %w", binary, err)
	}
	var all []module
	for _, d := range info.Deps {
		m := d
		if d.Replace != nil {
			m = d.Replace
		}
		all = append(all, module{m.Path, m.Version, m.Sum})
	}
	return all, info.GoVersion, checkModules(info.Deps)
}

// checkModules refuses modules that only this machine has.
func checkModules(deps []*debug.Module) error {
	for _, d := range deps {
		if d.Replace != nil && d.Replace.Version == "" {
			return fmt.Errorf("module %s is replaced by directory %s: a release contains published modules only", d.Path, d.Replace.Path)
		}
	}
	return nil
}
