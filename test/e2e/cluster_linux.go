// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clusterCommand is the first argument for a cluster that keeps running.
const clusterCommand = "cluster"

// serveCommand is the second argument of the process that runs the cluster.
const serveCommand = "serve"

const clusterUsage = `usage: e2e-lab cluster up|stop [flags]

  up    run a Kubernetes cluster with Isthmus on this machine until stop; does nothing if it runs
  stop  end the cluster and remove what it made; does nothing if there is none

flags:
`

// readyLine is the last line of progress of a cluster that has started.
const readyLine = "ready"

// stopTime is the time limit for a cluster to stop.
const stopTime = 2 * time.Minute

// clusterPrograms are the programs of Kubernetes that a cluster needs.
var clusterPrograms = []string{"agnhost", "coredns", "etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet"}

// runCluster executes "e2e cluster".
func runCluster(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] == "-h" || args[0] == "-help" || args[0] == "--help" {
		args = []string{"up", "-h"}
	}
	c, port, err := parseCluster(args[1:])
	if err != nil {
		return err
	}
	switch args[0] {
	case "up":
		return c.up(ctx, args[1:])
	case "stop":
		return c.stop(ctx)
	case serveCommand:
		return c.serve(ctx, port)
	}
	return fmt.Errorf("e2e-lab cluster %s: choose up or stop", args[0])
}

// parseCluster returns the configuration, and the port of the API server on this machine.
func parseCluster(args []string) (c config, port int, err error) {
	f := flag.NewFlagSet("e2e-lab cluster", flag.ContinueOnError)
	f.Usage = func() {
		fmt.Fprint(f.Output(), clusterUsage)
		f.PrintDefaults()
	}
	f.StringVar(&c.name, "name", "local", "name of the cluster, and start of its nodes' names")
	f.IntVar(&c.nodes, "nodes", 2, "how many nodes, 2 to 9")
	f.StringVar(&c.ip, "ip", "4", "IP versions of the cluster: 4, 6, or dual for both")
	f.IntVar(&port, "port", 6443, "port of the API server on 127.0.0.1")
	f.StringVar(&c.image, "image", "build/images/isthmus-linux-amd64.tar", "image of Isthmus, as make images writes it")
	f.StringVar(&c.manifest, "manifest", "deploy/isthmus.yaml", "what installs it")
	f.StringVar(&c.report, "dir", "build/cluster", "directory of the kubeconfig file and of logs")
	began := f.Int64("began", 0, "time in Unix seconds when make cluster began, which also installs packages and builds images")
	if err := f.Parse(args); err != nil {
		return c, 0, err
	}
	if f.NArg() > 0 {
		return c, 0, fmt.Errorf("unknown argument %q: see e2e-lab cluster up -h", f.Arg(0))
	}
	if *began > 0 {
		c.began = time.Unix(*began, 0)
	}
	if port < 1 || port > 65535 {
		return c, 0, fmt.Errorf("-port %d: give 1 to 65535", port)
	}
	if c.networks, err = networksOf(c.ip); err != nil {
		return c, 0, err
	}
	c.programs = clusterPrograms
	if c.report, err = filepath.Abs(c.report); err != nil {
		return c, 0, err
	}
	c.focusOwn = regexp.MustCompile("")
	return c, port, c.validate()
}

// up starts a process that runs the cluster, and prints its progress until all pods run.
func (c config) up(ctx context.Context, args []string) error {
	began := time.Now()
	if pid, err := c.runs(); err != nil {
		return err
	} else if pid > 0 {
		fmt.Printf("cluster %s runs already, or starts, as process %d\n%s", c.name, pid, c.hints())
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.report, 0o755); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(c.report, "cluster.txt"))
	if err != nil {
		return err
	}
	defer log.Close()
	progress, out, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, append([]string{clusterCommand, serveCommand}, args...)...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{out}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the cluster: %w", err)
	}
	out.Close()
	stop := context.AfterFunc(ctx, func() { cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	if !follow(progress, os.Stderr) {
		err := cmd.Wait()
		if ctx.Err() != nil {
			return errors.New("interrupted; nothing is left of the cluster")
		}
		return fmt.Errorf("the cluster did not start: %w: %s; see %s", err, lastLine(log.Name()), c.report)
	}
	if err := cmd.Process.Release(); err != nil {
		return err
	}
	fmt.Printf("%s\n%s", c.runsAfter(began, time.Now()), c.hints())
	return nil
}

// runsAfter says how long the cluster took, and make with all that it did before.
func (c config) runsAfter(began, now time.Time) string {
	line := fmt.Sprintf("cluster %s of %d nodes runs after %s", c.name, c.nodes, now.Sub(began).Round(100*time.Millisecond))
	if c.began.IsZero() {
		return line
	}
	return fmt.Sprintf("%s, %s after make began", line, now.Sub(c.began).Round(time.Second))
}

// follow copies lines until the end, and reports whether the last one is readyLine.
func follow(from io.Reader, to io.Writer) bool {
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		if lines.Text() == readyLine {
			return true
		}
		fmt.Fprintln(to, lines.Text())
	}
	return false
}

