// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/check"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/connectivity"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/migrate"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/node"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/query"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/ui"
)

// run executes the command line and returns the exit status.
func run(ctx context.Context, e cli.Env, args []string) int {
	e.Version, e.Stdout, e.Stderr = version, cli.Printable(e.Stdout), cli.Printable(e.Stderr)
	groups := slices.Concat(query.Commands(e), check.Commands(e, node.VerifyLive(e)), node.Commands(e),
		connectivity.Commands(e), migrate.Commands(e), ui.Commands(e))
	return e.Run(ctx, args, append(groups, versionCommand(e), docsCommand())...)
}

func versionCommand(e cli.Env) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version of isthmusctl",
		Args:  cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := cli.CheckOutput(output, "text", "json", "yaml"); err != nil {
				return err
			}
			if output != "text" {
				return cli.EncodeKind(e.Stdout, output, "Version", map[string]string{"version": e.Version, "os": runtime.GOOS,
					"arch": runtime.GOARCH, "go": runtime.Version()})
			}
			_, err := fmt.Fprintf(e.Stdout, "isthmusctl %s %s\n", e.Version, cli.Platform())
			return err
		},
	}
	cli.RegisterOutput(c, &output, "text", "json", "yaml")
	return c
}
