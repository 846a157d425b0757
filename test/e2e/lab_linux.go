// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/isthmus-net/isthmus/test/e2e/cgroups"
	"github.com/isthmus-net/isthmus/test/kubernetes"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/wine"
)

// labDir, followed by the name of a lab, is its directory.
const labDir = "/var/tmp/isthmus-"

// hostSettings are the sysctls that a kubelet changes on the whole machine.
var hostSettings = []string{"vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops"}

// lab is the cluster.
type lab struct {
	config
	dir, bin, images string
	// reference is the name of Isthmus's image on the nodes.
	reference string
	// fabricMode, if set, is installed instead of the mode auto.
	fabricMode string
	// flannel is its manifest, and conflists are the texts of its configurations by node.
	flannel   string
	conflists map[string]string
	lock      *os.File
	fabric    *netns.NS
	control   *control
	nodes     []*node
	saved     map[string][]byte // sysctls
	processes []*exec.Cmd
}

// newLab locks the lab of a name, removes the remains of an earlier one, and builds missing files.
func newLab(ctx context.Context, c config) (*lab, error) {
	l, err := takeLab(c)
	if err != nil {
		return nil, err
	}
	for i := range c.nodes {
		l.nodes = append(l.nodes, l.newNode(i+1))
	}
	if err := l.clear(); err != nil {
		return nil, err
	}
	if err := clearReport(c.report); err != nil {
		return nil, err
	}
	for _, s := range hostSettings {
		if l.saved[s], err = os.ReadFile("/proc/sys/" + s); err != nil {
			return nil, fmt.Errorf("read sysctl: %w", err)
		}
	}
	if l.bin, err = kubernetes.Build(ctx, progress, c.programs...); err != nil {
		return nil, err
	}
	return l, l.buildImages(ctx)
}