// lastLine returns the last line of a log, or the error.
func lastLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// hints explains how to use the cluster.
func (c config) hints() string {
	return fmt.Sprintf("  export KUBECONFIG=%s PATH=%s:$PATH\n  kubectl get pods -A -o wide\n  sudo make cluster-stop   # removes it\n",
		filepath.Join(c.report, "kubeconfig"), c.report)
}

// runs returns the process ID of the cluster, or 0.
func (c config) runs() (pid int, err error) {
	lock, err := os.Open(c.lockFile())
	if missing(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err == nil {
		return 0, nil
	}
	text, err := io.ReadAll(io.LimitReader(lock, 32))
	if err != nil {
		return 0, err
	}
	if pid, err = strconv.Atoi(string(bytes.TrimSpace(text))); err != nil || pid < 2 {
		return 0, fmt.Errorf("lab %q is in use, but %s names no process: try again", c.name, c.lockFile())
	}
	return pid, nil
}

// stop ends the cluster, or removes the remains of a cluster that was killed.
func (c config) stop(ctx context.Context) error {
	pid, err := c.runs()
	if err != nil {
		return err
	}
	if pid > 0 {
		say("ending cluster %s, process %d", c.name, pid)
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("end process %d of the cluster: %w", pid, err)
		}
		err := until(ctx, stopTime, "the end of the cluster", func() error {
			if pid, err := c.runs(); err != nil || pid > 0 {
				return errors.Join(err, fmt.Errorf("process %d still runs", pid))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if _, err := os.Stat(c.directory()); missing(err) {
		fmt.Printf("no cluster %s runs\n", c.name)
		return nil
	}
	l, err := takeLab(c)
	if err != nil {
		return err
	}
	if err := l.clear(); err != nil {
		return err
	}
	for _, name := range []string{"kubeconfig", "kubectl"} {
		if err := os.Remove(filepath.Join(c.report, name)); err != nil && !missing(err) {
			return err
		}
	}
	if err := errors.Join(os.RemoveAll(c.directory()), l.lock.Close()); err != nil {
		return err
	}
	fmt.Printf("cluster %s is removed\n", c.name)
	return nil
}

// serve runs the cluster until it receives a signal. It writes its progress to file descriptor 3.
func (c config) serve(ctx context.Context, port int) (err error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	out := os.NewFile(3, "progress")
	defer out.Close()
	progress = io.MultiWriter(os.Stderr, out)
	l, err := newLab(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	listener, err := l.forwardAPI(ctx, port)
	if err != nil {
		return err
	}
	defer listener.Close()
	if err := l.start(ctx); err != nil {
		return err
	}
	say("nodes have joined; installing Isthmus")
	if err := l.install(ctx); err != nil {
		return err
	}
	if err := l.startExample(ctx); err != nil {
		return err
	}
	if err := l.writeKubeconfig(port); err != nil {
		return err
	}
	progress = os.Stderr
	if _, err := fmt.Fprintln(out, readyLine); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	<-ctx.Done()
	say("ending")
	return nil
}

// startExample starts the pods of the quick start. It waits until one of them reaches the Service: kube-proxy learns last where the pod is.
func (l *lab) startExample(ctx context.Context) error {
	say("Isthmus is ready on all nodes; starting the pods of %s", example)
	text, err := os.ReadFile(example)
	if err != nil {
		return err
	}
	if err := until(ctx, time.Minute, "the service account", func() error { return l.apply(string(text)) }); err != nil {
		return err
	}
	if err := l.wait("shop"); err != nil {
		return err
	}
	return until(ctx, time.Minute, "the Service of "+example, func() error {
		_, err := l.kubectl("-n", "shop", "exec", "web", "--", "/agnhost", "connect", "api:80", "--timeout=2s")
		return err
	})
}

// writeKubeconfig writes a kubeconfig file for programs of this machine, and links kubectl beside
// it.
func (l *lab) writeKubeconfig(port int) error {
	text, err := os.ReadFile(l.control.admin)
	if err != nil {
		return err
	}
	server := l.server()
	text = bytes.ReplaceAll(text, []byte(server), fmt.Appendf(nil, "https://127.0.0.1:%d", port))
	file := filepath.Join(l.report, "kubeconfig")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	if err := giveToUser(file, os.Getenv("SUDO_UID"), os.Getenv("SUDO_GID")); err != nil {
		return err
	}
	link := filepath.Join(l.report, "kubectl")
	if err := os.Remove(link); err != nil && !missing(err) {
		return err
	}
	return os.Symlink(filepath.Join(l.bin, "kubectl"), link)
}

// giveToUser makes the user who ran sudo the owner of a file. Without sudo it stays root's.
func giveToUser(path, uid, gid string) error {
	if uid == "" {
		return nil
	}
	u, err := strconv.ParseUint(uid, 10, 31)
	if err != nil {
		return fmt.Errorf("SUDO_UID: %w", err)
	}
	g, err := strconv.ParseUint(gid, 10, 31)
	if err != nil {
		return fmt.Errorf("SUDO_GID: %w", err)
	}
	return os.Chown(path, int(u), int(g))
}

// example is the manifest that a new cluster starts with.
const example = "deploy/quickstart/shop.yaml"
