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
)

const usage = `usage: release -version V -o DIR [flags], anywhere in a checkout

Writes the files of release V of the commit that is checked out. The same commit
and version give the same bytes.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	version string
	out     string // does not exist, or holds an earlier release
	key     string // file with a private key, or empty
	dirty   bool   // releases a checkout with changes
	check   bool   // builds the commit twice and compares
	chart   bool   // writes the chart only
	notices string // writes the licences only, into this directory
}

func parse(args []string, w io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	f.SetOutput(w)
	f.Usage = func() {
		fmt.Fprint(w, usage)
		f.PrintDefaults()
	}
	f.StringVar(&o.version, "version", "", "version of the release, as Semantic Versioning has it: 0.2.0 or 0.2.0-rc.1")
	f.StringVar(&o.out, "o", "", "directory for the files, which is replaced if it holds an earlier release")
	f.StringVar(&o.key, "key", os.Getenv("SIGNING_KEY"), "file with a private key (PKCS #8, PEM; Ed25519 or ECDSA P-256) that signs; empty for no signatures. The default is SIGNING_KEY of the environment")
	f.BoolVar(&o.dirty, "allow-dirty", false, "release a checkout with changes that are not committed; the provenance says so")
	f.BoolVar(&o.check, "check", false, "build the commit in two new directories, with build caches of their own, and compare every byte")
	f.BoolVar(&o.chart, "chart-only", false, "write the package of the chart only")
	f.StringVar(&o.notices, "licences-only", "", "write the licences of all modules into DIR/SYSTEM-ARCHITECTURE/"+noticesName+", for images; needs no other flag")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q: there are no arguments besides flags", f.Arg(0))
	}
	if o.notices != "" {
		if f.NFlag() > 1 {
			return o, errors.New("-licences-only: leave out the other flags")
		}
		return o, nil
	}
	if o.out == "" {
		return o, errors.New("-o: give a directory for the files")
	}
	return o, checkVersion(o.version)
}

// run prints the result to w, and each step that takes long to progress.
func run(ctx context.Context, args []string, w, progress io.Writer) error {
	o, err := parse(args, w)
	if err != nil {
		return err
	}
	if o.notices != "" {
		return writeNotices(ctx, ".", o.notices)
	}
	src, err := findSource(ctx, ".")
	if err != nil {
		return err
	}
	if src.dirty != "" && !o.dirty && !o.chart {
		return fmt.Errorf("the checkout has changes that are not committed:\n%scommit or remove them, or give -allow-dirty (make release ALLOW_DIRTY=1)", src.dirty)
	}
	if o.out, err = filepath.Abs(o.out); err != nil {
		return err
	}
	if err := replaceDir(o.out); err != nil {
		return err
	}
	if o.check {
		return compareBuilds(ctx, src, o, w, progress)
	}
	if o.chart {
		_, err := packChart(src, o.version, o.out)
		return err
	}
	key, err := readKey(o.key)
	if err != nil {
		return err
	}
	r := &release{source: src, version: o.version, out: o.out, targets: targets(), key: key, progress: progress}
	if err := r.make(ctx); err != nil {
		return err
	}
	fmt.Fprintln(w, r.summary())
	return nil
}

// mark is a file of every release; replaceDir recognises a release by it.
const mark = "SHA256SUMS"

// replaceDir creates an empty directory, in the place of an earlier release.
func replaceDir(dir string) error {
	list, err := os.ReadDir(dir)
	if err == nil && len(list) > 0 {
		if _, err := os.Stat(filepath.Join(dir, mark)); err != nil {
			return fmt.Errorf("%s is not empty and holds no release: give another directory, or remove it", dir)
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove earlier release: %w", err)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create directory of the release: %w", err)
	}
	return nil
}
