// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/test/netns"
)

// Directories of Wine on Debian. The wrappers in the search path complain about a missing 32-bit Wine.
const parts = "/usr/lib/wine"

// loader finds the program that runs executables of Windows.
func loader() (string, error) {
	if path := filepath.Join(parts, "wine64"); exists(path) {
		return path, nil
	}
	for _, name := range []string{"wine64", "wine"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("find wine: it is not installed")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// prefix is a Windows installation: its files and its registry, in a directory.
// All its processes are in one network namespace.
type prefix struct {
	dir, wine string
	ns        *netns.NS
}

// patience bounds a single operation of Wine. To make a prefix takes seconds on an idle machine.
const patience = 3 * time.Minute

// newPrefix makes a Windows Server 2022 with the DLLs of a directory.
func newPrefix(ctx context.Context, dir, dlls string, ns *netns.NS) (*prefix, error) {
	wine, err := loader()
	if err != nil {
		return nil, err
	}
	p := &prefix{dir: dir, wine: wine, ns: ns}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := p.boot(ctx, dlls); err != nil {
		return nil, errors.Join(fmt.Errorf("make a wine prefix: %w", err), p.close())
	}
	return p, nil
}

func (p *prefix) boot(ctx context.Context, dlls string) error {
	const key = `HKLM\Software\Microsoft\Windows NT\CurrentVersion`
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	if err := p.stay(ctx); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"wineboot", "-i"},
		{"winecfg", "-v", "win10"},
		{"reg", "add", key, "/v", "CurrentBuildNumber", "/t", "REG_SZ", "/d", "20348", "/f"},
	} {
		if out, err := p.output(p.command(ctx, args[0], args[1:]...)); err != nil {
			return fmt.Errorf("%s: %w\n%s", args[0], err, out)
		}
	}
	for name := range libraries {
		b, err := os.ReadFile(filepath.Join(dlls, name+".dll"))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(p.dir, "drive_c", "windows", "system32", name+".dll"), b, 0o755); err != nil {
			return err
		}
	}
	// The service manager of the first start does not know services that are created later.
	p.halt(ctx)
	return p.stay(ctx)
}

// stay starts wineserver in the namespace of the prefix, so that it does not end when it is idle.
func (p *prefix) stay(ctx context.Context) error {
	if out, err := p.output(p.server(ctx, "-p")); err != nil {
		return fmt.Errorf("wineserver: %w\n%s", err, out)
	}
	return nil
}

// halt ends every process of the prefix.
func (p *prefix) halt(ctx context.Context) {
	for _, args := range [][]string{{"-k"}, {"-w"}} {
		_ = p.ns.Do(p.server(ctx, args...).Run) // -k of a server that has ended is an error, and fine
	}
}

// server returns a wineserver command for the prefix.
func (p *prefix) server(ctx context.Context, args ...string) *exec.Cmd {
	path := filepath.Join(parts, "wineserver")
	if !exists(path) {
		path = "wineserver"
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = p.environment()
	return cmd
}

func (p *prefix) environment() []string {
	return append(os.Environ(), "WINEPREFIX="+p.dir, "WINEARCH=win64", "WINEDEBUG=-all", "WINEDLLOVERRIDES=mscoree,mshtml=d")
}

// command runs an executable of Windows. It must be started in p.ns.
func (p *prefix) command(ctx context.Context, exe string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.wine, append([]string{exe}, args...)...)
	cmd.Env = p.environment()
	cmd.WaitDelay = 2 * time.Second // background processes of Wine may hold pipes
	return cmd
}

// output runs a command of the prefix and returns what it writes. It uses a file, because background processes of
// Wine inherit the output, and would hold a pipe open.
func (p *prefix) output(cmd *exec.Cmd) (string, error) {
	f, err := os.CreateTemp(p.dir, "output")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	err = p.ns.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	text, readErr := os.ReadFile(f.Name())
	return string(text), errors.Join(err, readErr)
}

// close ends every process of the prefix and removes it.
func (p *prefix) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	p.halt(ctx)
	return os.RemoveAll(p.dir)
}

// Path returns the Windows path of a file of this system.
func Path(path string) string { return `Z:` + strings.ReplaceAll(path, "/", `\`) }
