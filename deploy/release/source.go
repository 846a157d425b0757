// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// checkVersion accepts what Semantic Versioning 2.0.0 accepts, without build metadata:
// tags of images have no plus sign.
func checkVersion(v string) error {
	const form = `give MAJOR.MINOR.PATCH, such as 0.2.0, or 0.2.0-rc.1 for a pre-release`
	switch {
	case v == "":
		return errors.New("no version: " + form + " (make release VERSION=0.2.0)")
	case strings.HasPrefix(v, "v"):
		return fmt.Errorf("version %q: leave out the v: the tag is %s, the version %s", v, v, v[1:])
	case strings.Contains(v, "+"):
		return fmt.Errorf("version %q: tags of images have no build metadata: leave out the plus sign and what follows", v)
	case !semver.IsValid("v"+v) || semver.Canonical("v"+v) != "v"+v:
		return fmt.Errorf("version %q is not a version of Semantic Versioning: %s", v, form)
	}
	return nil
}

// source is a checkout.
type source struct {
	dir    string // top of the checkout
	commit string
	time   time.Time // of the commit
	dirty  string    // what git status prints about changes; empty without any
	goVer  string    // the toolchain that go.mod names, such as go1.26.8
	goEnv  []string  // settings of go on this machine that change nothing of what is built
}

// findSource describes the checkout that a directory is in.
func findSource(ctx context.Context, dir string) (source, error) {
	top, err := git(ctx, dir, "rev-parse", "--show-toplevel")
	if err != nil {
		return source{}, err
	}
	s := source{dir: strings.TrimSpace(top)}
	commit, err := git(ctx, s.dir, "show", "--no-patch", "--format=%H %ct", "HEAD")
	if err != nil {
		return source{}, err
	}
	hash, seconds, _ := strings.Cut(strings.TrimSpace(commit), " ")
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return source{}, fmt.Errorf("read time of commit %s: %w", hash, err)
	}
	s.commit, s.time = hash, time.Unix(n, 0).UTC()
	if s.dirty, err = git(ctx, s.dir, "status", "--porcelain"); err != nil {
		return source{}, err
	}
	raw, err := os.ReadFile(filepath.Join(s.dir, "go.mod"))
	if err != nil {
		return source{}, fmt.Errorf("read go.mod: %w", err)
	}
	mod, err := modfile.ParseLax("go.mod", raw, nil)
	if err != nil {
		return source{}, err
	}
	if mod.Go == nil {
		return source{}, errors.New("go.mod has no line with a version of Go")
	}
	s.goVer = "go" + mod.Go.Version
	s.goEnv, err = goEnv(ctx, s.dir)
	return s, err
}

// git runs git in a directory; the owner of a checkout need not be the user.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-c", "safe.directory=*", "-C", dir}, args...)...)
	return output(cmd)
}

// output returns what a command prints. An error has what it complains about.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("run %s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
