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
	"strings"
	"syscall"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, errOut io.Writer) int {
	flags := flag.NewFlagSet("kernel", flag.ContinueOnError)
	flags.SetOutput(errOut)
	kernels := flags.String("kernels", "linux-image-cloud-amd64,linux-image-6.12-cloud-amd64", "Debian packages to boot, metapackages followed")
	dir := flags.String("dir", "build/kernels", "directory for kernels and guests")
	timeout := flags.Duration("timeout", 15*time.Minute, "how long one guest may take")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var errs []error
	for _, name := range strings.Split(*kernels, ",") {
		began := time.Now()
		summary, err := try(ctx, name, *dir, *timeout, out)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		fmt.Fprintf(out, "kernel: %s (%s)\n", summary, time.Since(began).Round(time.Second))
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(errOut, "kernel:", err)
		return 1
	}
	return 0
}

// try boots one kernel and runs everything in it.
func try(ctx context.Context, name, dir string, timeout time.Duration, out io.Writer) (summary string, err error) {
	k, err := fetch(ctx, name, dir, out)
	if err != nil {
		return "", err
	}
	image, err := build(ctx, k, filepath.Join(dir, "guest-"+k.release))
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return boot(ctx, k, image, out)
}
