// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/common/agent/socket"
)

// env is the environment of the program; tests replace it.
type env struct {
	stdout, stderr io.Writer
	dial           func(ctx context.Context, address string) (net.Conn, error)
}

// Errors that have an exit status of their own.
type usageError struct{ error }

// troubleError is any other error of a command whose exit status 1 is an answer.
type troubleError struct{ error }

var (
	errNotReady = errors.New("node is not ready")
	// errNo is the negative answer of such a command: denied, different, found. The command
	// has printed it.
	errNo = errors.New("no")
)

// answering makes a command whose exit status is 0 for a positive answer, 1 for a negative
// one, and 2 if there is no answer.
func answering(f func(c *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		err := f(c, args)
		if err == nil || errors.Is(err, errNo) {
			return err
		}
		return troubleError{err}
	}
}

// run executes the command line and returns the exit status.
func (e env) run(ctx context.Context, args []string) int {
	root := e.command()
	root.SetArgs(args)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errNo):
		return 1
	}
	fmt.Fprintf(e.stderr, "isthmusctl: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	var usage usageError
	var trouble troubleError
	switch {
	case errors.As(err, &usage), errors.As(err, &trouble):
		return 2
	case errors.Is(err, errNotReady):
		return 3
	}
	return 1
}

// shared are the flags that several subcommands have.
type shared struct {
	socket  string
	timeout time.Duration
	output  string
	forever bool // the answer may take any time
}

func (s *shared) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&s.socket, "socket", socket.Default, "the agent's socket")
	f.DurationVar(&s.timeout, "timeout", 10*time.Second, "how long to wait for the agent")
	f.StringVarP(&s.output, "output", "o", "text", "text, wide or json")
}

func (s *shared) check() error {
	if !slices.Contains([]string{"text", "wide", "json"}, s.output) {
		return usageError{fmt.Errorf("--output %q: give text, wide or json", s.output)}
	}
	if s.timeout <= 0 {
		return usageError{fmt.Errorf("--timeout %s: give a duration above 0", s.timeout)}
	}
	return nil
}

func (e env) command() *cobra.Command {
	root := &cobra.Command{
		Use:           "isthmusctl",
		Short:         "Look at policies before they are applied, and at the agent of this node",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w: see %s --help", err, c.CommandPath())}
	})
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(e.testCommand(), e.verifyCommand())
	root.AddCommand(e.statusCommand(), e.endpointsCommand(), e.eventsCommand(), e.versionCommand(),
		e.compileCommand(), e.explainCommand(), e.matrixCommand(), e.diffCommand(), e.lintCommand(), e.denyCommand(), e.doctorCommand())
	return root
}

func (e env) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of isthmusctl",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(e.stdout, "isthmusctl %s %s/%s %s\n", version, runtime.GOOS, runtime.GOARCH, runtime.Version())
			return err
		},
	}
}

func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q: see %s --help", args[0], c.CommandPath())}
	}
	return nil
}
