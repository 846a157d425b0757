// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// opener opens the data path, and removes it.
type opener struct {
	open func(context.Context, model.Node) (dataplane.Backend, error)
	// needsNode is true if Open needs the addresses and pod ranges of the node.
	needsNode bool
	// timeout bounds one operation, if the default is too short.
	timeout time.Duration
	// metrics are those of the data path.
	metrics []prometheus.Collector
	// directories are those of the data path, besides --state-dir: only one agent may use them.
	directories []string
	// remove removes the data path; nil if nothing needs removal.
	remove func(context.Context) error
}

// env is the program's environment; tests provide their own.
type env struct {
	stdout, stderr io.Writer
	// backend returns the opener of the operating system.
	backend func(o *options, step func(string), log *slog.Logger) opener
	// step, if set, is called before every step instead of the debug log.
	step func(string)
}

// usageError reports an invalid command line.
type usageError struct{ error }

// run executes the command line and returns the exit status.
func (e env) run(ctx context.Context, args []string) int {
	root := e.command()
	root.SetArgs(args)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(e.stderr, "isthmus-agent: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	var usage usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

func (e env) command() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:           "isthmus-agent",
		Short:         "Pod networking and network policy of this node",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(c.Flags(), runtime.GOOS); err != nil {
				return usageError{err}
			}
			c.Flags().Visit(func(f *pflag.Flag) { o.settings = append(o.settings, "--"+f.Name+"="+f.Value.String()) })
			return e.serveAs(c.Context(), o)
		},
	}
	o.register(root.Flags())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w: see isthmus-agent --help", err)}
	})
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(e.uninstallCommand(), &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(e.stdout, "isthmus-agent %s %s/%s %s\n", version, runtime.GOOS, runtime.GOARCH, runtime.Version())
			return err
		},
	})
	return root
}

func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q: see %s --help", args[0], c.CommandPath())}
	}
	return nil
}
