// SPDX-License-Identifier: Apache-2.0

package clitest

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/agent/socket"
)

// Run runs a command line of isthmusctl with the commands of one package.
func Run(commands func(cli.Env) []*cobra.Command, args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	e := cli.Env{Stdout: &out, Stderr: &errs, Dial: socket.Dial}
	status = e.Run(context.Background(), args, commands(e)...)
	return status, out.String(), errs.String()
}

// Write writes a file into a new directory and returns its path.
func Write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Directory returns a new directory with one file of manifests, m.yaml.
func Directory(t *testing.T, text string) string {
	t.Helper()
	return filepath.Dir(Write(t, "m.yaml", text))
}

// Golden compares a text with a file, or writes the file if update is set.
func Golden(t *testing.T, path, text string, update bool) {
	t.Helper()
	if update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", path, text, want)
	}
}