// takeLab locks a lab. The lock ends when its file is closed.
func takeLab(c config) (*lab, error) {
	dir := c.directory()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(c.lockFile(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("another lab %q runs on this machine: %w: give this one another -name", c.name, err)
	}
	if err := os.WriteFile(c.lockFile(), fmt.Appendln(nil, os.Getpid()), 0o600); err != nil {
		lock.Close()
		return nil, err
	}
	return &lab{config: c, dir: dir, images: filepath.Join(dir, "images"), fabric: netns.At(filepath.Join(dir, "fabric.ns")),
		saved: make(map[string][]byte), lock: lock}, nil
}

func (c config) directory() string { return labDir + c.name }

func (c config) lockFile() string { return filepath.Join(c.directory(), "lock") }

// clearReport makes the directory of reports and removes logs of earlier runs.
func clearReport(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	for _, l := range logs {
		err = errors.Join(err, os.Remove(l))
	}
	return err
}

// start starts the cluster, up to the point where its nodes wait for a network.
func (l *lab) start(ctx context.Context) error {
	if err := l.makeFabric(); err != nil {
		return err
	}
	var err error
	if l.control, err = l.startControl(ctx); err != nil {
		return err
	}
	for _, n := range l.nodes {
		if err := l.startNode(n); err != nil {
			return err
		}
	}
	for _, n := range l.nodes {
		if err := l.waitForNode(ctx, n); err != nil {
			return err
		}
	}
	if err := l.restoreSettings(); err != nil {
		return err
	}
	if err := l.definePolicies(ctx); err != nil {
		return err
	}
	return l.startDNS(ctx)
}

// makeFabric makes the bridge between control plane and nodes. It does not forward, so that packets
// between nodes pass only if Isthmus sends them.
func (l *lab) makeFabric() error {
	var err error
	if l.fabric, err = netns.New(l.fabric.Path()); err != nil {
		return err
	}
	// Without an address of its own, the bridge takes another one when a node leaves, and all nodes have a wrong
	// neighbour entry for a while.
	lines := []string{
		"ip link set lo up", "ip link add fabric address 02:00:ac:1e:00:01 type bridge",
		"sysctl -qw net.ipv4.ip_forward=0", "sysctl -qw net.ipv6.conf.all.forwarding=0",
	}
	for _, n := range l.networks {
		lines = append(lines, "ip address add "+n.fabric.String()+" dev fabric"+noDetection(n))
	}
	for _, line := range append(lines, "ip link set fabric up") {
		if _, err := l.in(l.fabric, strings.Fields(line)...); err != nil {
			return err
		}
	}
	return nil
}

// noDetection ends the command that adds an address: it can be used immediately.
func noDetection(n network) string {
	if n.is6() {
		return " nodad"
	}
	return ""
}

// in runs a command in a network namespace and returns what it prints.
func (l *lab) in(ns *netns.NS, args ...string) (string, error) {
	return output(exec.Command("nsenter", append([]string{"--net=" + ns.Path(), "--"}, args...)...))
}

func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// launch starts a program in a network namespace that runs until the lab is closed. Its output goes
// to the log with the given name.
func (l *lab) launch(ns *netns.NS, name string, flags uintptr, args ...string) (*exec.Cmd, error) {
	return l.launchCommand(ns, name, flags, exec.Command(args[0], args[1:]...))
}

// launchCommand is launch for a command with its own environment and directory.
func (l *lab) launchCommand(ns *netns.NS, name string, flags uintptr, like *exec.Cmd) (*exec.Cmd, error) {
	// A restarted program appends to its log.
	log, err := os.OpenFile(filepath.Join(l.report, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command("nsenter", append([]string{"--net=" + ns.Path(), "--"}, like.Args...)...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = like.Env, like.Dir, log, log
	// A separate session: Ctrl-C is for the lab, which stops its programs in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: flags}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Pdeathsig is sent when the parent's thread ends, so this thread must stay
		started <- cmd.Start()
		select {}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	l.processes = append(l.processes, cmd)
	return cmd, nil
}

// kubectl runs kubectl as cluster administrator.
func (l *lab) kubectl(args ...string) (string, error) {
	return l.in(l.fabric, append([]string{filepath.Join(l.bin, "kubectl"), "--kubeconfig=" + l.control.admin}, args...)...)
}

// apply applies manifests.
func (l *lab) apply(manifests string) error {
	cmd := exec.Command("nsenter", "--net="+l.fabric.Path(), "--", filepath.Join(l.bin, "kubectl"), "--kubeconfig="+l.control.admin,
		"apply", "--server-side", "--force-conflicts", "-f", "-")
	cmd.Stdin = strings.NewReader(manifests)
	_, err := output(cmd)
	return err
}

// final is an error that no repetition changes.
type final struct{ error }

// until repeats f until it returns no error, or a final one.
func until(ctx context.Context, limit time.Duration, what string, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		if errors.As(err, new(final)) {
			return fmt.Errorf("%s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait %s for %s: %w", limit, what, err)
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// close ends all processes and restores the machine.
func (l *lab) close() error {
	for i := len(l.processes) - 1; i >= 0; i-- {
		l.processes[i].Process.Kill()
		l.processes[i].Wait()
	}
	return errors.Join(l.restoreSettings(), l.clear(), l.lock.Close())
}

// clear removes the remains of a lab whose processes have ended.
func (l *lab) clear() error {
	errs := []error{wine.Remove(filepath.Join(l.dir, windowsDir)), l.fabric.Close()}
	left, err := filepath.Glob(filepath.Join(l.dir, windowsDir, "*.ns"))
	errs = append(errs, err)
	for _, path := range left {
		errs = append(errs, netns.At(path).Close())
	}
	for i := range 9 {
		n := l.newNode(i + 1)
		errs = append(errs, n.ns.Close(), l.cgroups().ClearNode(n.name))
	}
	errs = append(errs, l.cgroups().Restore())
	entries, err := os.ReadDir(l.dir)
	errs = append(errs, err)
	for _, e := range entries {
		if e.Name() != "lock" {
			errs = append(errs, os.RemoveAll(filepath.Join(l.dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

func (l *lab) restoreSettings() error {
	var errs []error
	for name, value := range l.saved {
		errs = append(errs, os.WriteFile("/proc/sys/"+name, value, 0))
	}
	return errors.Join(errs...)
}

// cgroups are those of the machine and of the lab's nodes.
func (l *lab) cgroups() cgroups.Tree {
	return cgroups.Tree{Root: cgroups.Root, Record: filepath.Join(l.dir, "controllers")}
}

func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
