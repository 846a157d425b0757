// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// compiler makes DLLs for 64-bit Windows.
const compiler = "x86_64-w64-mingw32-gcc"

// libraries are the DLLs of the emulator, and the libraries with which each is linked.
var libraries = map[string][]string{
	"computenetwork":   {"-lws2_32", "-lole32"},
	"vmcompute":        {"-lws2_32", "-lole32"},
	"bcryptprimitives": {"-ladvapi32"},
	"iphlpapi-more":    {"-lws2_32", "-lole32"},
	"etw-more":         {"-lws2_32", "-lole32"},
}

// Missing returns a text that names missing packages; empty if there are none.
func Missing() string {
	var missing []string
	if _, err := exec.LookPath(compiler); err != nil {
		missing = append(missing, compiler)
	}
	if _, err := loader(); err != nil {
		missing = append(missing, "wine64")
	}
	if len(missing) == 0 {
		return ""
	}
	return strings.Join(missing, ", ") + ": run 'sudo make deps-windows'"
}

// Build builds everything that a Machine needs: the DLLs, the commands for Windows, the emulator for this system.
// top is the top of the repository.
func Build(ctx context.Context, top, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for name, libs := range libraries {
		source := filepath.Join(top, "test", "hnsemu", "dll", name+".c")
		args := append([]string{"-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-s", "-static-libgcc",
			"-o", filepath.Join(to, name+".dll"), source}, libs...)
		if out, err := exec.CommandContext(ctx, compiler, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("build %s.dll: %w\n%s", name, err, out)
		}
	}
	if err := goTool(ctx, top, "linux", "build", "-o", to+"/", "./test/hnsemu"); err != nil {
		return err
	}
	return goTool(ctx, top, "windows", "build", "-trimpath", "-ldflags", "-s -w", "-o", to+"/", "./cmd/isthmus-agent", "./cmd/isthmus-cni", "./cmd/isthmusctl")
}

// BuildConformance makes isthmus-conformance.exe.
func BuildConformance(ctx context.Context, top, to string) error {
	return goTool(ctx, top, "windows", "build", "-trimpath", "-o", filepath.Join(to, "isthmus-conformance.exe"), "./test/conformance")
}

// BuildSmoke makes isthmus-smoke.exe.
func BuildSmoke(ctx context.Context, top, to string) error {
	return goTool(ctx, top, "windows", "build", "-trimpath", "-o", filepath.Join(to, "isthmus-smoke.exe"), "./test/smoke")
}

// BuildVFPControl makes vfpctrl.exe, which asks the emulator for the counters of its switch.
func BuildVFPControl(ctx context.Context, top, to string) error {
	return goTool(ctx, top, "windows", "build", "-trimpath", "-o", filepath.Join(to, "vfpctrl.exe"), "./test/hnsemu/vfpctrl")
}

// BuildHolder makes holder.exe, which takes names of the agent.
func BuildHolder(ctx context.Context, top, to string) error {
	return goTool(ctx, top, "windows", "build", "-trimpath", "-o", filepath.Join(to, "holder.exe"), "./test/wine/holder")
}

// BuildHCN makes hcsshim's own tests of HNS, which need a service to run
// against, into hcn.test.exe.
func BuildHCN(ctx context.Context, top, to string) error {
	return goTool(ctx, top, "windows", "test", "-c", "-tags", "integration", "-o", filepath.Join(to, "hcn.test.exe"), "github.com/Microsoft/hcsshim/hcn")
}

// BuildPlugins makes the reference plugins of the CNI project and that of Microsoft, of modules of their own.
func BuildPlugins(ctx context.Context, top, to string) error {
	for _, module := range []string{"plugins", "sdnbridge"} {
		if err := goTool(ctx, filepath.Join(top, "test", "wine", module), "windows", "build", "-o", to+"/", "tool"); err != nil {
			return err
		}
	}
	return nil
}

func goTool(ctx context.Context, top, goos string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s for %s: %w\n%s", strings.Join(args, " "), goos, err, out)
	}
	return nil
}
