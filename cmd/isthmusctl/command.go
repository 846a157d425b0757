// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/check"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/node"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/query"
)

// run executes the command line and returns the exit status.
func run(ctx context.Context, e cli.Env, args []string) int {
	return e.Run(ctx, args, slices.Concat(query.Commands(e), check.Commands(e), node.Commands(e), []*cobra.Command{versionCommand(e.Stdout), docsCommand()})...)
}

func versionCommand(out io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of isthmusctl",
		Args:  cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(out, "isthmusctl %s %s/%s %s\n", version, runtime.GOOS, runtime.GOARCH, runtime.Version())
			return err
		},
	}
}
