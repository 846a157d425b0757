// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestRun checks the exit status and the output.
func TestRun(t *testing.T) {
	for _, c := range []struct {
		args   []string
		result error
		status int
		stdout string
		stderr string
	}{
		{nil, nil, 0, "", ""},
		{nil, errors.New("no\nluck"), 1, "", "isthmus-x: no; luck\n"},
		{nil, UsageError{errors.New("--a: give one")}, 2, "", "isthmus-x: --a: give one\n"},
		{[]string{"--what"}, nil, 2, "", "isthmus-x: unknown flag: --what: see isthmus-x --help\n"},
		{[]string{"now"}, nil, 2, "", "isthmus-x: unexpected argument \"now\": see isthmus-x --help\n"},
		{[]string{"version", "now"}, nil, 2, "", "isthmus-x: unexpected argument \"now\": see isthmus-x version --help\n"},
		{[]string{"version"}, nil, 0, "isthmus-x 1.2.3 ", ""},
		{[]string{"--version"}, errors.New("the command ran"), 0, "isthmus-x 1.2.3 ", ""},
		{[]string{"help"}, errors.New("the command ran"), 0, "Do nothing", ""},
		{[]string{"help", "version"}, nil, 0, "Print the version\n", ""},
		{[]string{"help", "nothing"}, nil, 2, "", "isthmus-x: no help for \"nothing\": see isthmus-x --help\n"},
		{[]string{"help", "version", "now"}, nil, 2, "", "isthmus-x: no help for \"version now\": see isthmus-x --help\n"},
	} {
		var out, errs bytes.Buffer
		root := Command("isthmus-x", "Do nothing", "1.2.3", func(*cobra.Command) error { return c.result })
		status := Run(t.Context(), root, c.args, &out, &errs)
		if status != c.status || !strings.HasPrefix(out.String(), c.stdout) || (c.stdout == "") != (out.Len() == 0) || errs.String() != c.stderr {
			t.Errorf("%q, %v: status %d, output %q, errors %q", c.args, c.result, status, out.String(), errs.String())
		}
	}
}

// TestLog checks that the log follows its flags, and that invalid ones are refused.
func TestLog(t *testing.T) {
	run := func(w io.Writer, args ...string) error {
		var l Log
		root := Command("isthmus-x", "Log", "1", func(*cobra.Command) error {
			if err := l.Check(); err != nil {
				return err
			}
			l.Logger(w).Info("hello")
			l.Logger(w).Warn("hello")
			return nil
		})
		l.Register(root.Flags())
		root.SetArgs(args)
		return root.ExecuteContext(t.Context())
	}
	for args, want := range map[string]string{
		"":                                    `level=INFO msg=hello|level=WARN msg=hello`,
		"--log-level=warn":                    `level=WARN msg=hello`,
		"--log-level=error":                   ``,
		"--log-format=json":                   `"level":"INFO","msg":"hello"}|"level":"WARN","msg":"hello"}`,
		"--log-level=loud --log-format=xml":   `--log-level "loud": give debug, info, warn or error|--log-format "xml": give text or json`,
		"--log-level=INFO-4":                  `--log-level "INFO-4": give debug, info, warn or error`,
		"--log-level=debug --log-format=text": `level=INFO msg=hello|level=WARN msg=hello`,
	} {
		var w bytes.Buffer
		got := ""
		if err := run(&w, strings.Fields(args)...); err != nil {
			got = err.Error()
		} else {
			got = strings.TrimSuffix(w.String(), "\n")
		}
		lines := strings.Split(got, "\n")
		for i, part := range strings.Split(want, "|") {
			if len(lines) != len(strings.Split(want, "|")) || !strings.HasSuffix(lines[i], part) {
				t.Errorf("%q: got %q, want %q", args, got, want)
				break
			}
		}
	}
}
