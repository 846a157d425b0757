// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/loader"
)

func main() {
	if err := run(); err != nil {
		fmt.Println("guest: FAILED:", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() error {
	for _, m := range []struct{ source, target, kind string }{
		{"proc", "/proc", "proc"}, {"sysfs", "/sys", "sysfs"}, {"dev", "/dev", "devtmpfs"},
		{"tmp", "/tmp", "tmpfs"}, {"run", "/run", "tmpfs"}, {"bpf", "/sys/fs/bpf", "bpf"},
	} {
		if err := unix.Mount(m.source, m.target, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := loadModules(); err != nil {
		return err
	}
	if err := reportPrograms(); err != nil {
		return err
	}
	return runSuites()
}

func loadModules() error {
	files, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load %s: %w", filepath.Base(path), err)
		}
	}
	return nil
}

// reportPrograms loads the programs and says how much work they were for the
// verifier.
func reportPrograms() error {
	path, err := loader.OpenSandbox()
	if err != nil {
		return err
	}
	defer path.Close()
	for name, d := range map[string]model.Direction{"from_pod": model.Egress, "to_pod": model.Ingress} {
		if err := report(name, path.Program(d)); err != nil {
			return err
		}
	}
	fmt.Printf("guest: tcx=%t\n", path.HasTCX())
	return nil
}

func report(name string, p *ebpf.Program) error {
	info, err := p.Info()
	if err != nil {
		return err
	}
	n, ok := info.VerifiedInstructions()
	if !ok {
		return fmt.Errorf("program %s: the kernel does not say how many instructions it verified", name)
	}
	fmt.Printf("guest: program %s: %d instructions verified\n", name, n)
	// The kernel gives up at a million.
	if n > 100_000 {
		return fmt.Errorf("program %s takes %d instructions to verify, more than 100000", name, n)
	}
	return nil
}

// runSuites runs every suite of the list, and fails if one does.
func runSuites() error {
	f, err := os.Open("/suites/list")
	if err != nil {
		return err
	}
	defer f.Close()
	n := 0
	for s := bufio.NewScanner(f); s.Scan(); n++ {
		words := strings.Fields(s.Text())
		cmd := exec.Command("/suites/"+words[0], words[1:]...)
		cmd.Dir = "/"
		if words[0] == "corpus" {
			cmd.Dir = "/corpus"
		}
		cmd.Env = []string{"PATH=/", "HOME=/tmp", "TMPDIR=/tmp"}
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("suite %s: %w", words[0], err)
		}
		fmt.Println("guest: suite", words[0], "ok")
	}
	fmt.Printf("guest: passed suites=%d\n", n)
	return nil
}
