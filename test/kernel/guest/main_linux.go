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
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/loader"
)

func main() {
	if err := run(time.Now(), os.Args[1:]); err != nil {
		fmt.Println("guest: FAILED:", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// run executes all suites. The first argument is the time limit.
func run(began time.Time, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("arguments %q, want a duration", args)
	}
	budget, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	for _, m := range []struct{ source, target, kind string }{
		{"proc", "/proc", "proc"}, {"sysfs", "/sys", "sysfs"}, {"dev", "/dev", "devtmpfs"},
		{"tmp", "/tmp", "tmpfs"}, {"run", "/run", "tmpfs"}, {"bpf", "/sys/fs/bpf", "bpf"},
	} {
		if err := unix.Mount(m.source, m.target, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := learnLate(); err != nil {
		return err
	}
	// Without KVM a CPU can be descheduled for so long that its queue of 1000 packets overflows.
	if err := os.WriteFile("/proc/sys/net/core/netdev_max_backlog", []byte("20000"), 0o644); err != nil {
		return err
	}
	if err := reportHooks(); err != nil {
		return err
	}
	return runSuites(began.Add(budget))
}

// learnLate loads the programs, then all modules. So connection tracking becomes available after
// the programs were loaded, as for an agent that starts early.
func learnLate() (err error) {
	const dir = "/sys/fs/bpf/late"
	path, err := loader.Open(dir, loader.DefaultSettings(), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, path.Close(), loader.Remove(dir)) }()
	before, err := path.ProbeConntrack()
	if err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	after, err := path.ProbeConntrack()
	fmt.Printf("guest: queries connection tracking: without its module %t, with it %t\n", before, after)
	if err == nil && (before || !after) {
		err = errors.New("connection tracking that is loaded late is not queried")
	}
	return err
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

// reportHooks reports which hooks accept the programs.
func reportHooks() error {
	path, err := loader.OpenSandbox()
	if err != nil {
		return err
	}
	defer path.Close()
	fmt.Printf("guest: tcx=%t\n", path.HasTCX())
	return nil
}

// runSuites runs every suite of the list, and fails if one fails. A suite that is not done at the
// deadline prints its stacks and ends, so that a hang can be diagnosed.
func runSuites(deadline time.Time) error {
	f, err := os.Open("/suites/list")
	if err != nil {
		return err
	}
	defer f.Close()
	n := 0
	var failed []string
	for s := bufio.NewScanner(f); s.Scan(); n++ {
		words := strings.Fields(s.Text())
		args := append(words[1:], "-test.v", "-test.short=false", "-test.timeout="+time.Until(deadline).String())
		cmd := exec.Command("/suites/"+words[0], args...)
		cmd.Dir = "/data/" + words[0]
		cmd.Env = []string{"PATH=/bin", "HOME=/tmp", "TMPDIR=/tmp", "ISTHMUS_EMULATED=1"}
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
		began := time.Now()
		if err := cmd.Run(); err != nil {
			fmt.Printf("guest: suite %s: %v (%s)\n", words[0], err, time.Since(began).Round(time.Second))
			failed = append(failed, words[0])
			continue
		}
		fmt.Printf("guest: suite %s ok (%s)\n", words[0], time.Since(began).Round(time.Second))
	}
	if len(failed) > 0 {
		return fmt.Errorf("suites %q", failed)
	}
	fmt.Printf("guest: passed suites=%d\n", n)
	return nil
}
