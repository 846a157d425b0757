// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/isthmus-net/isthmus/test/kubernetes"
)

// config holds the parsed command line.
type config struct {
	name     string
	nodes    int
	ip       string
	networks []network // of ip
	// podNetwork is what connects the pods.
	podNetwork string
	suites     []string
	focus      string
	focusOwn   *regexp.Regexp // for the cases of this repository
	began      time.Time      // when make began to prepare the cluster; zero if not known
	image      string
	manifest   string
	remover    string
	report     string
	keep       bool
	programs   []string // directory of the programs of Kubernetes
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == nodeCommand {
		fmt.Fprintln(os.Stderr, "node:", runNode(os.Args[2]))
		os.Exit(1)
	}
	// All processes are started from this thread. The kernel kills them when the thread ends for
	// any reason.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 1 && os.Args[1] == clusterCommand {
		if err := runCluster(ctx, os.Args[2:]); err != nil && !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "cluster:", err)
			os.Exit(1)
		}
		return
	}
	failed, err := run(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
	}
	if err != nil || failed {
		os.Exit(1)
	}
}

func parse(args []string) (config, error) {
	c := config{}
	f := flag.NewFlagSet("e2e", flag.ContinueOnError)
	f.StringVar(&c.name, "name", "e2e", "name of the cluster, of which there may be several on a machine, and start of its nodes' names")
	f.IntVar(&c.nodes, "nodes", 2, "how many nodes, 2 to 9")
	f.StringVar(&c.ip, "ip", "4", "IP versions of the cluster: 4, 6, or dual for both")
	suites := f.String("suites", "netpol,conformance,own", "what to run, of netpol, conformance, network (the cases of sig-network beyond conformance), cnp, own, and again: netpol after the others")
	f.StringVar(&c.podNetwork, "network", "isthmus", "what connects the pods: isthmus, or flannel, beside which Isthmus is installed by its chart in mode policy")
	f.StringVar(&c.focus, "focus", "", "run only the cases that this expression matches, too")
	f.StringVar(&c.image, "image", "build/images/isthmus-linux-amd64.tar", "image of Isthmus, as make images writes it")
	f.StringVar(&c.manifest, "manifest", "deploy/isthmus.yaml", "what installs it")
	f.StringVar(&c.remover, "uninstall-manifest", "deploy/isthmus-uninstall.yaml", "what removes it")
	f.StringVar(&c.report, "report", "build/e2e", "directory of reports and logs")
	f.BoolVar(&c.keep, "keep", false, "leave the cluster running until Ctrl-C")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	var err error
	if c.focusOwn, err = regexp.Compile(c.focus); err != nil {
		return c, fmt.Errorf("-focus: %w", err)
	}
	c.suites = strings.Split(*suites, ",")
	for _, s := range c.suites {
		if s != "" && !slices.Contains(suiteNames, s) {
			return c, fmt.Errorf("-suites: %q: choose of %s", s, strings.Join(suiteNames, ", "))
		}
	}
	if f.NArg() > 0 {
		return c, fmt.Errorf("unknown argument %q: see -h", f.Arg(0))
	}
	if c.networks, err = networksOf(c.ip); err != nil {
		return c, err
	}
	c.programs = kubernetes.Names()
	if err := c.validateNetwork(); err != nil {
		return c, err
	}
	return c, c.validate()
}

// validateNetwork checks -network.
func (c config) validateNetwork() error {
	if c.podNetwork != "isthmus" && !c.besideFlannel() {
		return fmt.Errorf("-network %q: choose isthmus or flannel", c.podNetwork)
	}
	if c.besideFlannel() && c.ip != "4" {
		return fmt.Errorf("-network flannel with -ip %s: its manifest has IPv4 only", c.ip)
	}
	return nil
}

// validate checks the settings that all labs share.
func (c config) validate() error {
	if !regexp.MustCompile(`^[a-z][a-z0-9]{0,7}$`).MatchString(c.name) {
		return fmt.Errorf("-name %q: give 1 to 8 small letters and digits, a letter first", c.name)
	}
	if c.nodes < 2 || c.nodes > 9 {
		return fmt.Errorf("-nodes %d: give 2 to 9", c.nodes)
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root: namespaces, mounts and containerd")
	}
	return nil
}

// run reports whether a case failed. An error means that there are no results.
func run(ctx context.Context, args []string) (failed bool, err error) {
	c, err := parse(args)
	if err != nil {
		return false, err
	}
	if c.report, err = filepath.Abs(c.report); err != nil {
		return false, err
	}
	began := time.Now()
	l, err := newLab(ctx, c)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	if err := l.start(ctx); err != nil {
		return false, err
	}
	say("cluster of %d nodes runs after %s", c.nodes, since(began))
	if l.besideFlannel() {
		if err := l.startFlannel(ctx); err != nil {
			return false, err
		}
		say("flannel is ready on all nodes after %s", since(began))
	}
	// The test of removal compares the nodes with their state without Isthmus.
	before, err := l.imprints()
	if err != nil {
		return false, err
	}
	if err := l.install(ctx); err != nil {
		return false, err
	}
	say("Isthmus is ready on all nodes after %s", since(began))
	results, err := l.runSuites(ctx, before)
	if err != nil {
		return false, err
	}
	if c.keep {
		say("kubectl --kubeconfig %s runs in the namespace %s; end with Ctrl-C", l.control.admin, l.fabric.Path())
		<-ctx.Done()
	}
	err = errors.Join(results.write(filepath.Join(c.report, "junit.xml")), results.table(filepath.Join(c.report, "summary.md")))
	return results.print(os.Stdout, c.suites, c.focus), err
}

// progress is the destination of say.
var progress io.Writer = os.Stderr

func say(format string, args ...any) {
	fmt.Fprintf(progress, time.Now().UTC().Format("15:04:05 ")+format+"\n", args...)
}

func since(t time.Time) time.Duration { return time.Since(t).Round(100 * time.Millisecond) }
