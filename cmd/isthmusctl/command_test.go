// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/agent/socket"
)

// ctl runs the real command line.
func ctl(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = run(context.Background(), cli.Env{Stdout: &out, Stderr: &errs, Dial: socket.Dial}, args)
	return status, out.String(), errs.String()
}

func TestVersionAndHelp(t *testing.T) {
	if status, out, errs := ctl("version"); status != 0 || !strings.HasPrefix(out, "isthmusctl devel ") || errs != "" {
		t.Errorf("version: %d, %q, %q", status, out, errs)
	}
	for _, args := range [][]string{{}, {"--help"}, {"status", "--help"}} {
		if status, out, errs := ctl(args...); status != 0 || !strings.Contains(out, "Usage:") || errs != "" {
			t.Errorf("%q: %d, %q, %q", args, status, out, errs)
		}
	}
}
