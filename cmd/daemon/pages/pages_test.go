// SPDX-License-Identifier: Apache-2.0

package pages_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/daemon/pages"
)

var errUsage = errors.New("usage")

// run executes a command line with a subcommand whose default depends on the machine.
func run(args ...string) error {
	root := &cobra.Command{Use: "isthmus-x", Run: func(*cobra.Command, []string) {}, SilenceErrors: true, SilenceUsage: true}
	root.CompletionOptions.DisableDefaultCmd = true
	serve := &cobra.Command{Use: "serve", Short: "Serve something", Run: func(*cobra.Command, []string) {}}
	serve.Flags().String("node", "this-machine", "name of the node")
	pages.SetDefault(serve.Flags(), "node", "the host name")
	root.AddCommand(serve, pages.Command(pages.Administrators, "1.2.3", func(err error) error { return errors.Join(errUsage, err) }))
	root.SetArgs(args)
	return root.Execute()
}

// TestPages checks the names of the pages, and that none has a value of this machine or the date of its making.
func TestPages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1793527200") // 1 November 2026
	for format, want := range map[string]map[string]string{
		"man":      {"isthmus-x.8": `.TH "ISTHMUS-X" "8" "Nov 2026" "Isthmus 1.2.3" "Isthmus"`, "isthmus-x-serve.8": `\fB--node\fP="the host name"`},
		"markdown": {"isthmus-x.md": "## isthmus-x\n", "isthmus-x_serve.md": `--node string   name of the node (default "the host name")`},
	} {
		dir := filepath.Join(t.TempDir(), "pages")
		if err := run("docs", "--type="+format, "--dir="+dir); err != nil {
			t.Fatal(err)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) != len(want) {
			t.Errorf("%s: pages %v, %v", format, list, err)
		}
		for name, text := range want {
			page, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || !strings.Contains(string(page), text) || strings.Contains(string(page), "this-machine") || strings.Contains(string(page), "Auto generated") {
				t.Errorf("%s (%v):\n%s", name, err, page)
			}
		}
	}
	for _, args := range [][]string{{"docs", "--type=html"}, {"docs", "all"}} {
		if err := run(args...); !errors.Is(err, errUsage) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
