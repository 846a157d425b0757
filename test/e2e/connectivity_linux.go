// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// connectivity runs isthmusctl connectivity as a user does: in pods of the image of the agents.
func (l *lab) connectivity(ctx context.Context) error {
	ctl := filepath.Join(l.dir, "isthmusctl")
	build := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", ctl, "github.com/isthmus-net/isthmus/cmd/isthmusctl")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if _, err := output(build); err != nil {
		return fmt.Errorf("build isthmusctl: %w", err)
	}
	out, err := l.in(l.fabric, ctl, "connectivity", "--kubeconfig", l.control.admin, "--quiet")
	if err != nil {
		return fmt.Errorf("isthmusctl connectivity: %w: %s", err, out)
	}
	totals := out[strings.LastIndexByte(strings.TrimSpace(out), '\n')+1:]
	if want := fmt.Sprintf("connectivity: nodes=%d pods=%d ", len(l.nodes), 2*len(l.nodes)); !strings.HasPrefix(totals, want) || !strings.Contains(totals, "failed=0") {
		return fmt.Errorf("isthmusctl connectivity ends with %q, want %q", totals, want)
	}
	say("own: %s", strings.TrimSpace(totals))
	return until(ctx, time.Minute, "the removal of the namespace", func() error {
		return l.expect("", "get", "namespaces", "-l", "isthmus.dev/connectivity", "-o", "name")
	})
}
