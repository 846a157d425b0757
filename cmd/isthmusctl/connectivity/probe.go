// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/connectivity/probe"
)

// probeCommand is the program in the pods of a test.
func (e env) probeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:    "probe",
		Short:  "Serve and try flows in a pod of isthmusctl connectivity",
		Hidden: true,
		Args:   cli.NoArgs,
		RunE:   func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(e.serveCommand(), e.dialCommand())
	return c
}

func (e env) serveCommand() *cobra.Command {
	var name string
	var ports []uint
	c := &cobra.Command{
		Use:   "serve",
		Short: "Answer by TCP and UDP with a name and the address of the client",
		Args:  cli.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if name == "" || len(name) > 63 {
				return cli.Usagef("--name %q: give 1 to 63 characters", name)
			}
			var all []uint16
			for _, p := range ports {
				if p < 1 || p > 65535 {
					return cli.Usagef("--port %d: give ports from 1 to 65535", p)
				}
				all = append(all, uint16(p))
			}
			if len(all) == 0 {
				return cli.Usagef("--port: give at least one")
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			fmt.Fprintf(e.Stderr, "isthmusctl: probe %s serves ports %d by TCP and UDP\n", name, all)
			return probe.Serve(ctx, name, all...)
		},
	}
	c.Flags().StringVar(&name, "name", "", "name in the answers")
	c.Flags().UintSliceVar(&ports, "port", nil, "ports, separated by commas")
	return c
}

func (e env) dialCommand() *cobra.Command {
	timeout := 2 * time.Second
	c := &cobra.Command{
		Use:   "dial TARGET...",
		Short: "Try targets such as tcp/10.0.0.1:7000, and print an answer in JSON for each",
		RunE: func(c *cobra.Command, args []string) error {
			if timeout < probe.MinTimeout || timeout > probe.MaxTimeout {
				return cli.Usagef("--timeout %s: give %s to %s", timeout, probe.MinTimeout, probe.MaxTimeout)
			}
			if len(args) == 0 || len(args) > probe.MaxTargets {
				return cli.Usagef("%d targets: give 1 to %d", len(args), probe.MaxTargets)
			}
			var all []probe.Target
			for _, a := range args {
				t, err := probe.ParseTarget(a)
				if err != nil {
					return cli.Usagef("%w", err)
				}
				all = append(all, t)
			}
			out := json.NewEncoder(e.Stdout)
			for _, a := range probe.Try(c.Context(), timeout, all) {
				if err := out.Encode(a); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait for each answer")
	return c
}
