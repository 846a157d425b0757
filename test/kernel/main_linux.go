// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, errOut io.Writer) int {
	flags := flag.NewFlagSet("kernel", flag.ContinueOnError)
	flags.SetOutput(errOut)
	cpu := flags.String("arch", "amd64", "architecture of the kernels: amd64 or arm64")
	kernels := flags.String("kernels", "", "Debian packages to boot, metapackages followed (default: Debian's 6.1 and 6.12; of arm64 6.12)")
	dir := flags.String("dir", "build/kernels", "directory for kernels and guests")
	timeout := flags.Duration("timeout", 6*time.Hour, "how long one guest may take; a suite that is at it a minute earlier is stopped and says where it was")
	only := flags.String("suites", "", "run only these suites, as \"loader,linux\" (default: all)")
	tests := flags.String("run", "", "run only the tests that match, as go test -run does")
	verbose := flags.Bool("v", false, "print all that guests say, not only what they report")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	a, known := arches[*cpu]
	if !known {
		fmt.Fprintf(errOut, "kernel: -arch %q: give amd64 or arm64\n", *cpu)
		return 2
	}
	wanted, err := choose(*only, *tests)
	if err != nil || *timeout <= 2*spare {
		fmt.Fprintln(errOut, "kernel:", cmp.Or(err, fmt.Errorf("guests need more than %s", 2*spare)))
		return 2
	}
	g := guests{arch: a, dir: *dir, timeout: *timeout, verbose: *verbose, out: out}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := g.prepare(ctx); err != nil {
		fmt.Fprintln(errOut, "kernel:", err)
		return 1
	}
	if err := g.boots(ctx, strings.Split(cmp.Or(*kernels, a.kernels), ","), divide(wanted)); err != nil {
		fmt.Fprintln(errOut, "kernel:", err)
		return 1
	}
	return 0
}

// guests configures the guests.
type guests struct {
	arch    arch
	apt     apt
	tools   string        // where commands of the architecture are
	dir     string        // for kernels and the files of guests
	timeout time.Duration // of one guest
	verbose bool
	out     io.Writer
}

// spare is the part of the timeout that is left for the start of a guest, and for its report about
// a test that hangs.
const spare = time.Minute

// prepare fetches what all guests need besides a kernel.
func (g *guests) prepare(ctx context.Context) (err error) {
	if g.apt, err = packages(ctx, g.arch, g.dir); err != nil {
		return err
	}
	g.tools, err = g.apt.fetchTools(ctx, g.out)
	return err
}

// boots boots each kernel for each part of the suites, as many guests at once as there are CPUs: one uses little more than one.
func (g guests) boots(ctx context.Context, kernels []string, parts []part) error {
	var images []image
	for _, name := range kernels {
		k, err := g.apt.fetch(ctx, name, g.dir, g.out)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		images = append(images, k)
	}
	errs := make([]error, len(parts)*len(images))
	running := make(chan struct{}, runtime.NumCPU())
	var all sync.WaitGroup
	for n := range errs {
		running <- struct{}{}
		all.Go(func() {
			errs[n] = g.one(ctx, images[n%len(images)], parts[n/len(images)])
			<-running
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// one runs a part of the suites in a guest.
func (g guests) one(ctx context.Context, k image, p part) error {
	began := time.Now()
	dir := filepath.Join(g.dir, "guest-"+k.release+p.name)
	image, err := g.build(ctx, k, p, dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	summary, err := g.boot(ctx, k, p, image, filepath.Join(dir, "console"))
	took := time.Since(began).Round(time.Second)
	if err != nil {
		fmt.Fprintf(g.out, "kernel: %s%s failed (%s); its output follows when all guests have ended\n", k.release, p.name, took)
		return err
	}
	fmt.Fprintf(g.out, "kernel: %s (%s)\n", summary, took)
	return nil
}
