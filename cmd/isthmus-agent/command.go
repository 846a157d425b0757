// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"log/slog"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/isthmus-net/isthmus/cmd/daemon"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// opener opens the data path, and removes it.
type opener struct {
	open func(context.Context, model.Node) (dataplane.Backend, error)
	// needsNode is true if Open needs the addresses and pod ranges of the node.
	needsNode bool
	// otherEngines returns a line about each policy engine of another project; nil if there is no check.
	otherEngines func() ([]string, error)
	// timeout bounds one operation, if the default is too short.
	timeout time.Duration
	// metrics are those of the data path.
	metrics []prometheus.Collector
	// directories are those of the data path, besides --state-dir: only one agent may use them.
	directories []string
	// reserve takes what one agent of this host may use and no directory stands for, until Close, which may be repeated; nil if there
	// is nothing.
	reserve func() (io.Closer, error)
	// attached returns the interfaces of pods on this node, by endpoint; nil if there is no way to tell.
	attached func() (map[model.EndpointID]string, error)
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

// run executes the command line and returns the exit status.
func (e env) run(ctx context.Context, args []string) int {
	return daemon.Run(ctx, e.command(), args, e.stdout, e.stderr)
}

func (e env) command() *cobra.Command {
	o := &options{}
	root := daemon.Command("isthmus-agent", "Pod networking and network policy of this node", version, func(c *cobra.Command) error {
		if err := o.check(c.Flags(), runtime.GOOS); err != nil {
			return daemon.UsageError{Err: err}
		}
		c.Flags().Visit(func(f *pflag.Flag) { o.settings = append(o.settings, "--"+f.Name+"="+f.Value.String()) })
		return e.serveAs(c.Context(), o)
	})
	o.register(root.Flags())
	root.AddCommand(e.uninstallCommand())
	return root
}
